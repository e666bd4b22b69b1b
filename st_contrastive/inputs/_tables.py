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
_PREFIX = "st_contrastive-"


def dataset(table: Iterable[tuple[str, ...]], names: Sequence[str]) -> Dataset:
    """A memory-mapped Dataset of text columns under ``names``."""
    schema = pa.schema([(name, pa.string()) for name in names])
    return _written(([pa.array(column) for column in zip(*rows, strict=True)] for rows in _some(table)), schema)


def dataset_with_labels(table: Iterable[tuple[list[str], Any]]) -> Dataset:
    """A memory-mapped Dataset of ``sentence`` and ``label``, from batches of texts and int32 arrays (texts, width)."""
    schema = pa.schema([("sentence", pa.string()), ("label", pa.list_(pa.int32()))])
    return _written(([pa.array(texts), _lists(labels)] for texts, labels in table), schema)


def _some(table: Iterable[tuple[str, ...]]) -> Iterator[list[tuple[str, ...]]]:
    rows = iter(table)
    while some := list(itertools.islice(rows, _ROWS)):
        yield some


def _lists(labels: Any) -> pa.ListArray:
    count, width = labels.shape
    offsets = np.arange(0, count * width + 1, width, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(labels.ravel()))


def _written(batches: Iterable[list[pa.Array]], schema: pa.Schema) -> Dataset:
    handle, name = tempfile.mkstemp(suffix=".arrow", dir=_folder())
    os.close(handle)
    path = Path(name)
    source = _Source(batches)
    try:
        with pa.OSFile(name, "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for arrays in source:
                writer.write_batch(pa.record_batch(arrays, schema=schema))
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError) and not source.failed:
            reason = os.strerror(error.errno) if error.errno else error
            raise OSError(
                f"The data can't be written to {path.parent}: {reason}. Make room there, or set HF_DATASETS_CACHE to a "
                "folder that has some."
            ) from error
        raise
    return Dataset.from_file(name)


class _Source:
    """The batches, and whether an error came of them and not of writing."""

    def __init__(self, batches: Iterable[list[pa.Array]]) -> None:
        self.batches = batches
        self.failed = False

    def __iter__(self) -> Iterator[list[pa.Array]]:
        try:
            yield from self.batches
        except Exception:
            self.failed = True
            raise


_locks: list[Any] = []


def _locked(folder: Path) -> Any:
    """An exclusive lock on the folder; None where another process has it, or the system has none."""
    try:
        import fcntl

        file = (folder / "lock").open("a")
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def _sweep(cache: Path) -> None:
    """Remove what killed processes left: folders whose lock nobody holds."""
    for folder in cache.glob(f"{_PREFIX}*"):
        if (folder / "lock").exists() and (lock := _locked(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            lock.close()


@lru_cache(maxsize=1)
def _folder() -> str:
    """This process's folder for them, in datasets' cache where it can be written; removed when the process ends."""
    try:
        Path(HF_DATASETS_CACHE).mkdir(parents=True, exist_ok=True)
        _sweep(Path(HF_DATASETS_CACHE))
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=HF_DATASETS_CACHE)
    except OSError:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
    _locks.append(_locked(Path(folder)))  # held for as long as the process lives
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: str, owner: int) -> None:
    if os.getpid() != owner:  # a forked worker that ends must leave it
        return
    shutil.rmtree(folder, ignore_errors=True)
    for lock in _locks:
        if lock is not None:
            lock.close()
