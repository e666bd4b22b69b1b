"""Any source of texts as a table of the datasets library: files, folders, hub names, Datasets, sequences."""

from __future__ import annotations

import csv
import errno
import glob
import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import datasets
from datasets import Dataset, Features, IterableDataset, Value, concatenate_datasets, load_dataset, load_from_disk
from datasets.exceptions import DatasetGenerationError

from st_contrastive._checks import first_line, require_texts, warn
from st_contrastive._files import COMPRESSIONS, is_path, require_plain_file, unpacked

Source: TypeAlias = "str | os.PathLike[str] | Dataset | IterableDataset | Iterable[str]"
_KINDS = {
    ".txt": "text", ".csv": "csv", ".tsv": "csv", ".tab": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json",
    ".jsonlines": "json", ".jl": "json", ".parquet": "parquet",
}  # fmt: skip
#: Endings of files that hold texts between other things. A file of any other ending is read line by line.
_NOT_LINES = frozenset(
    ".html .htm .xml .tmx .xliff .srt .vtt .pdf .doc .docx .odt .rtf .epub .tex .ppt .pptx .xls .xlsx .ods .arrow "
    ".conllu .ipynb .yaml .yml .tar .tgz .7z .rar .zst .zip".split()
)
_EXTRACT = "Extract the texts into a .txt, one a line, or a .csv, or give them as a list of strings."
_SPLIT = re.compile(r"(train|test|dev|val|valid|validation|eval|trial)([-_]?\d.*)?", re.IGNORECASE)
_NAME = "let its name end in {}, and say with column=... which column holds the sentences."
#: What most lines of a file are that is no text, and the remedy.
_LINES = {
    r"[^\t]*\t": f"has tabs on most lines, so it is a table or a file of pairs: {_NAME.format('.tsv, with a heading')} "
    "load_translations reads pairs.",
    r'\s*(\{\s*"|\[\s*["{[]|[][{}]+,?\s*$|"[^"]+"\s*:)': f"holds JSON: {_NAME.format('.jsonl or .json')}",
    r"\s*<[a-zA-Z/!?]": f"holds tags, as HTML and XML do. {_EXTRACT}",
}


def read_table(
    source: Source,
    columns: Sequence[str] = (),
    *,
    numbers: Sequence[str] = (),
    heading: bool = True,
    split: str = "train",
    streaming: bool = False,
) -> Any:
    """The source of :func:`~st_contrastive.inputs.load_sentences` as a Dataset or, with ``streaming``, IterableDataset.

    Args:
        columns, numbers: the columns of text and of numbers to read of a CSV; all where both are empty. Other kinds of
            files are read whole.
        heading: False if a .tsv of two columns may have none: its columns are then ``columns``.
    """
    if isinstance(source, dict):  # such as a DatasetDict
        raise TypeError(f"source is a {type(source).__name__}: give one of its parts, such as source['train'].")
    if isinstance(source, IterableDataset):
        return unformatted(source)
    if not isinstance(source, (str, os.PathLike, Dataset)):
        texts = list(require_texts("source", source))
        if all(len(text) < 256 and _suffix(Path(text)) in _KINDS for text in texts):
            raise ValueError(f"source is a list of file names, such as {texts[0]!r}: give one file, or a folder.")
        source = Dataset.from_dict({"sentence": texts})
    if isinstance(source, Dataset):
        return unformatted(source).to_iterable_dataset() if streaming else unformatted(source)
    name = os.path.expanduser(os.fspath(source))
    path = Path(name)
    if not path.exists() and (is_path(name) or _suffix(path) in {*_KINDS, *_NOT_LINES}):
        raise FileNotFoundError(f"source {name} is no file or folder.")
    with naming(name):
        if not path.exists():
            return load_dataset(name, split=split, streaming=streaming)
        has_splits = (path / "dataset_dict.json").is_file()
        if has_splits or (path / "state.json").is_file():
            return read_table(load_from_disk(path / split if has_splits else path), streaming=streaming)
    tables: dict[str, tuple[dict[str, Any], list[str]]] = {}
    content = hashlib.sha256()
    for file in [path] if path.is_file() else _files_of(path):
        with naming(str(file)):
            options = _file_options(file, columns, numbers, heading)
            tables.setdefault(str(options), (options, []))[1].append(glob.escape(os.path.abspath(file)))
            with file.open("rb") as opened:
                while block := opened.read(2**20):
                    content.update(block)
    with naming(name):
        # The configuration's name is a part of the cache's: what is read from there is what the files hold now.
        parts = (
            load_dataset(**options, name=content.hexdigest(), data_files=group, split="train", streaming=streaming)
            for options, group in tables.values()
        )
        return concatenate_datasets(list(parts))


