"""The papers' equations as pure functions: tensors in, a 0-d tensor out; no module, no state, no checks."""

from st_contrastive.objectives.conisi import interaction
from st_contrastive.objectives.contrast import info_nce
from st_contrastive.objectives.diffcse import replaced_tokens
from st_contrastive.objectives.infocse import masked_lm
from st_contrastive.objectives.twins import twins_margin

__all__ = ["info_nce", "interaction", "masked_lm", "replaced_tokens", "twins_margin"]
