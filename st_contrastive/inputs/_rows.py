"""The rows that the builders make: sentences, and possibly a second text for each, given or made from it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Any, TypeAlias

from datasets import Dataset, IterableDataset
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive._checks import require_count, require_encodable, require_texts, warn

#: A sequence of strings, or a Dataset with the column ``sentence``.
Sentences: TypeAlias = "Iterable[str] | Dataset | IterableDataset"
#: A column of texts, or a function that makes one text from a sentence and a random generator.
SecondColumn: TypeAlias = Iterable[str] | Callable[[str, random.Random], str]


def rows(sentences: Sentences, name: str, second: SecondColumn | None, seed: int) -> Iterator[tuple[str, ...]]:
    """Each sentence, with its second text if there is a second column; every text is checked.

    A function gets a generator for each row, which depends on ``seed`` and the row's number only. ``name`` is what
    errors call the second column. Empty texts, which a loss would take for sentences, are warned of.
    """
    require_count("seed", seed, least=0)
    first = texts_of(sentences)
    if second is None:
        return warning_of_empty(zip(first))
    if callable(second):
        return warning_of_empty(_from_function(first, name, second, seed))
    return warning_of_empty(_paired(first, name, require_texts(name, second)))


def texts_of(sentences: Sentences) -> Iterator[str]:
    """The sentences, checked one by one."""
    if isinstance(sentences, (Dataset, IterableDataset)):
        if "sentence" not in (sentences.column_names or ["sentence"]):
            raise ValueError(
                f"sentences has no column 'sentence', only {', '.join(sentences.column_names)}: "
                "load_sentences(sentences, column=...) takes one of them."
            )
        return require_texts("sentences", (row["sentence"] for row in sentences))
    return require_texts("sentences", sentences)


def warning_of_empty(table: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """The rows; warns at their end if texts were empty."""
    empty, first, count = 0, 0, 0
    for row in table:
        if not all(text.strip() for text in row):
            empty, first = empty + 1, first if empty else count
        count += 1
        yield row
    if empty:
        warn(f"{empty:,} of {count:,} rows have an empty text, the first of them row {first}: leave them out.")


def _from_function(
    sentences: Iterator[str], name: str, function: Callable[[str, random.Random], str], seed: int
) -> Iterator[tuple[str, str]]:
    rng = random.Random()
    for index, sentence in enumerate(sentences):
        rng.seed(f"{seed} {index}")
        text = function(sentence, rng)
        if not isinstance(text, str):
            raise TypeError(f"{name} must return a string, got {type(text).__name__} for sentences[{index}].")
        require_encodable(f"the result of {name} for sentences[{index}]", text)
        yield sentence, text


def _paired(sentences: Iterator[str], name: str, second: Iterator[str]) -> Iterator[tuple[str, str]]:
    for count, (sentence, text) in enumerate(zip_longest(sentences, second)):
        if sentence is None or text is None:
            ended = "sentences" if sentence is None else name
            raise ValueError(f"The columns must be equally long: {ended} ends after {count} rows.")
        yield sentence, text


def examples(table: Iterable[tuple[str, ...]]) -> list[InputExample]:
    """One InputExample per row."""
    return [InputExample(texts=list(row)) for row in table]


def dataset(table: Iterable[tuple[str, ...]], sentences: Any, names: tuple[str, ...]) -> Dataset:
    """A Dataset of text columns, with what a reader noted in the one that the sentences come from."""
    columns = zip(*table, strict=True)
    data = Dataset.from_dict({name: list(column) for name, column in zip(names, columns, strict=True)})
    if isinstance(sentences, Dataset):
        data.info.description = sentences.info.description
    return data
