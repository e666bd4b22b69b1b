"""sentence-transformers losses: each wires components to objectives and holds no mathematics of its own."""

from st_contrastive.losses.base import ContrastiveLoss, LossTerms, TextLoss
from st_contrastive.losses.combined import CombinedLoss
from st_contrastive.losses.conisi import ConIsILoss
from st_contrastive.losses.diffcse import DiffCSELoss
from st_contrastive.losses.infocse import InfoCSEAblation, InfoCSELoss
from st_contrastive.losses.momentum import MomentumContrastLoss
from st_contrastive.losses.pretraining import AuxiliaryMLMPretrainingLoss
from st_contrastive.losses.simcse import SimCSELoss
from st_contrastive.losses.twins import TwinsAblation, TwinsLoss

__all__ = [
    "AuxiliaryMLMPretrainingLoss",
    "CombinedLoss",
    "ConIsILoss",
    "ContrastiveLoss",
    "DiffCSELoss",
    "InfoCSEAblation",
    "InfoCSELoss",
    "LossTerms",
    "MomentumContrastLoss",
    "SimCSELoss",
    "TextLoss",
    "TwinsAblation",
    "TwinsLoss",
]
