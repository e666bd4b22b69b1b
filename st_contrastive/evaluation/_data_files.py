"""Reads the data files that models are scored on."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from st_contrastive._checks import first_line, require_encodable

#: Endings of a file with one JSON object a line.
ENDINGS = (".jsonl", ".jsonl.gz", ".json")
#: Names that the file of a split may have.
SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "trial", "validation"), "test": ("test",)}


class EvaluationDataError(ValueError):
    """A data file or folder can't be used. The message names it, and says what to do."""


def require_folder(folder: str | Path, content: str) -> Path:
    """The folder as a path.

    Raises:
        EvaluationDataError: it is not a folder; the message says what it must hold.
    """
    root = Path(folder)
    if not root.is_dir():
        raise EvaluationDataError(f"{root} is not a folder. It must hold {content}.")
    return root


def folders_in(root: Path, order: Sequence[str] = (), spelled: Callable[[str], str] = str) -> list[Path]:
    """The folders in ``root``: those whose name, as ``spelled`` writes it, is in ``order`` first, then by name."""
    places = {name: place for place, name in enumerate(order)}
    folders = (path for path in root.iterdir() if path.is_dir())
    return sorted(folders, key=lambda path: (places.get(spelled(path.name), len(places)), path.name))


def find(folder: Path, *stems: str) -> Path | None:
    """The first data file in the folder with one of these names, whatever its ending."""
    paths = (folder / f"{stem}{ending}" for stem in stems for ending in ENDINGS)
    return next((path for path in paths if path.is_file()), None)


def read_rows(path: Path, *fields: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Each row of a file with one JSON object a line, and the name of its place for error messages.

    Args:
        path: the file.
        fields: names that every row must have; "a|b" requires one of the two.

    Raises:
        EvaluationDataError: the file can't be read, or a row is not such an object.
    """
    for line, where in read_lines(path):
        yield _row(line, where, fields), where


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line of a text file or .gz that is not blank, and the name of its place for error messages.

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
    # "utf-8-sig" drops a byte order mark at the start.
    return gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else path.open(encoding="utf-8-sig")


def _row(line: str, where: str, fields: Sequence[str]) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise EvaluationDataError(f"{where} is not JSON ({first_line(error)}).") from error
    if not isinstance(row, dict) or not all(set(field.split("|")) & row.keys() for field in fields):
        names = [field.replace("|", " or ") for field in fields]
        raise EvaluationDataError(f"{where} must be an object with {', '.join(names[:-1])} and {names[-1]}.")
    return row


def text(row: dict[str, Any], field: str, where: str) -> str:
    """A field that must be text which a tokenizer can read.

    Raises:
        EvaluationDataError: it is not.
    """
    value = row[field]
    if not isinstance(value, str):
        raise EvaluationDataError(f"{where}: {field} must be a string, got {value!r:.80}.")
    try:
        require_encodable(f"{where}: {field}", value)
    except ValueError as error:
        raise EvaluationDataError(str(error)) from None
    return value


def number(row: dict[str, Any], field: str, where: str, *, parse: bool = False) -> float:
    """A field that must be a finite number; with ``parse``, a string of digits will do.

    Raises:
        EvaluationDataError: it is not.
    """
    value = row[field]
    try:
        found = math.nan if isinstance(value, bool) or (isinstance(value, str) and not parse) else float(value)
    except (TypeError, OverflowError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise EvaluationDataError(f"{where}: {field} must be a finite number, got {value!r:.80}.")
    return found
