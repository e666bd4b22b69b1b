"""Files of evaluation data, ``<set>/<split>.jsonl.gz`` or another ending of a table, and the hash of a set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path


def set_folders(folder: str | Path, order: Sequence[str]) -> list[Path]:
    """The subfolders of ``folder``: first those in ``order``, then the others by name."""
    ranks = {name: rank for rank, name in enumerate(order)}
    folders = (path for path in Path(folder).expanduser().iterdir() if path.is_dir())
    return sorted(folders, key=lambda path: (ranks.get(path.name, len(ranks)), path.name))


def split_file(folder: Path, split: str) -> Path | None:
    """The file of a split in a set's folder, with any ending. None if there is none."""
    names = ("dev", "validation", "trial") if split == "dev" else (split,)
    return next((path for name in names for path in sorted(folder.glob(f"{name}.*"))), None)


def mean_note(tasks: Sequence[str], papers: Iterable[str]) -> list[str]:
    """A note on which tasks the mean is over, if these are not the papers'."""
    if len(tasks) < 2 or [*tasks] == [*papers]:
        return []
    return [f"The mean is over {', '.join(tasks)}; the papers' is over {', '.join(papers)}."]


def digest(*columns: Iterable[object]) -> str:
    """A hash of the rows of a set, to check that a resumed run has the same set."""
    return hashlib.sha256(json.dumps([[*column] for column in columns]).encode()).hexdigest()[:8]
