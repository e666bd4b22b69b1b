"""Memory-mapped Datasets from rows of any number, which are never all in memory."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset
from datasets.config import HF_DATASETS_CACHE

from st_contrastive._files import complete_file

_BATCH_ROWS = 5_000


def dataset(table: Iterable[tuple[str, ...]], names: Sequence[str]) -> Dataset:
    """A memory-mapped Dataset of text columns with these names."""
    rows = iter(table)
    batches = iter(lambda: list(islice(rows, _BATCH_ROWS)), [])
    schema = pa.schema([(name, pa.string()) for name in names])
    return _written((zip(*batch, strict=True) for batch in batches), schema)


def dataset_with_labels(batches: Iterable[tuple[list[str], Any]]) -> Dataset:
    """A memory-mapped Dataset of ``sentence`` and ``label``, from batches of texts and int32 arrays (texts, width)."""
    schema = pa.schema([("sentence", pa.string()), ("label", pa.list_(pa.int32()))])
    return _written(((texts, list(labels)) for texts, labels in batches), schema)


def _written(batches: Iterable[Iterable[Sequence[Any]]], schema: pa.Schema) -> Dataset:
    """The Dataset of a new file, from batches of columns."""
    path = Path(_folder(), f"{uuid.uuid4().hex}.arrow")
    source_failed = False

    def source() -> Iterator[Iterable[Sequence[Any]]]:
        nonlocal source_failed
        try:
            yield from batches
        except Exception:
            source_failed = True
            raise

    try:
        with (
            complete_file(path) as partial,
            pa.OSFile(str(partial), "wb") as file,
            pa.ipc.new_stream(file, schema) as writer,
        ):
            for columns in source():
                arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
                writer.write_batch(pa.record_batch(arrays, schema=schema))
    except OSError as error:
        if source_failed:
            raise
        reason = os.strerror(error.errno) if error.errno else error
        raise OSError(
            f"The data can't be written to {path.parent}: {reason}. Make room there, or set HF_DATASETS_CACHE to a "
            "folder that has some."
        ) from error
    return Dataset.from_file(str(path))


@lru_cache(maxsize=1)
def _folder() -> str:
    """This process's folder, in datasets' cache if that can be written; removed when the process ends.

    A process that is killed leaves it behind. No other process uses it, so it can be deleted.
    """
    try:
        Path(HF_DATASETS_CACHE).mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix="st_contrastive-", dir=HF_DATASETS_CACHE)
    except OSError:
        folder = tempfile.mkdtemp(prefix="st_contrastive-")
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not when a forked process ends
        shutil.rmtree(folder, ignore_errors=True)
