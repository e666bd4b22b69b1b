"""Inputs of SimCSELoss, MomentumContrastLoss and DiffCSELoss."""

from __future__ import annotations

from collections.abc import Iterable

from datasets import Dataset
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive.inputs import _checks, _made, _tables


def simcse_examples(
    sentences: Iterable[str], other: _made.Construction | None = None, *, seed: int = 42
) -> list[InputExample]:
    """Examples of one text for ``model.fit``, of which the loss draws the two views; or of two.

    Args:
        sentences: the sentences.
        other: another form of each, or what makes one, such as ESimCSE's ``WordRepetition()``. None leaves both views
            to dropout.
        seed: of an ``other`` that draws; each row has a generator of its own.

    Raises:
        TypeError, ValueError: a row is not a string or holds half of a surrogate pair, or the columns are not equally
            long.

    Example:
        >>> simcse_examples(["A cat sleeps."])[0].texts
        ['A cat sleeps.']
        >>> simcse_examples(["A cat sleeps."], lambda text, rng: text + " Sleeps.")[0].texts
        ['A cat sleeps.', 'A cat sleeps. Sleeps.']
    """
    return _checks.examples(_made.rows(sentences, "other", other, seed))


def simcse_dataset(sentences: Iterable[str], other: _made.Construction | None = None, *, seed: int = 42) -> Dataset:
    """A memory-mapped Dataset with the columns ``sentence`` and, if given, ``other`` for the Trainer; see
    :func:`simcse_examples`. ``sentences`` may be an iterator of any length.

    Example:
        >>> simcse_dataset(["A cat sleeps."]).column_names
        ['sentence']
    """
    names = ["sentence"] if other is None else ["sentence", "other"]
    return _tables.dataset(_made.rows(sentences, "other", other, seed), names)
