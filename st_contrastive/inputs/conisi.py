"""Inputs of ConIsILoss."""

from __future__ import annotations

from collections.abc import Iterable

from datasets import Dataset
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive.inputs import _checks


def conisi_examples(sentences: Iterable[str], constructed: Iterable[str] | None = None) -> list[InputExample]:
    """Examples for ``model.fit``.

    Args:
        sentences: the sentences.
        constructed: for strategy "given", the constructed sentence of each. Where one equals its sentence, the loss
            takes another sentence of the batch. None gives one column, for the strategies "other" and "subword", whose
            sentences the loss constructs on the device, anew at every step.

    Raises:
        TypeError, ValueError: a row is not a string, or the columns are not equally long.

    Example:
        >>> conisi_examples(["It is warm."], ["It is cold."])[0].texts
        ['It is warm.', 'It is cold.']
    """
    return _checks.examples(_checks.columns(sentences=sentences, constructed=constructed))


def conisi_dataset(sentences: Iterable[str], constructed: Iterable[str] | None = None) -> Dataset:
    """A Dataset with the columns ``sentence`` and, if given, ``constructed`` for the Trainer; see
    :func:`conisi_examples`.

    Example:
        >>> conisi_dataset(["It is warm."], ["It is cold."]).column_names
        ['sentence', 'constructed']
    """
    return _checks.dataset(_checks.columns(sentences=sentences, constructed=constructed), ["sentence", "constructed"])
