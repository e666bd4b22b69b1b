"""Inputs of InfoCSELoss: as SimCSE's, since the loss masks on the device, anew at every step."""

from __future__ import annotations

from collections.abc import Iterable

from datasets import Dataset
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive.inputs import _checks, _tables


def infocse_examples(sentences: Iterable[str]) -> list[InputExample]:
    """Examples of one text for ``model.fit``.

    Example:
        >>> infocse_examples(["A cat sleeps."])[0].texts
        ['A cat sleeps.']
    """
    return _checks.examples(_checks.rows(sentences=sentences))


def infocse_dataset(sentences: Iterable[str]) -> Dataset:
    """A memory-mapped Dataset with the column ``sentence`` for the Trainer; ``sentences`` may be an iterator of any
    length.

    Example:
        >>> infocse_dataset(["A cat sleeps."]).column_names
        ['sentence']
    """
    return _tables.dataset(_checks.rows(sentences=sentences), ["sentence"])
