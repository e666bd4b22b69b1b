"""A second column that is given, or made of the first row by row."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from st_contrastive.inputs import _checks

Construction: TypeAlias = Iterable[str] | Callable[[str, random.Random], str]


def rows(sentences: Iterable[str], name: str, other: Construction | None, seed: int) -> Iterator[tuple[str, ...]]:
    """The rows of the sentences and, but for None, of the other column.

    Args:
        sentences: the first column.
        name: the other's, for errors.
        other: the column; or what makes a text of a sentence, with a generator of its own for each row.
        seed: of these generators.

    Raises:
        TypeError, ValueError: as in :mod:`~st_contrastive.inputs._checks`, or what was made is no text.
    """
    if not callable(other):
        return _checks.rows(**{"sentences": sentences, name: other})
    return _made(_checks.texts("sentences", sentences), name, other, seed)


def _made(
    sentences: Iterator[str], name: str, make: Callable[[str, random.Random], str], seed: int
) -> Iterator[tuple[str, str]]:
    rng = random.Random()
    for index, sentence in enumerate(sentences):
        rng.seed(f"{seed} {index}")
        made = make(sentence, rng)
        if not isinstance(made, str):
            raise TypeError(f"{name} must return a string, got {type(made).__name__} for sentences[{index}].")
        _checks.require_whole(f"what {name} made of sentences[{index}]", made)
        yield sentence, made
