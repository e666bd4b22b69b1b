"""Selects the rows to train on, and counts the rows that it drops."""

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
class RowCounts:
    """A reader's counts of the rows in the source and of the rows that it dropped."""

    rows: int
    dropped: Mapping[str, int]  #: number of dropped rows by fault
    columns: tuple[str, ...] = ()  #: names of the columns that were read, if the source has names


def set_row_counts(dataset: Dataset, counts: RowCounts | None) -> Dataset:
    """Attach a reader's counts to a Dataset, for :func:`describe`. Datasets derived from it don't have them."""
    dataset.row_counts = counts
    return dataset


def get_row_counts(dataset: Any) -> RowCounts | None:
    """The counts of the reader that returned a Dataset; None for any other Dataset."""
    return getattr(dataset, "row_counts", None)


@dataclass
class RowFilter:
    """Turns batches into rows. Drops and counts empty rows, repeated rows and pairs of equal texts.

    With a language, each text is cut into sentences or, for a pair, into the first sentence and the rest.
    """

    source: str
    columns: list[str]
    names: tuple[str, ...]
    language: str | None = None
    keep_repeats: bool = False
    possible_labels: Sequence[str] = ()  #: columns that may say which pairs belong together
    values: dict[str, list[str]] = field(default_factory=dict)  #: the first few distinct values of each possible label
    uncut: int = 0  #: number of documents that were not cut into sentences
    counts: Counter[str] = field(default_factory=lambda: Counter(rows=0, empty=0))
    seen: dict[int, None] = field(default_factory=dict)

    @property
    def columns_to_read(self) -> list[str]:
        """The columns of the source that a batch must contain."""
        return [*self.columns, *self.possible_labels]

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[str]]:
        for name in self.possible_labels:
            if len(self.values.get(name, ())) <= LABEL_VALUES:  # more values are not a label: skip the conversion
                self._require_one_label(name, batch[name])
        rows: _Rows = list(zip(*(map(present, batch[column]) for column in self.columns), strict=True))
        self.counts["rows"] += len(rows)
        rows = self._keep("empty", rows, all)
        if self.names == PAIR:
            if self.language is not None:
                parts = [self._split(text) for (text,) in rows]
                rows = self._keep("of one sentence", [(first, " ".join(rest)) for first, *rest in parts], all)
            rows = self._keep("of equal texts", rows, lambda row: row[0] != row[1])
        rows = self._keep("repeated", rows, self._is_new)
        if len(self.names) == 1 and self.language is not None:
            rows = [(part,) for (text,) in rows for part in self._split(text)]
            rows = self._keep("repeated sentences", rows, lambda row: self._is_new((*row, "sentence")))
        return {name: [row[index] for row in rows] for index, name in enumerate(self.names)}

    def _split(self, text: str) -> list[str]:
        parts = split_sentences(text, self.language or "en")
        self.uncut += len(parts) == 1 and bool(UNCUT.search(text))
        return parts

    def warn_of_rows(self) -> None:
        """Warn about pairs that may not belong together, and about documents in which no sentence end was found."""
        for name, values in self.values.items():
            if fault := find_negative_labels(name, values, self.counts["rows"]):
                warn(
                    f"{self.source}: the column {name!r} holds {' and '.join(map(repr, values))}, and all rows are "
                    f"read as pairs that belong together. {fault.remedy}"
                )
        if 2 * self.uncut > self.counts["rows"] - self.counts["empty"]:
            warn(
                f"{self.source}: {self.uncut:,} documents were not cut into sentences, because the rules for "
                f"{self.language!r} found no mark that ends one. Thai and Lao have no such marks, and in some texts "
                "only a line break ends a sentence. Cut the documents with a library for their language, or at line "
                "breaks, and provide one sentence per row."
            )

    def _require_one_label(self, name: str, values: list[Any]) -> None:
        """Collect the first few distinct values. A column whose name says that it is a label may have only one."""
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
                    f"would be trained as a pair that belongs together. {fault.remedy}"
                )

    def _keep(self, fault: str, rows: _Rows, is_valid: Callable[[tuple[str, ...]], bool]) -> _Rows:
        kept = [row for row in rows if is_valid(row)]
        self.counts[fault] += len(rows) - len(kept)
        return kept

    def _is_new(self, row: tuple[str, ...]) -> bool:
        key = hash(row)
        if key in self.seen:
            return self.keep_repeats
        self.seen[key] = None
        return True

    def row_counts(self) -> RowCounts:
        """The counts so far."""
        dropped = {kind: count for kind, count in self.counts.items() if kind != "rows"}
        has_names = self.columns not in (["text"], ["sentence"])  # these are used for a source without names
        return RowCounts(self.counts["rows"], dropped, tuple(self.columns) if has_names else ())

    def require_rows(self, count: int) -> None:
        """Refuse a source if over half of its sentences or all of its pairs were dropped."""
        dropped = self.counts["empty"] + self.counts["repeated"]
        if not count or (len(self.names) == 1 and 2 * dropped > self.counts["rows"]):
            columns = f"column={self.columns[0]!r}" if len(self.columns) == 1 else f"columns={tuple(self.columns)}"
            lost = "over half of the rows were dropped" if count else "no rows are left"
            remedy = " If it is, remove the empty and repeated rows first, for example with pandas." if count else ""
            raise ValueError(f"{self.source}: {self}; {lost}. Check that {columns} is right.{remedy}")

    def __str__(self) -> str:
        return ", ".join(f"{number:,} {kind}" for kind, number in self.counts.items())
