"""The papers' equations as pure functions: tensors in, a 0-d tensor out; no module, no state."""

from st_contrastive.objectives.conisi import interaction
from st_contrastive.objectives.infocse import IGNORED, masked_lm
from st_contrastive.objectives.simcse import info_nce
from st_contrastive.objectives.twins import twins_margin

__all__ = ["IGNORED", "info_nce", "interaction", "masked_lm", "twins_margin"]