def unformatted(data: Any) -> Any:
    """The Dataset with plain rows in place of those of pandas, torch or another library."""
    return data if isinstance(data, Dataset) and data.format["type"] == "custom" else data.with_format(None)


def _files_of(folder: Path) -> list[Path]:
    """The files of text in a folder, which must be of one kind, and of one split."""
    places = {file: file.relative_to(folder).parts for file in sorted(folder.rglob("*")) if file.is_file()}
    places = {file: parts for file, parts in places.items() if not any(part[0] == "." for part in parts)}
    files = [file for file in places if _suffix(file) in _KINDS]
    if not files:
        raise ValueError(f"source {folder} holds no file of {', '.join(_KINDS)}.")
    if len(kinds := sorted({_KINDS[_suffix(file)] for file in files})) > 1:
        raise ValueError(f"source {folder} holds files of {len(kinds)} kinds ({', '.join(kinds)}): name a file in it.")
    names = (part.partition(".")[0] for file in files for part in places[file])
    splits = {match[1].lower() for name in names if (match := _SPLIT.fullmatch(name))}
    if splits - {"train"}:
        raise ValueError(
            f"source {folder} holds the splits {', '.join(sorted(splits))}: name the file to train on, or give "
            "datasets.load_dataset(folder, split=...)."
        )
    if others := [str(file.relative_to(folder)) for file in places if file not in files]:
        shown = ", ".join(others[:5]) + ", ..." * (len(others) > 5)
        warn(f"{folder}: {len(files):,} files are read, and {len(others):,} of other endings are not: {shown}.")
    return files


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Name the source and the remedy in the errors of the libraries that read it."""
    try:
        yield
    except (DatasetGenerationError, csv.Error, ValueError, OSError, EOFError) as error:
        cause = error.__cause__ if isinstance(error, DatasetGenerationError) and error.__cause__ else error
        if isinstance(cause, UnicodeDecodeError):
            byte = bytes(cause.object[cause.start : cause.start + 1])
            raise ValueError(
                f"{name} is not UTF-8 text: byte {byte.hex()} is {byte.decode('latin1')!r} in Latin-1. Convert it with "
                "`iconv -f latin1 -t utf-8`, naming the encoding that it has."
            ) from error
        own = (name, os.path.abspath(name))
        elsewhere = isinstance(cause, OSError) and cause.filename and not str(cause.filename).startswith(own)
        if elsewhere or getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG):
            raise OSError(
                f"The cache of the datasets library, {datasets.config.HF_DATASETS_CACHE}, can't be written: "
                f"{first_line(cause)}. Set the environment variable HF_DATASETS_CACHE to a folder with room."
            ) from error
        if str(cause).startswith(name):  # says all already
            raise
        remedy = "datasets.load_dataset takes more options; source may be the Dataset that it returns."
        remedy = "Fetch or compress it again." if isinstance(cause, EOFError) else remedy
        raise ValueError(f"source {name} can't be read: {first_line(cause).rstrip('.!')}. {remedy}") from error


def text_columns(table: Any) -> list[str]:
    """The names of the columns of text, without the index of a DataFrame."""
    if table.features is not None:
        names = [name for name, kind in table.features.items() if getattr(kind, "dtype", "").endswith("string")]
    else:
        row: dict[str, Any] = next(iter(table), {})
        names = [name for name, value in row.items() if isinstance(value, str)]
    return [name for name in names if not name.startswith("__index_level_")]


def text_column(columns: list[str], column: str | None, name: str) -> str:
    """The column to read: ``column``, or the only one of text."""
    known = ", ".join(columns)
    if not columns:
        raise ValueError(f"{name} has no column of text: make one by datasets' map, and give the Dataset.")
    if column is not None and column not in columns:
        hint = " load_pairs(source, columns=...) makes pairs of two." if "," in column else ""
        raise ValueError(f"column={column!r}: {name} has no such column of text, only {known}.{hint}")
    if column is None and len(columns) != 1:
        raise ValueError(f"{name} has the text columns {known}: name the one to read, such as column={columns[0]!r}.")
    return column or columns[0]


def _require_lines_of_text(path: Path, start: str) -> None:
    """Refuse a file that is read line by line and begins with something else."""
    lines = [line for line in start.splitlines() if line.strip()][:100] or [""]
    for pattern, remedy in _LINES.items():
        if 2 * sum(bool(re.match(pattern, line)) for line in lines) > len(lines):
            raise ValueError(f"{path} {remedy}")
    for delimiter in ",;":
        heading, *rows = csv.reader(lines, delimiter=delimiter)
        named = len(heading) > 1 and all(re.fullmatch(r"\w[\w .-]*", cell) for cell in heading)
        if named and sum(len(row) == len(heading) for row in rows) > 0.9 * len(rows):
            raise ValueError(f"{path} is a table of {', '.join(heading)}: {_NAME.format('.csv')}")


def _suffix(path: Path) -> str:
    """The ending of a file's name, or of what a compressed one holds."""
    name = path.name.lower()
    if name.endswith(".zip") and path.is_file():
        with unpacked(path) as (name, _):
            return Path(name).suffix
    return Path(name.removesuffix(Path(name).suffix) if name.endswith((*COMPRESSIONS,)) else name).suffix


