"""Inputs of the losses that take sentences, or sentences and another form of each."""

from __future__ import annotations

from collections.abc import Iterable

from datasets import Dataset
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive.inputs import _rows, _tables


def text_examples(
    sentences: Iterable[str], other: _rows.SecondColumn | None = None, *, seed: int = 42
) -> list[InputExample]:
    """Examples for ``model.fit``, for all losses that need nothing but sentences.

    Args:
        sentences: the sentences.
        other: another form of each sentence, for SimCSELoss and MomentumContrastLoss; or a function that makes it, such
            as ESimCSE's ``WordRepetition()``. Without it, dropout makes the two views differ.
        seed: with the row's number, seeds the random generator that the function gets.

    Raises:
        TypeError, ValueError: a row is not a string or holds half of a surrogate pair, or the columns differ in length.

    Example:
        >>> text_examples(["A cat sleeps."])[0].texts
        ['A cat sleeps.']
        >>> text_examples(["A cat sleeps."], lambda text, rng: text + " Sleeps.")[0].texts
        ['A cat sleeps.', 'A cat sleeps. Sleeps.']
    """
    return _rows.examples(_rows.rows(sentences, "other", other, seed))


def text_dataset(sentences: Iterable[str], other: _rows.SecondColumn | None = None, *, seed: int = 42) -> Dataset:
    """A memory-mapped Dataset for the Trainer, with the columns ``sentence`` and, if given, ``other``.

    The arguments are those of :func:`text_examples`; iterators may have any length.

    Example:
        >>> text_dataset(["A cat sleeps."]).column_names
        ['sentence']
    """
    names = ["sentence"] if other is None else ["sentence", "other"]
    return _tables.dataset(_rows.rows(sentences, "other", other, seed), names)
