"""Rows that are trained on, and the counts of those that are left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from datasets import Dataset

from st_contrastive._checks import warn
from st_contrastive.inputs.faults import LABEL_VALUES, find_mixed_labels, find_negative_labels, present
from st_contrastive.inputs.segments import UNCUT, split_sentences

_Rows: TypeAlias = list[tuple[str, ...]]
#: Columns of two texts that belong together.
PAIR = ("sentence", "other")


@dataclass(frozen=True)
class Reading:
    """What a reader found: the rows of the source, and those that it left out."""

    rows: int
    left_out: Mapping[str, int]  #: numbers of rows by what is wrong with them
    columns: tuple[str, ...] = ()  #: that were read, where the source names them


def set_reading(dataset: Dataset, reading: Reading | None) -> Dataset:
    """Let a Dataset carry what its reader found, for :func:`describe`. Datasets made of it carry nothing."""
    dataset.reading = reading
    return dataset


def get_reading(dataset: Any) -> Reading | None:
    """What the reader of a Dataset found; None for a Dataset from elsewhere."""
    return getattr(dataset, "reading", None)


@dataclass
class RowFilter:
    """Makes rows of batches, and leaves out and counts those that are empty, repeated or equal.

    With a language, each text is cut into its sentences or, for a pair, into the first and the rest.
    """

    source: str
    columns: list[str]
    names: tuple[str, ...]
    language: str | None = None
    repeats: bool = False  #: are kept
    others: Sequence[str] = ()  #: columns that may say which pairs belong together
    values: dict[str, list[str]] = field(default_factory=dict)  #: the first few different ones of each
    uncut: int = 0
    counts: Counter[str] = field(default_factory=lambda: Counter(rows=0, empty=0))
    seen: set[int] = field(default_factory=set)

    @property
    def columns_to_read(self) -> list[str]:
        """The columns of the source that a batch must have."""
        return [*self.columns, *self.others]

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[str]]:
        for name in self.others:
            if len(self.values.get(name, ())) <= LABEL_VALUES:  # otherwise Python's values need not be made of Arrow's
                self._require_one_label(name, batch[name])
        rows: _Rows = list(zip(*(map(present, batch[column]) for column in self.columns), strict=True))
        self.counts["rows"] += len(rows)
        rows = self._kept("empty", rows, all)
        if self.names == PAIR:
            if self.language is not None:
                parts = [self._split(text) for (text,) in rows]
                rows = self._kept("of one sentence", [(first, " ".join(rest)) for first, *rest in parts], all)
            rows = self._kept("of equal texts", rows, lambda row: row[0] != row[1])
        rows = self._kept("repeated", rows, self._is_new)
        if len(self.names) == 1 and self.language is not None:
            rows = [(part,) for (text,) in rows for part in self._split(text)]
            rows = self._kept("repeated sentences", rows, lambda row: self._is_new((*row, "sentence")))
        return {name: [row[index] for row in rows] for index, name in enumerate(self.names)}

    def _split(self, text: str) -> list[str]:
        parts = split_sentences(text, self.language or "en")
        self.uncut += len(parts) == 1 and bool(UNCUT.search(text))
        return parts

    def warn_of_rows(self) -> None:
        """Warn of pairs that may not belong together, and of documents in which no end of a sentence was found."""
        for name, values in self.values.items():
            if fault := find_negative_labels(name, values, self.counts["rows"]):
                warn(
                    f"{self.source}: the column {name!r} holds {' and '.join(map(repr, values))}, and all rows are "
                    f"read as pairs that belong together. {fault.remedy}"
                )
        if 2 * self.uncut > self.counts["rows"] - self.counts["empty"]:
            warn(
                f"{self.source}: {self.uncut:,} documents were not cut into sentences by the rules for "
                f"{self.language!r}: no marks in them end one, as in Thai, in Lao or where a line does. Cut "
                "them by a library for the language, or at line breaks, and give one sentence a row."
            )

    def _require_one_label(self, name: str, values: list[Any]) -> None:
        """Note the first few different values, of which a column named as a label may have one."""
        seen = self.values.setdefault(name, [])
        for row, value in enumerate(map(str, values), self.counts["rows"]):
            if value in seen:
                continue
            seen.append(value)
            if len(seen) > LABEL_VALUES:
                return
            if fault := find_mixed_labels(name, seen):
                raise ValueError(
                    f"{self.source}: the column {name!r} is {seen[0]!r} in row 0 and {value!r} in row {row}. Every row "
                    f"is trained as a pair that belongs together. {fault.remedy}"
                )

    def _kept(self, fault: str, rows: _Rows, is_right: Callable[[tuple[str, ...]], bool]) -> _Rows:
        kept = [row for row in rows if is_right(row)]
        self.counts[fault] += len(rows) - len(kept)
        return kept

    def _is_new(self, row: tuple[str, ...]) -> bool:
        key = hash(row)
        if key in self.seen:
            return self.repeats
        self.seen.add(key)
        return True

    def reading(self) -> Reading:
        """The counts of the rows so far."""
        left_out = {kind: count for kind, count in self.counts.items() if kind != "rows"}
        named = () if self.columns in (["text"], ["sentence"]) else tuple(self.columns)  # of a file without names
        return Reading(self.counts["rows"], left_out, named)

    def require_rows(self, count: int) -> None:
        """Refuse a source most of whose sentences, or all of whose pairs, were left out."""
        lost = self.counts["empty"] + self.counts["repeated"]
        if not count or (len(self.names) == 1 and 2 * lost > self.counts["rows"]):
            columns = f"column={self.columns[0]!r}" if len(self.columns) == 1 else f"columns={tuple(self.columns)}"
            remedy = " If it is, leave them out first, with pandas for example." if count else ""
            raise ValueError(
                f"{self.source}: of {self}, {'few' if count else 'none'} are left. Is {columns} right?{remedy}"
            )

    def __str__(self) -> str:
        return ", ".join(f"{number:,} {kind}" for kind, number in self.counts.items())
