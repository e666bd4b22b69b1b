"""The layout of evaluation data: ``<set>/<split>.jsonl`` or ``.jsonl.gz``, one JSON object a line."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from st_contrastive._checks import first_line, require_encodable, require_string
from st_contrastive._files import require_plain_file

#: The names that the file of a split may have.
SPLIT_NAMES = {"dev": ("dev", "validation", "trial")}


class EvaluationDataError(ValueError):
    """A data file or folder can't be used."""


def set_folders(folder: str | Path, example: str, order: Sequence[str]) -> list[Path]:
    """The folders in ``folder``: those named in ``order`` first, then by name.

    Raises:
        EvaluationDataError: it is not a folder.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise EvaluationDataError(f"{root} is not a folder. It must hold one folder per set, such as {example}.")
    places = {name: place for place, name in enumerate(order)}
    folders = (path for path in root.iterdir() if path.is_dir())
    return sorted(folders, key=lambda path: (places.get(path.name, len(places)), path.name))


def split_file(folder: Path, split: str) -> Path | None:
    """The file of a split in a set's folder; None if there is none."""
    names = SPLIT_NAMES.get(split, (split,))
    paths = (folder / f"{name}{ending}" for name in names for ending in (".jsonl", ".jsonl.gz", ".json"))
    return next((path for path in paths if path.is_file()), None)


def read_rows(path: Path, *fields: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Each row of a file, and its place for error messages. Every row must have the fields.

    Raises:
        EvaluationDataError: the file can't be read, or a row is not such an object.
    """
    try:
        require_plain_file(path)
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _row(line, f"{path}, line {number}", fields), f"{path}, line {number}"
    except EvaluationDataError:
        raise
    except FileNotFoundError as error:
        raise EvaluationDataError(f"There is no file {path}.") from error
    except (EOFError, OSError, zlib.error, ValueError) as error:
        raise EvaluationDataError(f"{path} can't be read: {first_line(error)}") from error


def _row(line: str, where: str, fields: Sequence[str]) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise EvaluationDataError(f"{where} is not JSON ({first_line(error)}).") from error
    if not isinstance(row, dict) or not set(fields) <= row.keys():
        raise EvaluationDataError(f"{where} must be an object with the fields {', '.join(fields)}.")
    return row


def text(row: dict[str, Any], field: str, where: str) -> str:
    """A field that must be text which a tokenizer can read."""
    try:
        require_string(f"{where}: {field}", row[field])
        require_encodable(f"{where}: {field}", row[field])
    except (TypeError, ValueError) as error:
        raise EvaluationDataError(str(error)) from None
    return str(row[field])


def number(row: dict[str, Any], field: str, where: str) -> float:
    """A field that must be a finite number."""
    value = row[field]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise EvaluationDataError(f"{where}: {field} must be a finite number, got {value!r:.80}.")
    return float(value)
