"""The layout of evaluation data: ``<set>/<split>.jsonl.gz``, or another ending of a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_SPLIT_NAMES = {"dev": ("dev", "validation", "trial")}
_ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".csv", ".tsv", ".parquet")


def set_folders(folder: str | Path, order: Sequence[str]) -> list[Path]:
    """The folders in ``folder``: those named in ``order`` first, then by name."""
    places = {name: place for place, name in enumerate(order)}
    folders = (path for path in Path(folder).expanduser().iterdir() if path.is_dir())
    return sorted(folders, key=lambda path: (places.get(path.name, len(places)), path.name))


def split_file(folder: Path, split: str) -> Path | None:
    """The file of a split in a set's folder; None if there is none."""
    names = _SPLIT_NAMES.get(split, (split,))
    paths = (folder / f"{name}{ending}" for name in names for ending in _ENDINGS)
    return next((path for path in paths if path.is_file()), None)
