"""Any source of texts as a table of the datasets library: files, folders, hub names, Datasets, sequences."""

from __future__ import annotations

import glob
import gzip
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict, load_dataset, load_from_disk
from datasets.exceptions import DatasetGenerationError

from st_contrastive._checks import first_line, require_texts
from st_contrastive._files import is_path, require_plain_file

Source: TypeAlias = "str | os.PathLike[str] | Dataset | IterableDataset | Iterable[str]"
_KINDS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


def read_table(source: Source, streaming: bool = False, pair: tuple[str, str] | None = None) -> Any:
    """The source as a Dataset or, with ``streaming``, as an IterableDataset.

    Args:
        source: see :func:`~st_contrastive.inputs.load_sentences`.
        streaming: read rows when they are asked for.
        pair: the two columns that are wanted of a table, for a .tsv that may have no heading.

    Raises:
        OSError, TypeError, ValueError: the source can't be read, or is none.
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
    with naming(name):
        if Path(name).is_file():
            require_plain_file(name)
            options = _file_options(Path(name), pair)
            return load_dataset(data_files=glob.escape(os.path.abspath(name)), split="train", streaming=streaming,
                                **options)  # fmt: skip
        if Path(name, "dataset_info.json").is_file() and Path(name, "state.json").is_file():
            saved = load_from_disk(name)
            return saved.to_iterable_dataset() if streaming else saved
        if not Path(name).is_dir() and (is_path(name) or _suffix(Path(name)) in (".txt", *_KINDS)):
            raise FileNotFoundError("there is no such file or folder")
        return load_dataset(name, split="train", streaming=streaming)


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Name the source, what is wrong and the remedy in the errors of the libraries that read it."""
    try:
        yield
    except (DatasetGenerationError, ValueError, OSError) as error:
        cause = error.__cause__ if isinstance(error, DatasetGenerationError) and error.__cause__ else error
        if name in str(cause) and not isinstance(cause, UnicodeDecodeError):
            raise type(cause)(str(cause)) if type(cause) in (ValueError, FileNotFoundError) else cause from None
        if isinstance(cause, UnicodeDecodeError):
            byte = cause.object[cause.start]
            raise ValueError(
                f"{name} is not UTF-8 text: byte {byte:#04x} is {bytes([byte]).decode('latin1')!r} in Latin-1. "
                "Convert it with `iconv -f latin1 -t utf-8`, naming the encoding that it has."
            ) from None
        remedy = "Read it with datasets.load_dataset, which takes more options, and give the Dataset."
        if isinstance(cause, EOFError):
            remedy = "Fetch or compress it again."
        kind = FileNotFoundError if isinstance(cause, FileNotFoundError) else ValueError
        raise kind(f"source {name} can't be read: {first_line(cause).rstrip('.')}. {remedy}") from error


def text_columns(table: Any) -> list[str]:
    """The names of the columns of text."""
    if table.features is not None:
        return [name for name, kind in table.features.items() if getattr(kind, "dtype", "").endswith("string")]
    row = next(iter(table), {})
    return [name for name, value in row.items() if isinstance(value, str)]


def text_column(table: Any, column: str | None, name: str) -> str:
    """The column to read: ``column``, or the only one of text."""
    columns = text_columns(table)
    if column is not None and column not in columns:
        raise ValueError(
            f"column={column!r}: {name} has no such column of text, only {', '.join(columns) or '(none)'}."
        )
    if column is None and len(columns) != 1:
        known = ", ".join(columns) or "(none)"
        raise ValueError(f"{name} has the text columns {known}: say with column=... which one holds the sentences.")
    return column or columns[0]


def require_no_tabs(table: Any, column: str, name: str) -> None:
    """Refuse a text file whose lines are the rows of a table."""
    start = [row[column] for row in islice(table, 100)]
    if 2 * sum("\t" in text for text in start) > len(start):
        raise ValueError(
            f"{name} has tabs on most lines, so it is a table or a file of pairs: let its name end in .tsv, with a "
            "heading, and say with column=... which column holds the sentences. load_translations reads pairs."
        )


def is_text_file(source: Any) -> bool:
    """Whether a source is a file that is read line by line."""
    return isinstance(source, (str, os.PathLike)) and Path(source).is_file() and _suffix(Path(source)) not in _KINDS


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
    with (
        gzip.open(path, "rt", encoding="utf-8-sig")
        if path.name.lower().endswith(".gz")
        else path.open(encoding="utf-8-sig") as file
    ):
        heading = file.readline().rstrip("\r\n")
    if suffix == ".csv":  # spreadsheets of many countries write semicolons
        return {"path": kind, "sep": max(",;\t", key=heading.count)}
    options: dict[str, Any] = {"path": kind, "sep": "\t", "quoting": 3}
    cells = heading.split("\t")
    if pair and len(cells) == 2 and not set(pair) <= set(cells) and set(cells) != {"sentence", "translation"}:
        options["column_names"] = list(pair)
    return options
