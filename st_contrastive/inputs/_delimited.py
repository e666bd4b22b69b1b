"""Tables of fields between separators (.csv, .tsv), read by Python's csv module: no text is cut, lost or merged.

The module is strict: a row with another number of fields than the heading, or with wrong quotes, ends the reading.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets import Features, Value

from st_contrastive._checks import warn
from st_contrastive._files import open_text, unpacked

_BATCH = 250  # rows that are parsed at a time, as many as stay in a processor's cache
_TABLE = 40  # batches of an Arrow table
_SAMPLE = 100_000  # characters
#: Names of columns that say which pairs belong together.
LABEL = re.compile(
    r"(gold_?)?(labels?|scores?)|(is_?)?(duplicates?|paraphrases?|match|same)|similarity|(similarity|relatedness)_score",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[-+]?(\d[\d.,]*|\.\d+)([eE][-+]?\d+)?|true|false|nan", re.IGNORECASE)
#: A sentence, or over six words, which is no name of a column.
_SENTENCE = re.compile(r".*\S\s+\S.*[.!?]|.*[。！？।…]|(\S+\s+){6}.*", re.DOTALL)
_BACKSLASHES = re.compile(r'(\\+)(["\r\n])')
_REMEDY = "Write the file with a CSV writer, such as pandas' to_csv or a spreadsheet's export."


@dataclass(frozen=True)
class Delimited:
    """A file, and how its rows are read."""

    path: Path
    separator: str
    is_quoted: bool  #: fields may stand in double quotes; otherwise a quote is a character like others
    is_escaped: bool = False  #: a backslash escapes a quote (Spark, MySQL); otherwise it is doubled
    names: tuple[str, ...] = ()
    has_heading: bool = True

    @contextmanager
    def rows(self) -> Iterator[Any]:
        """The csv module's reader, behind the heading."""
        with open_text(self.path) as file:
            lines = map(_with_doubled_quotes, file) if self.is_escaped else file
            quoting: Any = csv.QUOTE_MINIMAL if self.is_quoted else csv.QUOTE_NONE
            csv.field_size_limit(2**31 - 1)  # characters; the module's own limit is 131,072
            reader = csv.reader(lines, delimiter=self.separator, quoting=quoting, strict=True)
            if self.has_heading:
                _heading(reader)
            yield reader

    def batches(self) -> Iterator[list[tuple[str, ...]]]:
        """The columns of some rows at a time. Blank lines are no rows.

        Raises:
            ValueError: a row is wrong; the message names its line.
        """
        width = len(self.names)
        with self.rows() as reader:
            while True:
                batch: list[list[str]] | None = None
                with suppress(csv.Error):
                    batch = list(islice(reader, _BATCH))
                if batch == []:
                    return
                if batch is None or {*map(len, batch)} != {width}:
                    if batch is None or any(map(self._is_wrong, batch)):
                        raise ValueError(self.fault())
                    batch = [row[:width] for row in batch if len(row) >= width]
                yield list(zip(*batch, strict=True)) or [()] * width

    def _is_wrong(self, row: list[str]) -> bool:
        """Whether a row has too few fields, or texts beyond the heading's columns."""
        width = len(self.names)
        is_blank = len(row) < 2 and not "".join(row).strip()
        return any(row[width:]) or (len(row) < width and not is_blank)

    def fault(self) -> str:
        """What is wrong with the first wrong row, and the remedy; "" if all are right."""
        with self.rows() as reader:
            line = reader.line_num + 1
            try:
                for row in reader:
                    if self._is_wrong(row):
                        return (
                            f"{self.path}, line {line}: the row has {len(row)} fields, and the heading "
                            f"{len(self.names)} ({', '.join(self.names):.80}). Texts that hold {self.separator!r} or a "
                            f"line break are to be quoted. {_REMEDY}"
                        )
                    line = reader.line_num + 1
            except csv.Error:
                return (
                    f"{self.path}, line {line}: a double quote is not closed, or text follows a closing one; quotes "
                    f"inside a quoted text are doubled. {_REMEDY}"
                )
        return ""


def open_delimited(path: Path, suffix: str, pair: Sequence[str] = ()) -> Delimited:
    """How a file is to be read, as its heading and, where there is a doubt, all its rows say.

    Args:
        pair: names for the two columns of a .tsv that has no heading.
    """
    with open_text(path) as file:
        lines = [line for line in file.read(_SAMPLE).splitlines() if line.strip() and not line.startswith("sep=")]
    # Spreadsheets of many countries write semicolons.
    order = ",;\t|" if suffix == ".csv" else "\t,;|"
    separator = max(order, key=lambda each: len(next(csv.reader(lines[:1], delimiter=each), [])))
    is_quoted = suffix == ".csv" or separator != "\t"
    table = _with_heading(Delimited(path, separator, is_quoted))
    other = None
    if is_quoted and _holds(path, b'\\"') and table.fault():
        other = replace(table, is_escaped=True)
    elif not is_quoted and (_holds(path, b'""') or (_holds(path, b'\t"', b'\n"') and table.fault())):
        other = replace(table, is_quoted=True)  # most .tsv quote nothing, and some as .csv do
    if other is not None and not (other := _with_heading(other)).fault():
        table = other
    named = {*table.names} in ({*pair}, {"sentence", "translation"})
    if pair and suffix != ".csv" and len(table.names) == 2 and not named:
        table = replace(table, names=tuple(pair), has_heading=False)
    return table


