"""Inputs of ConIsILoss."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from datasets import Dataset
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive.inputs import _checks, _tables

Construction: TypeAlias = Iterable[str] | Callable[[str, random.Random], str]


def conisi_examples(
    sentences: Iterable[str], constructed: Construction | None = None, *, seed: int = 42
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
    return _checks.examples(_rows(sentences, constructed, seed))


def conisi_dataset(sentences: Iterable[str], constructed: Construction | None = None, *, seed: int = 42) -> Dataset:
    """A memory-mapped Dataset with the columns ``sentence`` and, if given, ``constructed`` for the Trainer; see
    :func:`conisi_examples`. ``sentences`` may be an iterator of any length.

    Example:
        >>> conisi_dataset(["It is warm."], ["It is cold."]).column_names
        ['sentence', 'constructed']
    """
    names = ["sentence"] if constructed is None else ["sentence", "constructed"]
    return _tables.dataset(_rows(sentences, constructed, seed), names)


def _rows(sentences: Iterable[str], constructed: Construction | None, seed: int) -> Iterator[tuple[str, ...]]:
    if not callable(constructed):
        return _checks.rows(sentences=sentences, constructed=constructed)
    return _constructed(_checks.texts("sentences", sentences), constructed, seed)


def _constructed(
    sentences: Iterator[str], construct: Callable[[str, random.Random], str], seed: int
) -> Iterator[tuple[str, str]]:
    rng = random.Random()
    for index, sentence in enumerate(sentences):
        rng.seed(f"{seed} {index}")
        made = construct(sentence, rng)
        if not isinstance(made, str):
            raise TypeError(f"constructed must return a string, got {type(made).__name__} for sentences[{index}].")
        _checks.require_whole(f"what constructed made of sentences[{index}]", made)
        yield sentence, made
