"""The papers' equations as pure functions of tensors, without modules, state or checks."""

from st_contrastive.objectives.contrast import info_nce, info_nce_of_cosines
from st_contrastive.objectives.interaction import interaction
from st_contrastive.objectives.twin_equations import forgetting_weights, fused_embeddings, twins_margin

__all__ = [
    "forgetting_weights",
    "fused_embeddings",
    "info_nce",
    "info_nce_of_cosines",
    "interaction",
    "twins_margin",
]
