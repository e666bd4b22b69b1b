"""Reads any source of texts (file, folder, hub name, Dataset or sequence) as a Dataset."""

from __future__ import annotations

import csv
import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import datasets
from datasets import Dataset, Features, IterableDataset, concatenate_datasets, load_dataset, load_from_disk
from datasets.exceptions import DatasetGenerationCastError, DatasetGenerationError
from datasets.fingerprint import Hasher
from datasets.table import CastError

from st_contrastive._checks import HELD_OUT, first_line, require_texts, warn
from st_contrastive._file_kinds import COMPRESSIONS, datasets_can_unpack, open_text, require_plain_file, unpacked
from st_contrastive._files import is_path
from st_contrastive.inputs._delimited import Delimited, open_delimited, read_delimited, table_features
from st_contrastive.inputs._lines import read_lines, without_dates

Source: TypeAlias = str | os.PathLike[str] | Dataset | IterableDataset | Iterable[str]
_KINDS = {
    ".txt": "text", ".csv": "csv", ".tsv": "csv", ".tab": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json",
    ".jsonlines": "json", ".jl": "json", ".parquet": "parquet",
}  # fmt: skip
_EXTRACT = "Extract the texts into a .txt file, one per line, or a .csv file, or pass them as a list of strings."
#: Endings of files that are refused. A file with an unknown ending is read line by line.
_NOT_READ = frozenset(
    ".html .htm .xml .tmx .xliff .srt .vtt .pdf .doc .docx .odt .rtf .epub .tex .ppt .pptx .xls .xlsx .ods .arrow .orc "
    ".feather .avro .pkl .pickle .db .sqlite .npy .conllu .ipynb .yaml .yml .zip".split()
)
#: How many rows of a stream show the types of its columns.
_STREAM_HEAD = 100
_SPLIT = re.compile(rf"(train|{HELD_OUT})(set)?([-_]?\d.*)?")
_NAME = "rename it to end in {}, and pass column=... to choose the column of sentences."
#: For each kind of file: patterns that must not match most of its lines, and the error messages.
_WRONG_LINES = {
    "text": {
        r"[^\t]*\t": "has tabs on most lines, so it is a table or a file of pairs: "
        f"{_NAME.format('.tsv')} It needs a heading. For pairs, use load_translations.",
        r'\s*(\{\s*"|\[\s*["{[]|[][{}]+,?\s*$|"[^"]+"\s*:)': f"holds JSON: {_NAME.format('.jsonl or .json')}",
        r"\s*<[a-zA-Z/!?]": f"holds tags of HTML or XML. {_EXTRACT}",
    },
    "json": {
        r'\s*(\[.*\]|".*")\s*$': "holds a list or a string on each line. Write an object with named texts on each "
        'line, such as {"title": "...", "body": "..."}.',
    },
}


