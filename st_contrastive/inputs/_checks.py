"""Text checks that the builders share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from datasets import Dataset
from sentence_transformers.sentence_transformer.readers import InputExample


def texts(name: str, values: Iterable[str]) -> list[str]:
    """``values`` as a list of strings.

    Raises:
        TypeError: it is one string, not an iterable, or holds what is not a string; the first such row is named.
        ValueError: it is empty.
    """
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a sequence of strings, one a sentence, got {type(values).__name__}.")
    rows = list(values)
    for index, row in enumerate(rows):
        if not isinstance(row, str):
            raise TypeError(f"{name}[{index}] must be a string, got {type(row).__name__}: {row!r:.80}.")
    if not rows:
        raise ValueError(f"{name} is empty; there is nothing to train on.")
    return rows


def columns(**given: Iterable[str] | None) -> dict[str, list[str]]:
    """The given columns, checked and of equal length; None is left out.

    Raises:
        TypeError, ValueError: as in :func:`texts`, or the lengths differ.
    """
    checked = {name: texts(name, values) for name, values in given.items() if values is not None}
    if len({len(rows) for rows in checked.values()}) > 1:
        lengths = ", ".join(f"{name} {len(rows)}" for name, rows in checked.items())
        raise ValueError(f"The columns must be equally long, row for row: {lengths}.")
    return checked


def examples(table: dict[str, list[str]]) -> list[InputExample]:
    """One InputExample a row, its texts in the order of the columns."""
    return [InputExample(texts=list(row)) for row in zip(*table.values(), strict=True)]


def dataset(table: dict[str, list[str]], names: Sequence[str]) -> Dataset:
    """A Dataset with the columns under ``names``."""
    return Dataset.from_dict(dict(zip(names, table.values(), strict=False)))
