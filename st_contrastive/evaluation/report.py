"""Scores of a model, printed as a table and written as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from st_contrastive._files import complete_file

#: Endings of the metrics that are not fractions; the others are shown times 100.
_NOT_FRACTIONS = ("alignment", "uniformity", "information")


@dataclass(frozen=True)
class Score:
    """One number: the ``value`` of ``metric`` on ``split`` of ``task``, over ``size`` items."""

    task: str
    split: str
    metric: str
    value: float
    size: int

    @property
    def shown(self) -> str:
        """The value in a table: times 100 with two decimals; geometry metrics are not multiplied, and have three."""
        return f"{self.value:.3f}" if self.metric.endswith(_NOT_FRACTIONS) else f"{100 * self.value:.2f}"


@dataclass(frozen=True)
class Report:
    """Scores of one model, the ``settings`` that they were computed with, and ``notes`` for the reader."""

    model: str
    scores: tuple[Score, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def value(self, task: str, split: str, metric: str | None = None) -> float:
        """The score of one task and split, of the given metric or of the first.

        Raises:
            KeyError: the report has no such score.
        """
        for score in self.scores:
            if (score.task, score.split) == (task, split) and metric in (None, score.metric):
                return score.value
        raise KeyError(f"{task} ({split}) is not in this report.")

    def mean(self, split: str, metric: str | None = None) -> float:
        """Mean over the tasks with that split, of one metric or, for None, of each task's first; NaN if there are none.

        A set with parts counts once: if the report has scores of the task "cqadupstack", those of
        "cqadupstack/android" and its other parts are left out.
        """
        kept = self._without_parts(split, metric)
        if metric is None:
            kept = list({score.task: score for score in reversed(kept)}.values())
        values = [score.value for score in kept]
        return sum(values) / len(values) if values else float("nan")

    def _without_parts(self, split: str, metric: str | None) -> list[Score]:
        """The scores that a mean is taken over."""
        own = [score for score in self.scores if score.split == split and metric in (None, score.metric)]
        known = {(score.task, score.metric) for score in own}
        return [score for score in own if (score.task.rpartition("/")[0], score.metric) not in known]

    def table(self) -> str:
        """The scores as text, with the mean of each split and metric that several tasks have, and the notes."""
        scores = list(self.scores)
        for split, metric in dict.fromkeys((s.split, s.metric) for s in self.scores):
            own = self._without_parts(split, metric)
            if len(own) > 1:
                scores.append(Score("mean", split, metric, self.mean(split, metric), sum(s.size for s in own)))
        rows = [(s.task, s.split, s.metric, f"{s.size:,}", s.shown) for s in scores]
        return "\n".join([align([("task", "split", "metric", "items", "score"), *rows]), *self.notes])

    def write(self, path: str | Path) -> None:
        """Write the report as JSON, with null for NaN. An existing file is replaced only by the complete new one."""
        target = Path(path).resolve()  # replaces a link's target, not the link
        content = asdict(self)
        for score in content["scores"]:
            score["value"] = score["value"] if math.isfinite(score["value"]) else None
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        with complete_file(target) as partial:
            partial.write_text(text, encoding="utf-8")


def align(rows: Iterable[tuple[str, ...]]) -> str:
    """Columns under their headings, the first row: the first column left-aligned, the others right-aligned."""
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    cells = (
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in lines
    )
    text = ["  ".join(row).rstrip() for row in cells]
    return "\n".join([text[0], "-" * max(map(len, text)), *text[1:]])
