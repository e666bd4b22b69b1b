"""Inputs of the losses that take sentences, or sentences and another form of each."""

from __future__ import annotations

from datasets import Dataset
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive.inputs import _rows


def text_examples(
    sentences: _rows.Sentences, other: _rows.SecondColumn | None = None, *, seed: int = 42
) -> list[InputExample]:
    """Examples for ``model.fit``, for all losses that need nothing but sentences.

    Args:
        sentences: the sentences, or a Dataset with the column ``sentence``.
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


def text_dataset(sentences: _rows.Sentences, other: _rows.SecondColumn | None = None, *, seed: int = 42) -> Dataset:
    """A Dataset for the Trainer, in memory, with the columns ``sentence`` and, if given, ``other``.

    The arguments are those of :func:`text_examples`. For texts that are made anew in each epoch::

        dataset.set_transform(lambda rows: {**rows, "other": [augment(text, rng) for text in rows["sentence"]]})

    For data that do not fit into memory, ``map`` of the Dataset adds the column.

    Example:
        >>> text_dataset(["A cat sleeps."]).column_names
        ['sentence']
    """
    names = ("sentence",) if other is None else ("sentence", "other")
    return _rows.dataset(_rows.rows(sentences, "other", other, seed), sentences, names)
