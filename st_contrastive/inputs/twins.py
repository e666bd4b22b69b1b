"""Inputs of TwinsLoss."""

from __future__ import annotations

from collections.abc import Iterable

from datasets import Dataset
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive.inputs import _checks


def twins_examples(sentences: Iterable[str], translations: Iterable[str] | None = None) -> list[InputExample]:
    """Examples for ``model.fit``.

    Args:
        sentences: the sentences.
        translations: the translation of each. None gives one column: identical twins and the queue alone.

    Raises:
        TypeError, ValueError: a row is not a string, or the columns are not equally long.

    Example:
        >>> twins_examples(["A cat sleeps."], ["Eine Katze schläft."])[0].texts
        ['A cat sleeps.', 'Eine Katze schläft.']
    """
    return _checks.examples(_checks.columns(sentences=sentences, translations=translations))


def twins_dataset(sentences: Iterable[str], translations: Iterable[str] | None = None) -> Dataset:
    """A Dataset with the columns ``sentence`` and, if given, ``translation`` for the Trainer; see
    :func:`twins_examples`.

    Example:
        >>> twins_dataset(["A cat sleeps."], ["Eine Katze schläft."]).column_names
        ['sentence', 'translation']
    """
    return _checks.dataset(_checks.columns(sentences=sentences, translations=translations), ["sentence", "translation"])
