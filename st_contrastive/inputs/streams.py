"""Filters streams. Only this module uses private names of ``datasets``.

``IterableDataset.map`` is not enough: each pass needs a new filter, whose counts are reported at the end of the pass.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from datasets import Features, IterableDataset
from datasets.iterable_dataset import _BaseExamplesIterable

from st_contrastive._checks import warn
from st_contrastive.inputs.row_filter import RowFilter
from st_contrastive.inputs.tables import source_errors

_BATCH = 1000
#: Repeats are found among this many of the last different rows, which bounds the memory.
RECENT_ROWS = 1_000_000


def filter_stream(stream: IterableDataset, row_filter: RowFilter, features: Features) -> IterableDataset:
    """Filter the rows of a stream. Shuffling and setting the epoch still affect the stream inside."""
    filtered = stream.map(features=features)
    filtered._ex_iterable = _FilteredRows(filtered._ex_iterable.ex_iterable, row_filter, features)
    return filtered


class _FilteredRows(_BaseExamplesIterable):  # type: ignore[misc]
    """The filtered examples of an IterableDataset. Each pass uses a new copy of the filter.

    The state is the number of rows returned so far. A resumed pass reads these rows again, because the filter must see
    them to find repeats.
    """

    def __init__(self, ex_iterable: Any, row_filter: RowFilter, features: Features) -> None:
        super().__init__()
        self.ex_iterable = ex_iterable  # datasets looks for nested iterables under this name
        self.row_filter = row_filter
        self._features = features

    def __iter__(self) -> Iterator[tuple[int, dict[str, str]]]:
        state: dict[str, Any] = self._state_dict or {"rows": 0}
        rows: Iterator[dict[str, str]] = islice(self._rows(), state["rows"], None)
        for number, row in enumerate(rows, state["rows"]):
            if self._state_dict:
                self._state_dict["rows"] = number + 1
            yield number, row

    def _rows(self) -> Iterator[dict[str, str]]:
        row_filter, count = copy.deepcopy(self.row_filter), 0
        self.ex_iterable._init_state_dict()  # otherwise datasets would continue where an earlier pass ended
        examples = (example for _, example in self.ex_iterable)
        with source_errors(row_filter.source):
            while batch := list(islice(examples, _BATCH)):
                self._require_texts(batch, row_filter.counts["rows"])
                columns = row_filter({name: [row.get(name) for row in batch] for name in row_filter.columns_to_read})
                rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
                count += len(rows)
                if row_filter.counts["rows"] <= _BATCH:
                    row_filter.require_rows(count)
                for oldest in [*islice(row_filter.seen, max(0, len(row_filter.seen) - RECENT_ROWS))]:
                    del row_filter.seen[oldest]
                yield from rows
        row_filter.warn_of_rows()
        row_filter.require_rows(count)
        warn(f"One pass over {row_filter.source} is complete: {row_filter}. Rows with such a fault were dropped.")

    def _require_texts(self, batch: list[dict[str, Any]], first_row: int) -> None:
        for number, row in enumerate(batch, first_row):
            for column in self.row_filter.columns:
                if not isinstance(value := row.get(column), (str, type(None))):
                    raise ValueError(
                        f"{self.row_filter.source}: row {number} of column {column!r} is not a text but {value!r:.80}. "
                        "Convert it in the stream's map method."
                    )

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = {"rows": 0, "type": type(self).__name__}
        return self._state_dict

    def shuffle_data_sources(self, generator: np.random.Generator) -> _FilteredRows:
        return type(self)(self.ex_iterable.shuffle_data_sources(generator), self.row_filter, self._features)

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> _FilteredRows:
        return self

    def reshard_data_sources(self) -> _FilteredRows:
        return self

    @property
    def num_shards(self) -> int:
        # Files differ in length, so processes that read different files would make different numbers of steps.
        return 1

    @property
    def is_typed(self) -> bool:
        return True

    @property
    def features(self) -> Features:
        return self._features
