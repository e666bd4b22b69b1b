"""Rows to memory-mapped Datasets: a corpus of any size, without holding it."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset
from datasets.config import HF_DATASETS_CACHE

_ROWS = 5_000  # a record batch
_TOKENS = pa.list_(pa.int32())


def dataset(table: Iterable[tuple[Any, ...]], names: Sequence[str]) -> Dataset:
    """A memory-mapped Dataset of text columns under ``names``."""
    kinds = [pa.string()] * len(names)
    return _opened(_written(_batches(table, kinds), names, kinds))


def dataset_with_tokens(table: Iterable[tuple[str, Any]], names: Sequence[str], padding: int) -> Dataset:
    """A memory-mapped Dataset of texts and int32 rows, these padded to the longest: collators take one width only."""
    kinds = [pa.string(), _TOKENS]
    ragged = _written(_batches(table, kinds), names, kinds)
    width = max((int(_lengths(batch.column(1)).max()) for batch in _read(ragged)), default=0)
    padded = _written((_padded(batch, width, padding) for batch in _read(ragged)), names, kinds)
    ragged.unlink()
    return _opened(padded)


def padded(rows: list[Any], padding: int) -> list[Any]:
    """int32 arrays of unequal lengths, in one width."""
    width = max(len(row) for row in rows)
    return [np.pad(row, (0, width - len(row)), constant_values=padding) for row in rows]


def _batches(table: Iterable[tuple[Any, ...]], kinds: Sequence[pa.DataType]) -> Iterator[list[pa.Array]]:
    rows = iter(table)
    while some := list(itertools.islice(rows, _ROWS)):
        yield [pa.array(values, kind) for values, kind in zip(zip(*some, strict=True), kinds, strict=True)]


def _padded(batch: pa.RecordBatch, width: int, padding: int) -> list[pa.Array]:
    tokens = batch.column(1)
    square = np.full((len(tokens), width), padding, dtype=np.int32)
    square[np.arange(width) < _lengths(tokens)[:, None]] = tokens.flatten().to_numpy()
    offsets = np.arange(0, len(tokens) * width + 1, width, dtype=np.int32)
    return [batch.column(0), pa.ListArray.from_arrays(pa.array(offsets), pa.array(square.ravel()))]


def _lengths(tokens: pa.ListArray) -> Any:
    return np.diff(tokens.offsets.to_numpy())


def _written(batches: Iterable[list[pa.Array]], names: Sequence[str], kinds: Sequence[pa.DataType]) -> Path:
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    handle, name = tempfile.mkstemp(suffix=".arrow", dir=_folder())
    os.close(handle)
    path = Path(name)
    try:
        with pa.OSFile(name, "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for arrays in batches:
                writer.write_batch(pa.record_batch(arrays, schema=schema))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def _read(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
        yield from reader


def _opened(path: Path) -> Dataset:
    return Dataset.from_file(str(path))


@lru_cache(maxsize=1)
def _folder() -> str:
    """This process's folder for them, in datasets' cache where it can be written; removed when the process ends."""
    try:
        Path(HF_DATASETS_CACHE).mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix="st_contrastive-", dir=HF_DATASETS_CACHE)
    except OSError:
        folder = tempfile.mkdtemp(prefix="st_contrastive-")
    owner = os.getpid()
    # A forked worker that ends must leave it.
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder
