"""Inputs of ConIsILoss."""

from __future__ import annotations

from datasets import Dataset
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive.inputs import _rows


def conisi_examples(
    sentences: _rows.Sentences, constructed: _rows.SecondColumn | None = None, *, seed: int = 42
) -> list[InputExample]:
    """Examples for ``model.fit``.

    Args:
        sentences: the sentences, or a Dataset with the column ``sentence``.
        constructed: for strategy "given", the constructed sentence of each, or a function that makes it, such as
            ``AntonymReplacement()`` (ConIsI-o2). If it equals its sentence, the loss takes another sentence of the
            batch. None gives one column, for the strategies "other" and "subword": the loss then constructs the
            sentences itself.
        seed: with the row's number, seeds the random generator that the function gets.

    Raises:
        TypeError, ValueError: as :func:`text_examples`.

    Example:
        >>> conisi_examples(["It is warm."], ["It is cold."])[0].texts
        ['It is warm.', 'It is cold.']
        >>> conisi_examples(["It is warm."], lambda text, rng: text.replace("warm", "cold"))[0].texts
        ['It is warm.', 'It is cold.']
    """
    return _rows.examples(_rows.rows(sentences, "constructed", constructed, seed))


def conisi_dataset(
    sentences: _rows.Sentences, constructed: _rows.SecondColumn | None = None, *, seed: int = 42
) -> Dataset:
    """A Dataset for the Trainer, in memory, with the columns ``sentence`` and, if given, ``constructed``.

    The arguments are those of :func:`conisi_examples`.

    Example:
        >>> conisi_dataset(["It is warm."], ["It is cold."]).column_names
        ['sentence', 'constructed']
    """
    names = ("sentence",) if constructed is None else ("sentence", "constructed")
    return _rows.dataset(_rows.rows(sentences, "constructed", constructed, seed), sentences, names)
