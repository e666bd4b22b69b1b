"""Reads the text and JSON files that the builders of ``datasets`` can't read correctly.

These builders recognize a compressed file only by its name, and turn JSON strings that look like dates into timestamps.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
from datasets import Features, Value

from st_contrastive._file_kinds import open_text, unpacked


def read_lines(
    files: Sequence[Path], kind: str, key: str, streaming: bool, features: Features | None = None
) -> datasets.Dataset | datasets.IterableDataset:
    """Read text files (kind "text") or JSON files (kind "json") as a Dataset. JSON strings stay strings.

    Args:
        key: identifies the present contents of the files in the cache.
        features: types of the columns; None infers them from the first rows.
    """
    features = Features({"text": Value("string")}) if kind == "text" else features
    options: Any = {"gen_kwargs": {"files": [*files], "kind": kind, "features": features, "key": key}}
    dataset = datasets.IterableDataset if streaming else datasets.Dataset
    return dataset.from_generator(_rows, features, **options)


def without_dates(features: Features | None) -> Features | None:
    """Types of columns, with each timestamp replaced by a string."""
    return None if features is None else Features({name: _without_dates(kind) for name, kind in features.items()})


def _without_dates(kind: Any) -> Any:
    if isinstance(kind, dict):
        return {name: _without_dates(inner) for name, inner in kind.items()}
    if (inner := getattr(kind, "feature", None)) is not None:
        return type(kind)(_without_dates(inner))
    return Value("string") if str(getattr(kind, "dtype", "")).startswith("timestamp") else kind


def _rows(files: Sequence[Path], kind: str, features: Features | None, key: str) -> Iterator[dict[str, Any]]:
    for file in files:
        if kind == "text":
            with unpacked(file) as (_, opened), io.TextIOWrapper(opened, "utf-8-sig") as lines:
                yield from ({"text": line.removesuffix("\n")} for line in lines)
        else:
            with open_text(file) as lines:
                for row in _objects(lines):
                    yield row if features is None else {name: row.get(name) for name in features}


def _objects(lines: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list, or one per line. A string in a list becomes an object with the field "text"."""
    first = next((line for line in lines if line.strip()), "")
    if first.lstrip().startswith("["):
        for item in json.loads(first + lines.read()):
            yield {"text": item} if isinstance(item, str) else item
        return
    yield json.loads(first)
    yield from (json.loads(line) for line in lines if line.strip())
