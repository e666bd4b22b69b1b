"""Unsupervised sentence embeddings for sentence-transformers: ConIsI, Twins and InfoCSE beside SimCSE."""

from st_contrastive.inputs import (
    conisi_dataset,
    conisi_examples,
    infocse_dataset,
    infocse_examples,
    simcse_dataset,
    simcse_examples,
    twins_dataset,
    twins_examples,
)
from st_contrastive.losses import ConIsILoss, InfoCSELoss, LossTerms, SimCSELoss, TwinsLoss

__version__ = "0.1.0"

__all__ = [
    "ConIsILoss",
    "InfoCSELoss",
    "LossTerms",
    "SimCSELoss",
    "TwinsLoss",
    "conisi_dataset",
    "conisi_examples",
    "infocse_dataset",
    "infocse_examples",
    "simcse_dataset",
    "simcse_examples",
    "twins_dataset",
    "twins_examples",
]
