"""Any source of texts as a table of the datasets library: files, folders, hub names, Datasets, sequences."""

from __future__ import annotations

import csv
import glob
import gzip
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from datasets import (
    Dataset,
    DatasetDict,
    Features,
    IterableDataset,
    IterableDatasetDict,
    Value,
    concatenate_datasets,
    load_dataset,
)
from datasets.exceptions import DatasetGenerationError

from st_contrastive._checks import first_line, require_texts
from st_contrastive._files import is_path, require_plain_file

Source: TypeAlias = "str | os.PathLike[str] | Dataset | IterableDataset | Iterable[str]"
_KINDS = {".txt": "text", ".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
_SPLIT = re.compile(r"(train|test|dev|val|valid|validation|eval|trial)([-_]?\d.*)?", re.IGNORECASE)


def read_table(source: Source, columns: Sequence[str] = (), *, streaming: bool = False) -> Any:
    """The source of :func:`~st_contrastive.inputs.load_sentences` as a Dataset or, with ``streaming``, IterableDataset.

    ``columns`` are those to read, all where it is empty. Two name those of a .tsv of pairs without a heading.
    """
    if isinstance(source, (DatasetDict, IterableDatasetDict)):
        raise TypeError(f"source is a {type(source).__name__}: give one split, such as source[{next(iter(source))!r}].")
    if isinstance(source, IterableDataset):
        return source
    if not isinstance(source, (str, os.PathLike, Dataset)):
        texts = list(require_texts("source", source))
        if all(len(text) < 256 and _suffix(Path(text)) in _KINDS for text in texts):
            raise ValueError(f"source is a list of file names, such as {texts[0]!r}: give one file, or a folder.")
        source = Dataset.from_dict({"sentence": texts})
    if isinstance(source, Dataset):
        return source.to_iterable_dataset() if streaming else source
    name = os.path.expanduser(os.fspath(source))
    path = Path(name)
    if not path.exists():
        if is_path(name) or _suffix(path) in _KINDS:
            raise FileNotFoundError(f"source {name} is no file or folder.")
        with naming(name):
            return load_dataset(name, split="train", streaming=streaming)
    tables: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for file in [path] if path.is_file() else _files_of(path):
        require_plain_file(file)
        with naming(str(file)):
            options = _file_options(file, columns)
            tables.setdefault(str(options), (options, []))[1].append(glob.escape(os.path.abspath(file)))
    with naming(name):
        parts = (
            load_dataset(**options, data_files=group, split="train", streaming=streaming)
            for options, group in tables.values()
        )
        return concatenate_datasets(list(parts))


def _files_of(folder: Path) -> list[Path]:
    """The files of text in a folder, which must be of one kind, and of one split."""
    places = {file: file.relative_to(folder).parts for file in sorted(folder.rglob("*")) if _suffix(file) in _KINDS}
    files = [file for file, parts in places.items() if file.is_file() and not any(part[0] == "." for part in parts)]
    kinds = sorted({_KINDS[_suffix(file)] for file in files})
    if (folder / "state.json").is_file():
        raise ValueError(f"source {folder} is a saved Dataset: give datasets.load_from_disk(folder).")
    if not files:
        raise ValueError(f"source {folder} holds no file of {', '.join(_KINDS)}.")
    if len(kinds) > 1:
        raise ValueError(f"source {folder} holds files of {len(kinds)} kinds ({', '.join(kinds)}): name a file in it.")
    names = (part.partition(".")[0] for file in files for part in places[file])
    splits = {match[1].lower() for name in names if (match := _SPLIT.fullmatch(name))}
    if splits - {"train"}:
        raise ValueError(
            f"source {folder} holds the splits {', '.join(sorted(splits))}: name the file to train on, or give "
            "datasets.load_dataset(folder, split=...)."
        )
    return files


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
    known = ", ".join(columns)
    if not columns:
        raise ValueError(f"{name} has no column of text: make one by datasets' map, and give the Dataset.")
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
    return path.is_file() and _KINDS.get(_suffix(path), "text") == "text"


def _suffix(path: Path) -> str:
    return Path(path.name.lower().removesuffix(".gz")).suffix


def _file_options(path: Path, columns: Sequence[str]) -> dict[str, Any]:
    """The arguments of load_dataset for a file, by its name's ending."""
    suffix = _suffix(path)
    kind = _KINDS.get(suffix, "text")
    if kind != "csv":
        return {"path": kind, "encoding": "utf-8-sig"} if kind == "text" else {"path": kind}
    # Of what pandas takes for missing, words such as "NA" are texts.
    options: dict[str, Any] = {"path": kind, "sep": "\t", "keep_default_na": False, "na_values": [""]}
    quoting: Any = csv.QUOTE_NONE if suffix == ".tsv" else csv.QUOTE_MINIMAL
    with (gzip.open if path.name.lower().endswith(".gz") else open)(path, "rt", encoding="utf-8-sig") as file:
        heading = next(filter(str.strip, file), "").rstrip("\r\n")
        if suffix == ".csv" and re.fullmatch("sep=.", heading):  # Excel's
            options |= {"sep": heading[-1], "skiprows": 1}
        else:
            file.seek(0)
            if suffix == ".csv":  # spreadsheets of many countries write semicolons
                options["sep"] = max(",;\t", key=heading.count)
        rows = filter(None, csv.reader(file, delimiter=options["sep"], quoting=quoting))
        cells, first = [], []
        with suppress(csv.Error):  # a text of over 100,000 characters
            cells, first = next(rows, []), next(rows, [])
    if len(first) > len(cells):
        raise ValueError(
            f"its first row has {len(first)} fields, and its heading {len(cells)}. Name every column, and quote texts "
            f"that hold {options['sep']!r}"
        )
    options["quoting"] = quoting
    if (
        suffix == ".tsv"
        and len(columns) == len(cells) == 2
        and not {*columns} <= {*cells}
        and {*cells} != {"sentence", "translation"}
    ):
        options["column_names"] = list(columns)
    elif columns and {*columns} <= {*cells}:  # as text, whatever the cells look like
        options |= {"usecols": list(columns), "features": Features({name: Value("string") for name in columns})}
    return options
