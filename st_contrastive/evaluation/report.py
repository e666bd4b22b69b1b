"""Scores of models as values, as a table and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from st_contrastive._files import complete_file

#: Endings of the metrics that are not fractions. All others are multiplied by 100 in tables.
_NOT_FRACTIONS = ("alignment", "uniformity", "information")
_Key = tuple[str, str, str]


@dataclass(frozen=True)
class Score:
    """The ``value`` of a ``metric`` on a ``split`` of a ``task`` with ``size`` items."""

    task: str
    split: str
    metric: str
    value: float
    size: int

    @property
    def key(self) -> _Key:
        return self.task, self.split, self.metric


@dataclass(frozen=True)
class Report:
    """The scores of one model, the ``settings`` they were computed with, and ``notes`` for the reader."""

    model: str
    scores: tuple[Score, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def value(self, task: str, split: str, metric: str | None = None) -> float:
        """The score on a task and split, by a metric or the first one. A KeyError if there is none."""
        found = {score.key[:2]: score.value for score in reversed(self.scores) if metric in (None, score.metric)}
        return found[task, split]

    def mean(self, split: str, metric: str) -> float:
        """Mean over the tasks that have this split and metric; NaN if there are none."""
        values = [score.value for score in self.scores if (score.split, score.metric) == (split, metric)]
        return sum(values) / len(values) if values else math.nan

    def __str__(self) -> str:
        return compare([self])


def compare(reports: Sequence[Report]) -> str:
    """A table of the scores, their means over the tasks that all models share, and notes.

    The other models are compared with the first one.
    """
    names = short_names([report.model for report in reports])
    rows = {score.key: f"{score.size:,}" for report in reports for score in report.scores}
    columns = [{score.key: score.value for score in report.scores} for report in reports]
    for split, metric in dict.fromkeys(key[1:] for key in rows):
        of_metric = [{key for key in column if key[1:] == (split, metric)} for column in columns]
        if len(shared := set.intersection(*filter(None, of_metric))) > 1:
            rows["mean", split, metric] = ""
            for column, keys in zip(columns, of_metric, strict=True):
                if keys:
                    column["mean", split, metric] = sum(column[key] for key in shared) / len(shared)
    head = ["score"] if len(reports) == 1 else [*names, *(f"{name} - {names[0]}" for name in names[1:])]
    lines = [["task", "split", "metric", "items", *head]]
    for key, size in rows.items():
        values = [column.get(key, math.nan) for column in columns]
        changes = [_shown(key, value - values[0], "+") for value in values[1:]]
        lines.append([*key, size, *(_shown(key, value) for value in values), *changes])
    notes = []
    for note in dict.fromkeys(note for report in reports for note in report.notes):
        concerned = [name for name, report in zip(names, reports, strict=True) if note in report.notes]
        notes.append(note if len(concerned) == len(reports) else f"{', '.join(concerned)}: {note}")
    return "\n".join([_aligned(lines), *notes])


def write(reports: Sequence[Report], path: str | Path) -> None:
    """Write a JSON list of reports; see :func:`to_json`. An existing file is replaced only by a complete one."""
    with complete_file(Path(path)) as partial:
        partial.write_text(to_json([asdict(report) for report in reports]) + "\n", encoding="utf-8")


def to_json(value: Any) -> str:
    """The value as JSON that every parser accepts: null for NaN and infinity, text for objects of other types."""
    return json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_finite(each) for each in value]
    if isinstance(value, (np.ndarray, np.generic, Tensor)):
        return _finite(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int)) or value is None else str(value)


def _shown(key: _Key, value: float, sign: str = "") -> str:
    """A fraction times 100 with two decimals; any other value unchanged, with three."""
    return f"{value:{sign}.3f}" if key[2].endswith(_NOT_FRACTIONS) else f"{100 * value:{sign}.2f}"


def short_names(models: Sequence[str]) -> list[str]:
    """The shortest ends of the models' paths that differ from each other."""
    for count in range(1, 20):
        names = ["/".join(Path(model).parts[-count:]) for model in models]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(models, start=1)]


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
