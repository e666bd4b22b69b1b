"""Checks of arguments and texts, whose messages name the argument, what it may be and what was given."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping, Set
from importlib import import_module
from typing import Any

#: Names of the parts of a data set that nothing is trained on, as a pattern.
HELD_OUT = "test|dev|val|valid|validation|eval|trial|h[eo]ld[-_]?out"


def require_weights(**weights: float) -> None:
    """Require that one of the weights of a loss's terms is above 0."""
    if not any(weights.values()):
        raise ValueError(f"{', '.join(weights)} are all 0, so that no term is left: give one a weight above 0.")


def require_texts(name: str, values: Iterable[str], start: int = 0) -> Iterator[str]:
    """The values, each checked as it is read. Messages count them from ``start``."""
    # Tables iterate over the names of their columns, and sets in no fixed order.
    is_table = hasattr(values, "columns") or hasattr(values, "column_names")
    if is_table or isinstance(values, (str, bytes, Mapping, Set)) or not isinstance(values, Iterable):
        raise TypeError(
            f"{name} must be a sequence of strings, one per sentence, got {type(values).__name__}. Give the column "
            f"{name}['sentence'] of a table, {name}['train'] of a DatasetDict; load_sentences(path) reads a file."
        )
    return _checked_texts(name, values, start)


def _checked_texts(name: str, values: Iterable[str], start: int) -> Iterator[str]:
    index = start - 1
    for index, value in enumerate(values, start):
        if not isinstance(value, str):
            hint = "" if value is None else " Give one text of each row, such as row[0] or row['sentence']."
            raise TypeError(f"{name}[{index}] must be a string, got {type(value).__name__}: {value!r:.80}.{hint}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{name}[{index}] holds half of a surrogate pair, which no tokenizer takes: {value!r:.80}. Repair it "
                "with text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')."
            ) from None
        yield value
    if index < start:
        raise ValueError(f"{name} is empty: give at least one string.")


def import_extra(module: str, extra: str) -> Any:
    """Import a module of an extra; the ImportError of one that is not installed names the extra."""
    try:
        return import_module(module)
    except ImportError as error:
        message = f'{module} is not installed. In the folder of st_contrastive, type: pip install ".[{extra}]"'
        raise ImportError(message) from error


def warn(message: str) -> None:
    """Warn at the line outside this package and torch that led here."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("st_contrastive", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, with the next if it ends in a colon; the name of its class if empty."""
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    return f"{first} {others[0].strip()}" if first.endswith(":") and others else first
