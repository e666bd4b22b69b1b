"""Rows of the data files that scores are taken on."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

#: One JSON object a line, under whichever of these endings.
ENDINGS = (".jsonl", ".jsonl.gz", ".json")


class EvaluationDataError(ValueError):
    """A data file or folder that can't be used; the message names it and the cure."""


#: What files of a split are called.
SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "trial", "validation"), "test": ("test",)}


def find(folder: Path, *stems: str) -> Path | None:
    """The data file of that name in a folder, whatever its ending; of several names the first that is there."""
    paths = (folder / f"{stem}{ending}" for stem in stems for ending in ENDINGS)
    return next((path for path in paths if path.is_file()), None)


def read_rows(path: Path, *fields: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Each row of a .jsonl, .jsonl.gz or .json of one object a line, and what to call the row in an error.

    Args:
        path: the file.
        fields: names that every row must have; "a|b" asks for one of two.

    Raises:
        EvaluationDataError: the file can't be read, or a row is none.
    """
    for line, where in read_lines(path):
        yield _row(line, where, fields), where


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line of a text file or .gz that is not blank, and what to call it in an error.

    Raises:
        EvaluationDataError: the file can't be read.
    """
    try:
        with _open_text(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield line.rstrip("\r\n"), f"{path}, line {number}"
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise EvaluationDataError(f"{path} is damaged or cut short ({error}).") from error
    except OSError as error:
        raise EvaluationDataError(f"{path} can't be read: {error.strerror or error}.") from error


def _open_text(path: Path) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _row(line: str, where: str, fields: Sequence[str]) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # also of numbers and nestings that are too long
        raise EvaluationDataError(f"{where} is not JSON ({str(error).splitlines()[0]}).") from error
    if not isinstance(row, dict) or not all(set(field.split("|")) & row.keys() for field in fields):
        names = [field.replace("|", " or ") for field in fields]
        raise EvaluationDataError(f"{where} must be an object with {', '.join(names[:-1])} and {names[-1]}.")
    return row


def text(row: dict[str, Any], field: str, where: str) -> str:
    """A field that must be text.

    Raises:
        EvaluationDataError: it is something else, or nothing that a tokenizer takes.
    """
    value = row[field]
    if not isinstance(value, str):
        raise EvaluationDataError(f"{where}: {field} must be a string, got {value!r:.80}.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise EvaluationDataError(
            f"{where}: {field} holds half of a surrogate pair, which no tokenizer takes."
        ) from None
    return value


def number(row: dict[str, Any], field: str, where: str, *, written: bool = False) -> float:
    """A field that must be a finite number.

    Args:
        row: the row.
        field: its name.
        where: the row's.
        written: take a string of digits too.

    Raises:
        EvaluationDataError: it is none.
    """
    value = row[field]
    try:
        found = math.nan if isinstance(value, bool) or (isinstance(value, str) and not written) else float(value)
    except (TypeError, OverflowError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise EvaluationDataError(f"{where}: {field} must be a finite number, got {value!r:.80}.")
    return found
