"""Reads any source of texts (files, folders, hub names, Datasets, sequences) as a Dataset."""

from __future__ import annotations

import csv
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

import datasets
from datasets import Dataset, Features, IterableDataset, concatenate_datasets, load_dataset, load_from_disk
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher
from datasets.table import CastError

from st_contrastive._checks import HELD_OUT, first_line, require_texts, warn
from st_contrastive._file_kinds import COMPRESSIONS, is_named_as_compressed, open_text, require_plain_file, unpacked
from st_contrastive._files import is_path
from st_contrastive.inputs._delimited import Delimited, open_delimited, read_delimited, table_features
from st_contrastive.inputs._lines import read_lines, without_dates

Source: TypeAlias = str | os.PathLike[str] | Dataset | IterableDataset | Iterable[str]
_KINDS = {
    ".txt": "text", ".csv": "csv", ".tsv": "csv", ".tab": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json",
    ".jsonlines": "json", ".jl": "json", ".parquet": "parquet",
}  # fmt: skip
_EXTRACT = "Extract the texts into a .txt, one a line, or a .csv, or give them as a list of strings."
#: Endings that are not read. A file of any other ending is read line by line.
_NOT_READ = frozenset(
    ".html .htm .xml .tmx .xliff .srt .vtt .pdf .doc .docx .odt .rtf .epub .tex .ppt .pptx .xls .xlsx .ods .arrow .orc "
    ".feather .avro .pkl .pickle .db .sqlite .npy .conllu .ipynb .yaml .yml .zip".split()
)
_SPLIT = re.compile(rf"(train|{HELD_OUT})(set)?([-_]?\d.*)?")
_NAME = "let its name end in {}, and say with column=... which column holds the sentences."
#: By the kind of a file: what most of its lines may not be, and the remedy.
_WRONG_LINES = {
    "text": {
        r"[^\t]*\t": "has tabs on most lines, so it is a table or a file of pairs: "
        f"{_NAME.format('.tsv, with a heading')} load_translations reads pairs.",
        r'\s*(\{\s*"|\[\s*["{[]|[][{}]+,?\s*$|"[^"]+"\s*:)': f"holds JSON: {_NAME.format('.jsonl or .json')}",
        r"\s*<[a-zA-Z/!?]": f"holds tags, as HTML and XML do. {_EXTRACT}",
    },
    "json": {
        r'\s*(\[.*\]|".*")\s*$': "holds a list or a string on each line. Write objects that name the texts, one a "
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
    """The source of :func:`~st_contrastive.inputs.load_sentences` as a Dataset or, with ``streaming``, IterableDataset.

    Args:
        columns: those to read of a CSV, as texts; without them, all of texts. Other kinds of files are read whole.
        heading: False if a .tsv of two columns may have none: its columns are then ``columns``.
        split: of a name on the hub or a saved DatasetDict.
    """
    if isinstance(source, IterableDataset):
        return plain(source)
    if not isinstance(source, (str, os.PathLike, Dataset)):
        texts = list(require_texts("source", source))
        if all(len(text) < 256 and _suffix(Path(text)) in _KINDS for text in texts):
            raise ValueError(f"source is a list of file names, such as {texts[0]!r}: give one file, or a folder.")
        source = Dataset.from_dict({"sentence": texts})
    if isinstance(source, Dataset):
        return plain(source).to_iterable_dataset() if streaming else plain(source)
    name = os.path.expanduser(os.fspath(source))
    path = Path(name)
    if path.is_symlink() and not path.exists():
        raise FileNotFoundError(f"source {name} is a link to {os.readlink(path)}, which does not exist.")
    if not path.exists() and (is_path(name) or _suffix(path) in {*_KINDS, *_NOT_READ}):
        raise FileNotFoundError(f"source {name} does not exist.")
    with naming(name):
        if not path.exists():
            return load_dataset(name, split=split, streaming=streaming)
        has_splits = (path / "dataset_dict.json").is_file()
        if has_splits or (path / "state.json").is_file():
            return read_table(load_from_disk(path / split if has_splits else path), streaming=streaming)
    files = [path] if path.is_file() else _files_in(path)
    kind = _KINDS.get(_suffix(files[0]), "text")
    states = [(os.path.abspath(file), file.stat()) for file in files]
    stamps = [(own, state.st_size, state.st_mtime_ns, state.st_ctime_ns) for own, state in states]
    key = Hasher.hash(stamps)  # a part of the cache's name: what is read from there is what the files hold now
    tables: dict[str, tuple[Features, list[Delimited]]] = {}
    first: tuple[str, ...] | None = None  # the first file's columns
    for file in files:
        with naming(str(file)):
            _require_kind(file)
            if kind == "csv":
                table = open_delimited(file, _suffix(file), () if heading else columns, streaming)
                first = first or table.names
                if {*columns} & {*first} != {*columns} & {*table.names}:
                    raise ValueError(
                        f"{file} has the columns {', '.join(table.names)}, and {files[0]} {', '.join(first)}. Give all "
                        "files of a folder one heading."
                    )
                features = table_features(table, columns, streaming)
                tables.setdefault(str(features), (features, []))[1].append(table)
    with naming(name):
        if kind == "csv":
            parts = [read_delimited(same, features, key, streaming) for features, same in tables.values()]
            return concatenate_datasets(parts)
        if kind != "parquet" and not all(map(is_named_as_compressed, files)):
            return read_lines(files, kind, key, streaming)
        paths = [glob.escape(os.path.abspath(file)) for file in files]
        options = {"encoding": "utf-8-sig"} if kind == "text" else {}
        table = load_dataset(kind, key, data_files=paths, split="train", streaming=streaming, **options)
        if kind == "json" and any("timestamp" in name for name in column_types(table).values()):
            return read_lines(files, kind, key, streaming, without_dates(table.features))
        return table


def source_name(source: Source) -> str:
    """The source's path or hub name, for messages; "source" for one that has none."""
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else "source"


def read_flat_table(
    source: Source,
    columns: Sequence[str],
    *,
    heading: bool = True,
    split: str | None = None,
    streaming: bool = False,
) -> Any:
    """As :func:`read_table`, with the fields of objects as columns such as "doc.body".

    Raises:
        ValueError: ``split`` is named, and the source has no splits.
    """
    path = Path(source_name(source)).expanduser()
    has_none = not isinstance(source, (str, os.PathLike)) or path.exists()
    if split is not None and has_none and not (path / "dataset_dict.json").is_file():
        raise ValueError(f"split={split!r} is for names on the hub and saved DatasetDicts; segment=... cuts documents.")
    table = read_table(source, columns, heading=heading, split=split or "train", streaming=streaming)
    return table.flatten() if isinstance(table, Dataset) else table


def plain(data: Any) -> Any:
    """The rows that a Dataset shows, without its format. A transform (``set_transform``) is applied, once."""
    if not isinstance(data, Dataset) or data.format["type"] != "custom":
        return data.with_format(None)
    options = {"remove_columns": data.column_names, "load_from_cache_file": False, "desc": "apply the transform"}
    return data.map(dict, batched=True, **options).with_format(None)


def _files_in(folder: Path) -> list[Path]:
    """The files of text in a folder, which must be of one kind, and of one split."""
    parts = {file: file.relative_to(folder).parts for file in _walk(folder)}
    parts = {file: names for file, names in parts.items() if not any(name[0] == "." for name in names)}
    files = [file for file in parts if file.is_file() and _suffix(file) in _KINDS]
    kinds = sorted({_KINDS[_suffix(file)] for file in files})
    if len(kinds) != 1:
        raise ValueError(
            f"source {folder} must hold files of one kind ({', '.join(_KINDS)}), and holds "
            f"{' and '.join(kinds) or 'none'}: name a file."
        )
    names = {name.partition(".")[0].lower() for file in files for name in parts[file]}
    last_words = {re.split("[-_]", name)[-1] for name in names}
    if "train" in last_words:  # "corpus-train" and "corpus-test"
        names |= last_words
    splits = {match[1] for name in names if (match := _SPLIT.fullmatch(name))}
    if splits - {"train"}:
        raise ValueError(
            f"source {folder} holds the splits {', '.join(sorted(splits))}: name the file to train on, or give "
            "datasets.load_dataset(folder, split=...)."
        )
    if others := [_shown(file, folder) for file in parts if file not in files]:
        shown = ", ".join(others[:5]) + ", ..." * (len(others) > 5)
        warn(f"{folder}: {len(files):,} files are read, and {len(others):,} others are not: {shown}.")
    return files


def _walk(folder: Path) -> list[Path]:
    """Everything in a folder that is not a folder, sorted. Links to folders are followed, but not back to a parent."""
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
    """A file that is not read, as a warning names it."""
    name = str(path.relative_to(folder))
    return name if path.exists() else f"{name} (a link to {os.readlink(path)}, which does not exist)"


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Name the source and the remedy in the errors of the libraries that read it."""
    try:
        yield
    except (DatasetGenerationError, csv.Error, ValueError, OSError, EOFError) as error:
        cause = error.__cause__ if isinstance(error, DatasetGenerationError) and error.__cause__ else error
        is_of_file = str(getattr(cause, "filename", None)).startswith((name, os.path.abspath(name)))
        if is_of_file or str(cause).startswith(name):  # it says all already
            raise cause from None
        if getattr(cause, "errno", None) is not None:
            raise OSError(
                f"The cache of the datasets library, {datasets.config.HF_DATASETS_CACHE}, can't be written: "
                f"{first_line(cause)}. Set the environment variable HF_DATASETS_CACHE to a folder with room."
            ) from error
        remedy = ""
        if isinstance(cause, UnicodeDecodeError):
            remedy = " It is not UTF-8: convert it with `iconv -f latin1 -t utf-8`, naming the encoding that it has."
        elif isinstance(cause, CastError):
            remedy = (
                " All its rows must have the same columns, and cells of one type in each: name one file, or fix them."
            )
        elif not os.path.exists(name):
            remedy = " For options of a data set on the hub, give the Dataset that datasets.load_dataset returns."
        raise ValueError(f"source {name} can't be read: {first_line(cause).rstrip('.!')}.{remedy}") from error


def text_columns(table: Any) -> list[str]:
    """The names of the columns of text, without the index of a DataFrame."""
    names = [name for name, kind in column_types(table).items() if kind in ("string", "large_string", "string_view")]
    return [name for name in names if not name.startswith("__index_level_")]


def column_types(table: Any) -> dict[str, str]:
    """The types of a table's columns as its Features name them, "list of string" for example."""
    if table.features is None:  # a stream
        kinds = {str: "string", list: "list of string", int: "int64", float: "float64", datetime: "timestamp"}
        return {name: kinds.get(type(value), type(value).__name__) for name, value in next(iter(table), {}).items()}
    return {name: _type_name(kind) for name, kind in table.features.items()}


def _type_name(kind: Any) -> str:
    item = getattr(kind, "feature", None)
    return f"list of {_type_name(item)}" if item is not None else str(getattr(kind, "dtype", type(kind).__name__))


#: Names of columns that are not suggested.
_NAME_OF_ID = re.compile(r"(.*[_-])?(id|ids|uuid|key|url)", re.IGNORECASE)


def text_column(table: Any, column: str | None, name: str, remedy: str = "") -> str:
    """The column to read: ``column``, or the only one of text. The remedy is for a table that has others."""
    columns, kinds = text_columns(table), column_types(table)
    has_lists = "list of string" in kinds.values()
    if column in columns:
        return column
    if column is None and len(columns) == 1 and not has_lists:
        return columns[0]
    given = "" if column is None else f"column={column!r}: "
    if not columns or has_lists:
        remedy = "A row is to hold one text in each column: datasets' map makes such a Dataset."
    elif column in kinds:
        remedy = (
            f"Not all cells of {column!r} are read as texts: write null for a missing one and the others in quotes, "
            "or give a Dataset whose column is cast to strings."
        )
    elif column is not None and (nearest := get_close_matches(column, columns, n=1)):
        remedy = f"Did you mean column={nearest[0]!r}?"
    elif not remedy:
        named = [each for each in columns if not _NAME_OF_ID.fullmatch(each)] or columns
        both = f", or both of a pair: columns={','.join(named[:2])!r}" if column is None and len(named) > 1 else ""
        remedy = f"Name one, such as column={named[0]!r}{both}."
    holds = "holds" if columns else "has no column of text, only"
    raise ValueError(f"{given}{name} {holds} {_found_columns(table)}. {remedy}")


def _found_columns(table: Any) -> str:
    """The names of a table's columns that are not empty, and the types of those that are no text."""
    texts, kinds = text_columns(table), column_types(table)
    found = [name if name in texts else f"{name} ({kind})" for name, kind in kinds.items() if kind != "null"]
    return ", ".join(found) or "empty ones"


def _fault_of_lines(lines: list[str], kind: str) -> str:
    """What lines are that do not belong in a file of this kind, with the remedy; "" if they do."""
    if kind == "json" and lines and re.match(r'\s*\{"[^"]*":\s*\{"0":', lines[0]):
        return 'holds a table by columns. Write its rows: pandas\' to_json(path, orient="records", lines=True).'
    checked = lines[1:] if kind == "json" else lines  # the first line may be a whole .json
    for pattern, fault in _WRONG_LINES[kind].items():
        if 2 * sum(bool(re.match(pattern, line)) for line in checked) > len(checked):
            return fault
    for delimiter in ",;" if kind == "text" and lines else "":
        heading, *rows = csv.reader(lines, delimiter=delimiter)
        named = len(heading) > 1 and all(re.fullmatch(r"\w[\w .-]*", cell) for cell in heading)
        if named and sum(len(row) == len(heading) for row in rows) > 0.9 * len(rows):
            return f"is a table of {', '.join(heading)}: {_NAME.format('.csv')}"
    return ""


def _suffix(path: Path) -> str:
    """The ending of a file's name, or of what a compressed one holds."""
    name = path.name.lower()
    if name.endswith(".zip") and path.is_file():
        with unpacked(path) as (name, _):
            return Path(name).suffix
    return Path(name.removesuffix(Path(name).suffix) if name.endswith((*COMPRESSIONS,)) else name).suffix


def _require_kind(path: Path) -> None:
    """Refuse a file that is not of the kind which its name's ending says."""
    suffix = _suffix(path)
    if suffix in _NOT_READ:
        raise ValueError(f"{path} ends in {suffix}, which is not read. {_EXTRACT}")
    require_plain_file(path)
    kind = _KINDS.get(suffix, "text")
    if kind in _WRONG_LINES:
        with open_text(path) as file:
            lines = [line for line in file.read(100_000).splitlines() if line.strip()][:100]
        if fault := _fault_of_lines(lines, kind):
            raise ValueError(f"{path} {fault}")
