"""Unsupervised sentence embeddings for sentence-transformers: ConIsI, Twins, InfoCSE and SimCSE.

The names below are imported on first use, so that the command line can answer before torch is imported.
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

__version__ = "0.3.0.dev0"

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
    package = "losses"
    if name == "input_examples" or name.endswith("_dataset"):
        package = "inputs"
    elif name == "FraternalEmbedding":
        package = "components"
    value = getattr(import_module(f"{__name__}.{package}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