def read_table(
    source: Source,
    columns: Sequence[str] = (),
    *,
    heading: bool = True,
    split: str = "train",
    streaming: bool = False,
) -> Any:
    """Read any source that :func:`~st_contrastive.inputs.load_sentences` accepts, as a Dataset or IterableDataset.

    Args:
        columns: columns to read from a CSV, as texts; without them, all columns of text. Other files are read whole.
        heading: False if a .tsv of two columns may lack a heading. Its columns then get the names in ``columns``.
        split: the split to read from the hub or from a saved DatasetDict.
        streaming: return an IterableDataset.
    """
    if isinstance(source, IterableDataset):
        return plain(source)
    if not isinstance(source, (str, os.PathLike, Dataset)):
        texts = list(require_texts("source", source))
        if all(len(text) < 256 and _suffix(Path(text)) in _KINDS for text in texts):
            raise ValueError(f"source is a list of file names, such as {texts[0]!r}. Pass one file or a folder.")
        source = Dataset.from_dict({"sentence": texts})
    if isinstance(source, Dataset):
        return plain(source).to_iterable_dataset() if streaming else plain(source)
    name = os.path.expanduser(os.fspath(source))
    path = Path(name)
    if path.is_symlink() and not path.exists():
        raise FileNotFoundError(f"source {name} is a link to {os.readlink(path)}, which does not exist.")
    if not path.exists() and (is_path(name) or _suffix(path) in {*_KINDS, *_NOT_READ}):
        raise FileNotFoundError(f"source {name} does not exist.")
    with source_errors(name):
        if not path.exists():
            return load_dataset(name, split=split, streaming=streaming)
        has_splits = (path / "dataset_dict.json").is_file()
        if has_splits or (path / "state.json").is_file():
            return read_table(load_from_disk(path / split if has_splits else path), streaming=streaming)
    files = [path] if path.is_file() else _files_in(path)
    kind = _KINDS.get(_suffix(files[0]), "text")
    states = [(os.path.abspath(file), file.stat()) for file in files]
    stamps = [(file, state.st_size, state.st_mtime_ns, state.st_ctime_ns) for file, state in states]
    key = Hasher.hash(stamps)  # part of the cache's name, so that a changed file is read again
    tables: dict[str, tuple[Features, list[Delimited]]] = {}
    first: tuple[str, ...] | None = None  # the first file's columns
    for file in files:
        with source_errors(str(file)):
            _require_kind(file)
            if kind == "csv":
                table = open_delimited(file, _suffix(file), () if heading else columns, streaming)
                first = first or table.names
                if {*columns} & {*first} != {*columns} & {*table.names}:
                    raise ValueError(
                        f"{file} has the columns {', '.join(table.names)}, but {files[0]} has {', '.join(first)}. Give "
                        "all files of a folder the same heading."
                    )
                features = table_features(table, columns, streaming)
                tables.setdefault(str(features), (features, []))[1].append(table)
    with source_errors(name):
        if kind == "csv":
            parts = [read_delimited(same, features, key, streaming) for features, same in tables.values()]
            return concatenate_datasets(parts)
        if kind != "parquet" and not all(map(datasets_can_unpack, files)):
            return read_lines(files, kind, key, streaming)
        paths = [glob.escape(os.path.abspath(file)) for file in files]
        options = {"encoding": "utf-8-sig"} if kind == "text" else {}
        table = load_dataset(kind, key, data_files=paths, split="train", streaming=streaming, **options)
        if kind == "json" and _has_dates(table):
            return read_lines(files, kind, key, streaming, without_dates(table.features))
        return table


def _has_dates(table: Any) -> bool:
    """Whether a column, or a field of an object in it, is read as dates: by its type or, in a stream, its first row."""
    types_or_row = repr(table.features or next(iter(table), {}))
    return "timestamp[" in types_or_row or "datetime." in types_or_row


def source_name(source: Source) -> str:
    """The path or hub name of a source, for messages; "source" if it has no name."""
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else "source"


def read_flat_table(
    source: Source,
    columns: Sequence[str],
    *,
    heading: bool = True,
    split: str | None = None,
    streaming: bool = False,
) -> Any:
    """Like :func:`read_table`, with the fields of objects as columns such as "doc.body".

    Raises:
        ValueError: ``split`` is set, but the source has no splits.
    """
    path = Path(source_name(source)).expanduser()
    is_local = not isinstance(source, (str, os.PathLike)) or path.exists()
    if split is not None and is_local and not (path / "dataset_dict.json").is_file():
        raise ValueError(
            f"split={split!r} is only for names on the hub and saved DatasetDicts. To cut documents, pass segment=...."
        )
    table = read_table(source, columns, heading=heading, split=split or "train", streaming=streaming)
    if isinstance(table, Dataset):
        return table.flatten()
    fields = [name for name in columns if "." in name and name not in (table.column_names or [name])]
    return table.map(partial(_with_fields, fields=fields)) if fields else table


