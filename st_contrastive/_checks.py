"""Checks of arguments and texts. Messages name the argument, the values that it accepts and the value that it has."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping, Set
from importlib import import_module
from itertools import takewhile
from typing import Any

#: Pattern for the names of splits that are held out from training.
HELD_OUT = "test|dev|val|valid|validation|eval|trial|h[eo]ld[-_]?out"


def require_weights(**weights: float) -> None:
    """Require that one of the weights of a loss's terms is above 0."""
    if not any(weights.values()):
        raise ValueError(f"{', '.join(weights)} are all 0, so no term is left. Set one of them above 0.")


def require_texts(name: str, values: Iterable[str], start: int = 0) -> Iterator[str]:
    """The values, checked one by one as they are read. Messages count them from ``start``."""
    # Iteration over a table gives the names of its columns, and iteration over a set has no fixed order.
    is_table = hasattr(values, "columns") or hasattr(values, "column_names")
    if is_table or isinstance(values, (str, bytes, Mapping, Set)) or not isinstance(values, Iterable):
        raise TypeError(
            f"{name} must be a sequence of strings, one per sentence, got {type(values).__name__}. Pass a column "
            f"of a table, {name}['sentence'], or a split, {name}['train']. load_sentences(path) reads a file."
        )
    return _checked_texts(name, values, start)


def _checked_texts(name: str, values: Iterable[str], start: int) -> Iterator[str]:
    index = start - 1
    for index, value in enumerate(values, start):
        if not isinstance(value, str):
            hint = "" if value is None else " Pass one text from each row, such as row[0] or row['sentence']."
            raise TypeError(f"{name}[{index}] must be a string, got {type(value).__name__}: {value!r:.80}.{hint}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"{name}[{index}] holds half of a surrogate pair, which no tokenizer accepts: {value!r:.80}. Repair it "
                "with text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')."
            ) from None
        yield value
    if index < start:
        raise ValueError(f"{name} is empty. Pass at least one string.")


def import_extra(module: str, extra: str) -> Any:
    """Import a module that an extra installs. If it is missing, the ImportError names the extra."""
    try:
        return import_module(module)
    except ImportError as error:
        message = f'{module} is not installed. In the folder of st_contrastive, type: pip install ".[{extra}]"'
        raise ImportError(message) from error


def warn(message: str) -> None:
    """Warn at the line of the last caller outside this package and torch."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("st_contrastive", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def first_line(error: BaseException) -> str:
    """The first line of an error's message; the class name if there is no message.

    The next line is added after a colon, and so are the items of a list.
    """
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    if first.endswith(":") and others:
        return f"{first} {others[0].strip()}"
    items = [line.strip() for line in takewhile(lambda line: line.lstrip().startswith("- "), others)]
    return " ".join([first, *items])
