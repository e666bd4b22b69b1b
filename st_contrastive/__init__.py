"""Unsupervised sentence embeddings for sentence-transformers: ConIsI, Twins and InfoCSE beside SimCSE.

The names below are imported when they are first asked for, so that the command line answers before torch is there.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from st_contrastive.components import FraternalEmbedding
    from st_contrastive.inputs import conisi_dataset, input_examples, text_dataset, twins_dataset
    from st_contrastive.losses import (
        AuxiliaryMLMPretrainingLoss,
        ConIsILoss,
        DiffCSELoss,
        InfoCSELoss,
        LossTerms,
        MomentumContrastLoss,
        SimCSELoss,
        TwinsLoss,
    )

__version__ = "0.3.0"

__all__ = [
    "AuxiliaryMLMPretrainingLoss",
    "ConIsILoss",
    "DiffCSELoss",
    "FraternalEmbedding",
    "InfoCSELoss",
    "LossTerms",
    "MomentumContrastLoss",
    "SimCSELoss",
    "TwinsLoss",
    "conisi_dataset",
    "input_examples",
    "text_dataset",
    "twins_dataset",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = "losses"
    if name == "input_examples" or name.endswith("_dataset"):
        room = "inputs"
    elif name == "FraternalEmbedding":
        room = "components"
    value = getattr(import_module(f"{__name__}.{room}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