def _file_options(path: Path, columns: Sequence[str], numbers: Sequence[str], heading: bool) -> dict[str, Any]:
    """The arguments of load_dataset for a file, by its name's ending."""
    suffix = _suffix(path)
    kind = _KINDS.get(suffix, "text")
    if suffix in _NOT_LINES:
        raise ValueError(f"{path} ends in {suffix}, which is not read. {_EXTRACT}")
    require_plain_file(path)
    if kind in ("json", "parquet"):
        return {"path": kind}
    with unpacked(path) as (_, opened), io.TextIOWrapper(opened, encoding="utf-8-sig", newline="") as file:
        start = file.read(100_000)  # less than a field of the csv module may have
    if kind == "text":
        _require_lines_of_text(path, start)
        return {"path": kind, "encoding": "utf-8-sig"}
    lines = [line for line in start.splitlines(keepends=True) if line.strip()] or [""]
    # Spreadsheets of many countries write semicolons. Of what pandas takes for missing, words such as "NA" are texts.
    separator = max(",;\t", key=lines[0].count) if suffix == ".csv" else "\t"
    quoting: Any = csv.QUOTE_MINIMAL if suffix == ".csv" else csv.QUOTE_NONE
    options = {"path": kind, "sep": separator, "quoting": quoting, "keep_default_na": False, "na_values": [""]}
    names, cells, *_ = [*csv.reader(lines, delimiter=separator, quoting=quoting), []]
    if len(cells) > len(names):
        raise ValueError(
            f"its first row has {len(cells)} fields, and its heading {len(names)}. Name every column, and quote texts "
            f"that hold {separator!r}"
        )
    wanted = [*columns, *numbers]
    if columns and {*wanted} <= {*names}:  # as text, whatever the cells look like
        kinds = {**dict.fromkeys(columns, Value("string")), **dict.fromkeys(numbers, Value("float64"))}
        options |= {"usecols": wanted, "features": Features(kinds)}
    elif not heading and suffix != ".csv" and len(names) == 2 and {*names} != {"sentence", "translation"}:
        options["column_names"] = wanted
    return options
