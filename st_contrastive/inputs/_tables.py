"""Any source of texts as a table of the datasets library: files, folders, hub names, Datasets, sequences."""

from __future__ import annotations

import glob
import gzip
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict, load_dataset
from datasets.exceptions import DatasetGenerationError

from st_contrastive._checks import first_line, require_texts
from st_contrastive._files import is_path, require_plain_file

Source: TypeAlias = "str | os.PathLike[str] | Dataset | IterableDataset | Iterable[str]"
_KINDS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


def read_table(source: Source, streaming: bool = False, pair: tuple[str, str] | None = None) -> Any:
    """The source of :func:`~st_contrastive.inputs.load_sentences` as a Dataset or, with ``streaming``, IterableDataset.

    ``pair`` names the two columns that a .tsv without a heading has.
    """
    if isinstance(source, (DatasetDict, IterableDatasetDict)):
        raise TypeError(f"source is a {type(source).__name__}: give one split, such as source[{next(iter(source))!r}].")
    if isinstance(source, IterableDataset):
        return source
    if not isinstance(source, (str, os.PathLike, Dataset)):
        source = Dataset.from_dict({"sentence": list(require_texts("source", source))})
    if isinstance(source, Dataset):
        return source.to_iterable_dataset() if streaming else source
    name = os.path.expanduser(os.fspath(source))
    path = Path(name)
    for file in [path] if path.is_file() else path.rglob("*"):
        if file == path or _suffix(file) in (".txt", *_KINDS):
            require_plain_file(file)
    if not path.is_file() and not path.is_dir() and (is_path(name) or _suffix(path) in (".txt", *_KINDS)):
        raise FileNotFoundError(f"source {name} is no file or folder.")
    with naming(name):
        if path.is_file():
            options = {**_file_options(path, pair), "data_files": glob.escape(os.path.abspath(name))}
            return load_dataset(**options, split="train", streaming=streaming)
        return load_dataset(name, split="train", streaming=streaming)


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Name the source and the remedy in the errors of the libraries that read it."""
    try:
        yield
    except (DatasetGenerationError, ValueError, OSError, EOFError) as error:
        cause = error.__cause__ if isinstance(error, DatasetGenerationError) and error.__cause__ else error
        if isinstance(cause, UnicodeDecodeError):
            byte = bytes(cause.object[cause.start : cause.start + 1])
            raise ValueError(
                f"{name} is not UTF-8 text: byte {byte.hex()} is {byte.decode('latin1')!r} in Latin-1. Convert it with "
                "`iconv -f latin1 -t utf-8`, naming the encoding that it has."
            ) from error
        remedy = "datasets.load_dataset takes more options; source may be the Dataset that it returns."
        if isinstance(cause, EOFError):
            remedy = "Fetch or compress it again."
        raise ValueError(f"source {name} can't be read: {first_line(cause).rstrip('.!')}. {remedy}") from error


def text_columns(table: Any) -> list[str]:
    """The names of the columns of text."""
    if table.features is not None:
        return [name for name, kind in table.features.items() if getattr(kind, "dtype", "").endswith("string")]
    row: dict[str, Any] = next(iter(table), {})
    return [name for name, value in row.items() if isinstance(value, str)]


def text_column(columns: list[str], column: str | None, name: str) -> str:
    """The column to read: ``column``, or the only one of text."""
    known = ", ".join(columns) or "(none)"
    if column is not None and column not in columns:
        raise ValueError(f"column={column!r}: {name} has no such column of text, only {known}.")
    if column is None and len(columns) != 1:
        raise ValueError(f"{name} has the text columns {known}: say with column=... which one holds the sentences.")
    return column or columns[0]


def is_text_file(source: Any) -> bool:
    """Whether a source is a file that is read line by line."""
    if not isinstance(source, (str, os.PathLike)):
        return False
    path = Path(source).expanduser()
    return path.is_file() and _suffix(path) not in _KINDS


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _file_options(path: Path, pair: tuple[str, str] | None) -> dict[str, Any]:
    """The arguments of load_dataset for a file, by its name's ending."""
    suffix = _suffix(path)
    kind = _KINDS.get(suffix, "text")
    if kind == "text":
        return {"path": kind, "encoding": "utf-8-sig"}
    if kind != "csv":
        return {"path": kind}
    with (gzip.open if path.name.lower().endswith(".gz") else open)(path, "rt", encoding="utf-8-sig") as file:
        heading = file.readline().rstrip("\r\n")
    if suffix == ".csv":  # spreadsheets of many countries write semicolons
        return {"path": kind, "sep": max(",;\t", key=heading.count)}
    options: dict[str, Any] = {"path": kind, "sep": "\t", "quoting": 3}
    cells = heading.split("\t")
    if pair and len(cells) == 2 and not set(pair) <= set(cells) and set(cells) != {"sentence", "translation"}:
        options["column_names"] = list(pair)
    return options
