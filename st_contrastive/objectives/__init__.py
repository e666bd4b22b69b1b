"""The papers' equations as pure functions of tensors; no module, no state, no checks."""

from st_contrastive.objectives.conisi import interaction
from st_contrastive.objectives.contrast import info_nce, info_nce_of_cosines
from st_contrastive.objectives.diffcse import replaced_tokens
from st_contrastive.objectives.infocse import masked_lm
from st_contrastive.objectives.twins import forgetting_weights, fused_embeddings, twins_margin

__all__ = [
    "forgetting_weights",
    "fused_embeddings",
    "info_nce",
    "info_nce_of_cosines",
    "interaction",
    "masked_lm",
    "replaced_tokens",
    "twins_margin",
]