def table_features(table: Delimited, texts: Sequence[str]) -> Features:
    """Types of a table's columns: string or, if a column is not read, null.

    Without names of its columns, those with other cells than numbers are texts.
    """
    columns = next(table.batches(), None)
    if columns is None:
        raise ValueError(f"{table.path} has no row below its heading, {', '.join(table.names)!r:.80}.")
    names = table.names
    if texts and {*texts} <= {*names}:
        read = [name for name in names if name in texts or LABEL.fullmatch(name)]
    else:
        of_texts = [any(cell and not _NUMBER.fullmatch(cell) for cell in column) for column in columns]
        read = [name for name, is_text in zip(names, of_texts, strict=True) if is_text]
        numbered = _NUMBER.fullmatch(names[0]) and not all(map(_NUMBER.fullmatch, names))
        if sentences := [name for name in names if _SENTENCE.fullmatch(name)] or (numbered and read):
            raise ValueError(
                f"{table.path} seems to have no heading: its first row is {', '.join(names)!r:.80}. Put a line with "
                f"the columns' names above it. If it is the heading, name the column to read, as {sentences[0]!r:.60}."
            )
        if len(read) == 1 and " " in read[0] and not read[0].startswith("Unnamed: "):
            warn(
                f"{table.path}: its first row is read as the heading, and the texts of the column {read[0]!r}. If this "
                "is a text too, put a line with the column's name above it."
            )
    return Features({name: Value("string" if name in read else "null") for name in names})


def read_delimited(tables: Sequence[Delimited], features: Features, key: str, streaming: bool) -> Any:
    """The rows of files with the same columns as a Dataset or, with ``streaming``, an IterableDataset.

    Args:
        key: names what the files hold now, for the cache.
    """
    builder = _Builder(dataset_name="delimited", config_name=key, features=features, tables=tuple(tables))
    if streaming:
        return builder.as_streaming_dataset(split="train")
    builder.download_and_prepare()
    return builder.as_dataset(split="train")


@dataclass
class _Config(datasets.BuilderConfig):  # type: ignore[misc]
    tables: tuple[Delimited, ...] = ()


class _Builder(datasets.ArrowBasedBuilder):  # type: ignore[misc]
    BUILDER_CONFIG_CLASS = _Config

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo()

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        return [datasets.SplitGenerator(name="train", gen_kwargs={"tables": list(self.config.tables)})]

    def _generate_tables(self, tables: list[Delimited]) -> Iterator[tuple[str, pa.Table]]:
        schema = self.info.features.arrow_schema
        batches = (
            pa.record_batch([_array(*column) for column in zip(columns, schema.types, strict=True)], schema=schema)
            for table in tables
            for columns in table.batches()
        )
        number = 0
        while group := list(islice(batches, _TABLE)):
            yield str(number := number + 1), pa.Table.from_batches(group)


def _array(column: tuple[str, ...], kind: pa.DataType) -> pa.Array:
    return pa.nulls(len(column)) if pa.types.is_null(kind) else pa.array(column, kind)


def _heading(reader: Any) -> list[str]:
    """The first row that is not blank, nor a spreadsheet's line "sep=;"."""
    return next((row for row in reader if "".join(row).strip() and not row[0].startswith("sep=")), [])


def _with_heading(table: Delimited) -> Delimited:
    """The table with the names of its columns, each a different one."""
    with replace(table, has_heading=False).rows() as reader:
        try:
            heading = _heading(reader)
        except csv.Error:
            heading = []
    names: list[str] = []
    for number, name in enumerate(heading):
        name = name.strip() or f"Unnamed: {number}"
        names.append(f"{name}.{number}" if name in names else name)
    return replace(table, names=tuple(names))


def _holds(path: Path, *parts: bytes) -> bool:
    """Whether a file has one of these pairs of bytes."""
    with unpacked(path) as (_, file):
        last = b""
        while block := file.read(2**16):
            if any(part in last + block for part in parts):
                return True
            last = block[-1:]
    return False


def _with_doubled_quotes(line: str) -> str:
    """A line whose quotes are doubled in place of escaped. Other backslashes stay, as Spark leaves them."""
    return _BACKSLASHES.sub(_unescaped, line) if "\\" in line else line


def _unescaped(match: re.Match[str]) -> str:
    count, end = len(match[1]), match[2]
    return "\\" * (count // 2) + ('""' if end == '"' and count % 2 else end)
