"""The losses. Each loss connects components to objectives; the equations are in ``objectives``."""

from st_contrastive.losses.base import TextLoss
from st_contrastive.losses.conisi import ConIsILoss
from st_contrastive.losses.described_loss import DescribedLoss
from st_contrastive.losses.diffcse import DiffCSELoss
from st_contrastive.losses.infocse import InfoCSELoss
from st_contrastive.losses.momentum import MomentumContrastLoss
from st_contrastive.losses.pretraining import AuxiliaryMLMPretrainingLoss
from st_contrastive.losses.simcse import SimCSELoss
from st_contrastive.losses.step import BatchFacts, EncodedViews, LossTerms, Step
from st_contrastive.losses.twins import TwinsLoss

__all__ = [
    "AuxiliaryMLMPretrainingLoss",
    "BatchFacts",
    "ConIsILoss",
    "DescribedLoss",
    "DiffCSELoss",
    "EncodedViews",
    "InfoCSELoss",
    "LossTerms",
    "MomentumContrastLoss",
    "SimCSELoss",
    "Step",
    "TextLoss",
    "TwinsLoss",
]
