"""The rows of a training set: sentences, and possibly a second text for each, given or made from it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import zip_longest
from typing import TypeAlias

from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive._checks import require_count, require_encodable, require_texts, warn

#: A column of texts, or a function that makes one text from a sentence and a random generator.
SecondColumn: TypeAlias = Iterable[str] | Callable[[str, random.Random], str]


def rows(
    sentences: Iterable[str], name: str, second: SecondColumn | None = None, seed: int = 42
) -> Iterator[tuple[str, ...]]:
    """Each sentence, with its second text if there is a second column; every text is checked, empty ones are warned of.

    Args:
        sentences: the first column.
        name: what errors call the second column.
        second: the second column. A function gets a generator for each row, which depends on ``seed`` and the row's
            number only.
        seed: see ``second``.

    Raises:
        TypeError, ValueError: see :func:`~st_contrastive._checks.require_texts`; or the columns differ in length, or a
            function does not return a string.
    """
    require_count("seed", seed, least=0)
    first = require_texts("sentences", sentences)
    if second is None:
        return warning_of_empty(zip(first))
    if callable(second):
        return warning_of_empty(_made(first, name, second, seed))
    other = require_texts(name, second)
    if isinstance(sentences, Sized) and isinstance(second, Sized) and len(sentences) != len(second):
        raise ValueError(
            f"The columns must be equally long: sentences has {len(sentences)} rows, {name} has {len(second)}."
        )
    return warning_of_empty(_paired(first, name, other))


def warning_of_empty(table: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """The rows; warns at their end if texts were empty, which a loss would take for sentences."""
    empty, first, count = 0, 0, 0
    for row in table:
        if not all(text.strip() for text in row):
            empty, first = empty + 1, first if empty else count
        count += 1
        yield row
    if empty:
        warn(f"{empty:,} of {count:,} rows have an empty text, the first of them row {first}: leave them out.")


def _made(
    sentences: Iterator[str], name: str, make: Callable[[str, random.Random], str], seed: int
) -> Iterator[tuple[str, str]]:
    rng = random.Random()
    for index, sentence in enumerate(sentences):
        rng.seed(f"{seed} {index}")
        made = make(sentence, rng)
        if not isinstance(made, str):
            raise TypeError(f"{name} must return a string, got {type(made).__name__} for sentences[{index}].")
        require_encodable(f"the result of {name} for sentences[{index}]", made)
        yield sentence, made


def _paired(sentences: Iterator[str], name: str, others: Iterator[str]) -> Iterator[tuple[str, str]]:
    for count, (sentence, other) in enumerate(zip_longest(sentences, others)):
        if sentence is None or other is None:
            ended = "sentences" if sentence is None else name
            raise ValueError(f"The columns must be equally long: {ended} ends after {count} rows.")
        yield sentence, other


def examples(table: Iterable[tuple[str, ...]]) -> list[InputExample]:
    """One InputExample per row."""
    return [InputExample(texts=list(row)) for row in table]
