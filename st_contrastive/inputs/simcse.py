"""Inputs of SimCSELoss."""

from __future__ import annotations

from collections.abc import Iterable

from datasets import Dataset
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive.inputs import _checks


def simcse_examples(sentences: Iterable[str]) -> list[InputExample]:
    """Examples of one text for ``model.fit``; the loss draws the two views.

    Example:
        >>> simcse_examples(["A cat sleeps."])[0].texts
        ['A cat sleeps.']
    """
    return _checks.examples(_checks.columns(sentences=sentences))


def simcse_dataset(sentences: Iterable[str]) -> Dataset:
    """A Dataset with the column ``sentence`` for the Trainer.

    Example:
        >>> simcse_dataset(["A cat sleeps."]).column_names
        ['sentence']
    """
    return _checks.dataset(_checks.columns(sentences=sentences), ["sentence"])
