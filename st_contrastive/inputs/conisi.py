"""Inputs of ConIsILoss."""

from __future__ import annotations

from collections.abc import Iterable

from datasets import Dataset
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive.inputs import _checks, _made, _tables


def conisi_examples(
    sentences: Iterable[str], constructed: _made.Construction | None = None, *, seed: int = 42
) -> list[InputExample]:
    """Examples for ``model.fit``.

    Args:
        sentences: the sentences.
        constructed: for strategy "given", the constructed sentence of each, or what makes it of one, such as
            ``AntonymReplacement()`` (ConIsI-o2). Where one equals its sentence, the loss takes another sentence of
            the batch. None gives one column, for the strategies "other" and "subword", whose sentences the loss
            constructs on the device, anew at every step.
        seed: of a ``constructed`` that draws; each row has a generator of its own.

    Raises:
        TypeError, ValueError: a row is not a string or holds half of a surrogate pair, or the columns are not equally
            long.

    Example:
        >>> conisi_examples(["It is warm."], ["It is cold."])[0].texts
        ['It is warm.', 'It is cold.']
        >>> conisi_examples(["It is warm."], lambda text, rng: text.replace("warm", "cold"))[0].texts
        ['It is warm.', 'It is cold.']
    """
    return _checks.examples(_made.rows(sentences, "constructed", constructed, seed))


def conisi_dataset(
    sentences: Iterable[str], constructed: _made.Construction | None = None, *, seed: int = 42
) -> Dataset:
    """A memory-mapped Dataset with the columns ``sentence`` and, if given, ``constructed`` for the Trainer; see
    :func:`conisi_examples`. ``sentences`` may be an iterator of any length.

    Example:
        >>> conisi_dataset(["It is warm."], ["It is cold."]).column_names
        ['sentence', 'constructed']
    """
    names = ["sentence"] if constructed is None else ["sentence", "constructed"]
    return _tables.dataset(_made.rows(sentences, "constructed", constructed, seed), names)