def _with_fields(row: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """A row of a stream with the fields of its objects, such as "doc.body"."""
    found = {}
    for field in fields:
        value: Any = row
        for name in field.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        found[field] = value
    return {**row, **found}


def plain(data: Any) -> Any:
    """The rows of a Dataset without its format. A transform (``set_transform``) is applied once."""
    if not isinstance(data, Dataset) or data.format["type"] != "custom":
        return data.with_format(None)
    options = {"remove_columns": data.column_names, "load_from_cache_file": False, "desc": "apply the transform"}
    return data.map(dict, batched=True, **options).with_format(None)


def _files_in(folder: Path) -> list[Path]:
    """The files of texts in a folder. All must be of one kind and belong to one split."""
    parts = {file: file.relative_to(folder).parts for file in _walk(folder)}
    parts = {file: names for file, names in parts.items() if not any(name[0] == "." for name in names)}
    files = [file for file in parts if file.is_file() and _suffix(file) in _KINDS]
    kinds = sorted({_KINDS[_suffix(file)] for file in files})
    if len(kinds) != 1:
        raise ValueError(
            f"source {folder} must hold files of one kind ({', '.join(_KINDS)}), but holds "
            f"{' and '.join(kinds) or 'none'}. Name one file."
        )
    names = {name.partition(".")[0].lower() for file in files for name in parts[file]}
    last_words = {re.split("[-_]", name)[-1] for name in names}
    if "train" in last_words:  # as in "corpus-train" and "corpus-test"
        names |= last_words
    splits = {match[1] for name in names if (match := _SPLIT.fullmatch(name))}
    if splits - {"train"}:
        raise ValueError(
            f"source {folder} holds the splits {', '.join(sorted(splits))}. Name one file or, in Python, "
            "pass datasets.load_dataset(folder, split=...)."
        )
    if others := [_shown(file, folder) for file in parts if file not in files]:
        shown = ", ".join(others[:5]) + ", ..." * (len(others) > 5)
        warn(f"{folder}: {len(files):,} files are read, and {len(others):,} others are not: {shown}.")
    return files


def _walk(folder: Path) -> list[Path]:
    """All files below a folder and all broken links, sorted. Links to folders are followed, but not to a parent."""
    found, stack = [], [(folder, {folder.resolve()})]
    while stack:
        parent, parents = stack.pop()
        for path in parent.iterdir():
            if not path.is_dir():
                found.append(path)
            elif (real := path.resolve()) not in parents:
                stack.append((path, parents | {real}))
    return sorted(found)


def _shown(path: Path, folder: Path) -> str:
    """The name of an ignored file in a warning."""
    name = str(path.relative_to(folder))
    return name if path.exists() else f"{name} (a link to {os.readlink(path)}, which does not exist)"


def columns_read(data: Any) -> list[str]:
    """The columns that reading a Dataset gives: those of its transform, if it has one."""
    if isinstance(data, Dataset) and data.format["type"] == "custom" and len(data):
        return [*data[0]]
    return [*(getattr(data, "column_names", None) or ())]


def split_columns(columns: str | Sequence[str] | None) -> list[str]:
    """The names of columns. A comma separates two names; a name with a comma is passed in a list."""
    return [name.strip() for name in columns.split(",")] if isinstance(columns, str) else [*(columns or ())]


@contextmanager
def source_errors(name: str) -> Iterator[None]:
    """Add the source and a remedy to errors of the libraries that read it."""
    try:
        yield
    except (DatasetGenerationError, csv.Error, ValueError, OSError, EOFError) as error:
        cause: BaseException = error
        while isinstance(cause, DatasetGenerationError) and cause.__cause__:
            cause = cause.__cause__
        has_file_name = str(getattr(cause, "filename", None)).startswith((name, os.path.abspath(name)))
        if has_file_name or str(cause).startswith(name):  # the message is already complete
            raise cause from None
        if getattr(cause, "errno", None) is not None:
            raise OSError(
                f"The cache of the datasets library, {datasets.config.HF_DATASETS_CACHE}, can't be written: "
                f"{first_line(cause)}. Set the environment variable HF_DATASETS_CACHE to a folder with free space."
            ) from error
        remedy = ""
        if isinstance(cause, UnicodeDecodeError):
            remedy = (
                " It is not UTF-8. Convert it with `iconv -f latin1 -t utf-8`; replace latin1 with its actual encoding."
            )
        elif isinstance(cause, (CastError, DatasetGenerationCastError)):
            remedy = " All rows must have the same columns with cells of the same type. Fix them, or name one file."
        elif not os.path.exists(name):
            remedy = " If a data set on the hub needs options, pass the Dataset that datasets.load_dataset returns."
        raise ValueError(f"source {name} can't be read: {first_line(cause).rstrip('.!')}.{remedy}") from error


def text_columns(table: Any) -> list[str]:
    """Names of the columns of text, without the index of a DataFrame."""
    names = [name for name, kind in column_types(table).items() if kind in ("string", "large_string", "string_view")]
    return [name for name in names if not name.startswith("__index_level_")]


def column_types(table: Any) -> dict[str, str]:
    """Types of a table's columns as they are called in its Features, for example "list of string"."""
    if table.features is None:  # a stream
        kinds = {str: "string", list: "list of string", int: "int64", float: "float64", datetime: "timestamp"}
        first: dict[str, Any] = {}  # the first value of each column that is not None
        for row in islice(table, _STREAM_HEAD):
            first |= {name: value for name, value in row.items() if first.get(name) is None}
        return {name: kinds.get(type(value), type(value).__name__) for name, value in first.items()}
    return {name: _type_name(kind) for name, kind in table.features.items()}


def _type_name(kind: Any) -> str:
    item = getattr(kind, "feature", None)
    return f"list of {_type_name(item)}" if item is not None else str(getattr(kind, "dtype", type(kind).__name__))


#: Names of columns that an error message does not suggest.
_NAME_OF_ID = re.compile(r"(.*[_-])?(id|ids|uuid|key|url)", re.IGNORECASE)


def text_column(table: Any, column: str | None, name: str, remedy: str = "") -> str:
    """Return ``column``, or the only column of text. ``remedy`` is for an error about a table with other columns."""
    columns, kinds = text_columns(table), column_types(table)
    has_lists = "list of string" in kinds.values()
    if column in columns:
        return column
    if column is None and len(columns) == 1 and not has_lists:
        return columns[0]
    argument = "" if column is None else f"column={column!r}: "
    if not columns or has_lists:
        remedy = "Every row must hold one text per column. Use the map method of Dataset to get such rows."
    elif column in kinds:
        remedy = (
            f"Not all cells of {column!r} are read as texts. Write null for missing texts and put the others in "
            "quotes, or pass a Dataset with this column cast to strings."
        )
    elif column is not None and (nearest := get_close_matches(column, columns, n=1)):
        remedy = f"Did you mean column={nearest[0]!r}?"
    elif not remedy:
        choices = [choice for choice in columns if not _NAME_OF_ID.fullmatch(choice)] or columns
        lengths = Counter(dict.fromkeys(choices, 0))
        for row in islice(table, 100):
            lengths.update({choice: len(row[choice] or "") for choice in choices})
        longest, *others = [choice for choice, _ in lengths.most_common()]
        names = [[longest], [others[0], longest]] if others else [[longest]]
        # A name with a comma can only be passed in a list.
        one, *two = (repr(",".join(part) if "," not in "".join(part) else part) for part in names)
        pair = f", or a title and its body, such as columns={two[0]}" if two else ""
        remedy = f"Name one, such as column={one}{pair}."
    holds = "holds" if columns else "has no column of text, only"
    raise ValueError(f"{argument}{name} {holds} {_found_columns(table)}. {remedy}")


def require_column(table: Any, column: str, name: str) -> None:
    """Require that the table has a column of any type."""
    kinds = column_types(table)
    if column not in kinds:
        nearest = get_close_matches(column, kinds, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"{name} has no column {column!r}, only {', '.join(kinds)}.{hint}")


def _found_columns(table: Any) -> str:
    """Names of the non-empty columns of a table, with the type of each column that is not text."""
    texts, kinds = text_columns(table), column_types(table)
    found = [name if name in texts else f"{name} ({kind})" for name, kind in kinds.items() if kind != "null"]
    return ", ".join(found) or "empty ones"


def _fault_of_lines(lines: list[str], kind: str) -> str:
    """The error message for lines that don't belong in a file of this kind; "" if they do."""
    if kind == "json" and lines and re.match(r'\s*\{"[^"]*":\s*\{"0":', lines[0]):
        return 'holds a table by columns. Write it by rows, with pandas\' to_json(path, orient="records", lines=True).'
    checked = lines[1:] if kind == "json" else lines  # the first line may be a whole .json
    for pattern, fault in _WRONG_LINES[kind].items():
        if 2 * sum(bool(re.match(pattern, line)) for line in checked) > len(checked):
            return fault
    for delimiter in ",;" if kind == "text" and lines else "":
        heading, *rows = csv.reader(lines, delimiter=delimiter)
        is_heading = len(heading) > 1 and all(re.fullmatch(r"\w[\w .-]*", cell) for cell in heading)
        if is_heading and sum(len(row) == len(heading) for row in rows) > 0.9 * len(rows):
            return f"is a table of {', '.join(heading)}: {_NAME.format('.csv')}"
    return ""


def _suffix(path: Path) -> str:
    """The ending of a file's name; for a compressed file, the ending of the file inside."""
    name = path.name.lower()
    if name.endswith(".zip") and path.is_file():
        with unpacked(path) as (name, _):
            return Path(name).suffix
    return Path(name.removesuffix(Path(name).suffix) if name.endswith((*COMPRESSIONS,)) else name).suffix


def _require_kind(path: Path) -> None:
    """Refuse a file whose contents don't match the ending of its name."""
    suffix = _suffix(path)
    if suffix in _NOT_READ:
        raise ValueError(f"{path} ends in {suffix}, which can't be read. {_EXTRACT}")
    require_plain_file(path)
    kind = _KINDS.get(suffix, "text")
    if kind in _WRONG_LINES:
        with open_text(path) as file:
            lines = [line for line in file.read(100_000).splitlines() if line.strip()][:100]
        if fault := _fault_of_lines(lines, kind):
            raise ValueError(f"{path} {fault}")
