"""Scores as plain frozen data: printed as a table, written as JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Score:
    """One number: ``value`` of ``metric`` on ``split`` of ``task``, over ``size`` items."""

    task: str
    split: str
    metric: str
    value: float
    size: int


@dataclass(frozen=True)
class Report:
    """Scores of one model, and how they were taken (``settings``)."""

    model: str
    scores: tuple[Score, ...]
    settings: dict[str, Any] = field(default_factory=dict)

    def value(self, task: str, split: str) -> float:
        """The score of one task and split.

        Raises:
            KeyError: the report has none.
        """
        for score in self.scores:
            if (score.task, score.split) == (task, split):
                return score.value
        raise KeyError(f"{task} ({split}) is not in this report.")

    def mean(self, split: str) -> float:
        """Mean over the tasks with that split; NaN where there is none."""
        values = [score.value for score in self.scores if score.split == split]
        return sum(values) / len(values) if values else float("nan")

    def table(self) -> str:
        """The scores x 100 as text, with the mean of each split that several tasks have."""
        rows = [(s.task, s.split, f"{s.size:,}", f"{100 * s.value:.2f}") for s in self.scores]
        for split in dict.fromkeys(s.split for s in self.scores):
            tasks = [s for s in self.scores if s.split == split]
            if len(tasks) > 1:
                rows.append(("mean", split, f"{sum(s.size for s in tasks):,}", f"{100 * self.mean(split):.2f}"))
        metrics = " / ".join(dict.fromkeys(s.metric for s in self.scores))
        return align([("task", "split", "items", metrics), *rows])

    def write(self, path: str | Path) -> None:
        """Write the report as JSON, NaN as null; a file that was there stays whole until the new one is complete."""
        target = Path(path).resolve()  # a link stays one
        made = [place for place in target.parents if not place.exists()]
        content = asdict(self)
        for score in content["scores"]:
            score["value"] = score["value"] if math.isfinite(score["value"]) else None
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            partial.replace(target)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
                for place in made:  # the innermost first
                    place.rmdir()
            raise


def align(rows: Iterable[tuple[str, ...]]) -> str:
    """Columns under a heading: the first left-aligned, the others right-aligned."""
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    cells = (
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in lines
    )
    text = ["  ".join(row).rstrip() for row in cells]
    return "\n".join([text[0], "-" * max(map(len, text)), *text[1:]])
