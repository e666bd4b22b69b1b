"""The losses. Each connects components to objectives, and holds no mathematics of its own."""

from st_contrastive.losses._description import DescribedLoss
from st_contrastive.losses.base import TextLoss
from st_contrastive.losses.conisi import ConIsILoss
from st_contrastive.losses.diffcse import DiffCSELoss
from st_contrastive.losses.infocse import InfoCSELoss
from st_contrastive.losses.momentum import MomentumContrastLoss
from st_contrastive.losses.pretraining import AuxiliaryMLMPretrainingLoss
from st_contrastive.losses.simcse import SimCSELoss
from st_contrastive.losses.step import LossTerms, Step
from st_contrastive.losses.twins import TwinsLoss

__all__ = [
    "AuxiliaryMLMPretrainingLoss",
    "ConIsILoss",
    "DescribedLoss",
    "DiffCSELoss",
    "InfoCSELoss",
    "LossTerms",
    "MomentumContrastLoss",
    "SimCSELoss",
    "Step",
    "TextLoss",
    "TwinsLoss",
]
