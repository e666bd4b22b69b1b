"""Reads .csv and .tsv files with Python's csv module, without cutting, losing or merging texts.

Reading is strict: a row with bad quotes or with a different number of fields than the heading raises an error.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
from datasets import Features, Value

from st_contrastive._checks import warn
from st_contrastive._file_kinds import open_text
from st_contrastive.inputs.faults import LABEL_NAME, LABEL_VALUES

_SAMPLE = 100_000  # characters that are read to find the separator
_HEAD_LINES = 20  # lines that determine the separator
_FIRST = 250  # rows whose cells decide which columns hold texts
_STREAMED = 10_000  # rows that are checked before a file is streamed
_NUMBER = re.compile(r"[-+]?(\d[\d.,]*|\.\d+)([eE][-+]?\d+)?|true|false|nan", re.IGNORECASE)
_WORD = re.compile(r"[\w-]+")
_BACKSLASHES = re.compile(r'(?<!\\)(\\+)(["\r\n])')
_REMEDY = "Write the file with a CSV writer, such as pandas' to_csv or a spreadsheet's export."


@dataclass(frozen=True)
class Delimited:
    """A delimited file, and how to read its rows."""

    path: Path
    separator: str
    is_quoted: bool  #: fields may be in double quotes; otherwise a quote is an ordinary character
    is_escaped: bool = False  #: quotes are escaped by a backslash (Spark, MySQL); otherwise they are doubled
    names: tuple[str, ...] = ()
    has_heading: bool = True

    @contextmanager
    def reader(self) -> Iterator[Any]:
        """Open the file as a csv reader that has already skipped the heading."""
        with open_text(self.path) as file:
            lines = map(_with_doubled_quotes, file) if self.is_escaped else file
            quoting: Any = csv.QUOTE_MINIMAL if self.is_quoted else csv.QUOTE_NONE
            csv.field_size_limit(2**31 - 1)  # characters; the default limit is 131,072
            reader = csv.reader(lines, delimiter=self.separator, quoting=quoting, strict=True)
            if self.has_heading:
                _heading(reader)
            yield reader

    def rows(self) -> Iterator[list[str]]:
        """Yield the cells of each row, one per column of the heading. Blank lines are skipped."""
        width = len(self.names)
        with self.reader() as reader:
            line = reader.line_num + 1
            try:
                for row in reader:
                    is_blank = len(row) < 2 and not "".join(row).strip()
                    if any(row[width:]) or (len(row) < width and not is_blank):
                        raise ValueError(
                            f"{self.path}, line {line}: the row has {len(row)} fields, but the heading has {width} "
                            f"({', '.join(self.names):.80}). Texts that contain {self.separator!r} or a line break "
                            f"must be quoted. {_REMEDY}"
                        )
                    if len(row) >= width:
                        yield row[:width]
                    line = reader.line_num + 1
            except csv.Error:
                raise ValueError(
                    f"{self.path}, line {line}: a double quote is not closed, or text follows a closing quote. Quotes "
                    f"inside a quoted text must be doubled. {_REMEDY}"
                ) from None

    def can_be_parsed(self, max_rows: int | None) -> bool:
        """Whether the first ``max_rows`` rows can be read; with None, all rows."""
        try:
            return all(True for _ in islice(self.rows(), max_rows))
        except ValueError:
            return False


def open_delimited(path: Path, suffix: str, pair: Sequence[str] = (), streaming: bool = False) -> Delimited:
    """Find out how a file must be read: its separator, its quotes and its heading.

    The first lines determine the separator. The file's ending determines how texts are quoted, unless the rows
    contradict it. With ``streaming``, only the first 10,000 rows are checked.

    Args:
        pair: names for the two columns of a .tsv without a heading.
    """
    max_rows = _STREAMED if streaming else None
    with open_text(path) as file:
        lines = [line for line in file.read(_SAMPLE).splitlines() if line.strip() and not line.startswith("sep=")]
    # In many countries, spreadsheets write semicolons.
    order = ",;\t|" if suffix == ".csv" else "\t,;|"
    separator = max(order, key=lambda mark: _separator_score(lines, mark))
    is_quoted = suffix == ".csv" or separator != "\t"
    table = _with_heading(Delimited(path, separator, is_quoted))
    alternatives = [replace(table, is_quoted=True, is_escaped=True)]
    if is_quoted:
        with open_text(path) as file:
            is_doubtful = any('\\"' in line for line in islice(file, max_rows)) and not table.can_be_parsed(max_rows)
    else:  # most .tsv files have no quotes around texts, but some are quoted like .csv files
        alternatives.insert(0, replace(table, is_quoted=True))
        is_doubtful = _seems_quoted(table, max_rows)
    if is_doubtful:
        table = next((other for other in map(_with_heading, alternatives) if other.can_be_parsed(max_rows)), table)
    has_known_names = {*table.names} in ({*pair}, {"sentence", "translation"})
    if pair and suffix != ".csv" and len(table.names) == 2 and not has_known_names and not _seems_named(table):
        table = replace(table, names=tuple(pair), has_heading=False)
    return table


def table_features(table: Delimited, texts: Sequence[str], streaming: bool = False) -> Features:
    """Types of a table's columns: "string" for the columns to read, "null" for the rest.

    The columns ``texts`` and possible labels are read. If ``texts`` is empty or names a missing column, every column
    with a cell that is not a number is read.
    """
    rows = [*islice(table.rows(), _FIRST)]
    if not rows:
        raise ValueError(f"{table.path} has no rows below its heading, {', '.join(table.names)!r:.80}.")
    names = table.names
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    if texts and {*texts} <= {*names}:
        possible_labels = {name for name, cells in columns.items() if len({*cells}) <= LABEL_VALUES}
        read = [name for name in names if name in texts or name in possible_labels or LABEL_NAME.fullmatch(name)]
    else:
        has_text = [any(map(_is_text, cells)) for cells in columns.values()]
        empty = [index for index, cells in enumerate(columns.values()) if not any(cells)]
        more = islice(table.rows(), _FIRST, _STREAMED if streaming else None)
        for row in more if empty else ():  # the first text of a column may come later
            for index in empty:
                has_text[index] |= _is_text(row[index])
        read = [name for name, is_text in zip(names, has_text, strict=True) if is_text]
        has_numbers = _NUMBER.fullmatch(names[0]) and not all(map(_NUMBER.fullmatch, names))
        if sentences := [*filter(_is_sentence, names)] or (has_numbers and read):
            raise ValueError(
                f"{table.path} seems to have no heading: its first row is {', '.join(names)!r:.80}. Add a line with "
                f"column names above it. If it is the heading, name the column to read, such as {sentences[0]!r:.60}."
            )
        if len(read) == 1 and " " in read[0] and not read[0].startswith("Unnamed: "):
            warn(
                f"{table.path}: the first row is taken as the heading, and its column {read[0]!r} is read. If this is "
                "itself a text, add a line with a column name above it."
            )
    return Features({name: Value("string" if name in read else "null") for name in names})


def read_delimited(tables: Sequence[Delimited], features: Features, key: str, streaming: bool) -> Any:
    """Read files with the same columns as one Dataset or, with ``streaming``, as an IterableDataset.

    Args:
        key: identifies the present contents of the files in the cache.
    """
    options: Any = {"gen_kwargs": {"tables": [*tables], "features": features, "key": key}}
    kind = datasets.IterableDataset if streaming else datasets.Dataset
    return kind.from_generator(_generate, features, **options)


def _generate(tables: Sequence[Delimited], features: Features, key: str) -> Iterator[dict[str, str | None]]:
    are_read = [feature.dtype == "string" for feature in features.values()]
    for table in tables:
        for row in table.rows():
            yield {name: cell if is_read else None for name, cell, is_read in zip(features, row, are_read, strict=True)}


def _separator_score(lines: list[str], mark: str) -> tuple[float, int, int]:
    """How well a mark separates the first lines. The mark with the highest score is the separator.

    Compared are, in this order: the share of lines with as many fields as the heading, the number of fields, and how
    many marks in the heading are not followed by a space, as in prose. A mark that is not in the heading has 0.
    """
    try:
        widths = [len(row) for row in csv.reader(lines[:_HEAD_LINES], delimiter=mark) if row]
    except csv.Error:
        widths = [len(row) for row in csv.reader(lines[:1], delimiter=mark)]
    if not widths or widths[0] < 2:
        return 0.0, 0, 0
    without_space = lines[0].count(mark) - lines[0].count(f"{mark} ")
    return widths.count(widths[0]) / len(widths), widths[0], without_space


def _is_sentence(name: str) -> bool:
    """Whether a column name is a sentence or has more than six words."""
    words = name.split(maxsplit=6)
    return len(words) > 6 or name.endswith(tuple("。！？।…")) or (len(words) > 1 and name.endswith((".", "!", "?")))


def _is_text(cell: str) -> bool:
    return bool(cell) and not _NUMBER.fullmatch(cell)


def _heading(reader: Any) -> list[str]:
    """The first row that is neither blank nor a line such as "sep=;", which spreadsheets write."""
    return next((row for row in reader if "".join(row).strip() and not row[0].startswith("sep=")), [])


def _with_heading(table: Delimited) -> Delimited:
    """The table with its column names. Missing and repeated names get a number."""
    with replace(table, has_heading=False).reader() as reader:
        try:
            heading = _heading(reader)
        except csv.Error:
            heading = []
    names = [name.strip() or f"Unnamed: {number}" for number, name in enumerate(heading)]
    while len(set(names)) < len(names):  # a number may make a name that is another column's
        names = [f"{name}.{number}" if names.count(name) > 1 else name for number, name in enumerate(names)]
    return replace(table, names=tuple(names))


def _seems_named(table: Delimited) -> bool:
    """Whether the first row has only single words, such as "German" and "English", and few other rows do."""
    if not all(map(_WORD.fullmatch, table.names)):
        return False
    has_only_words = [all(map(_WORD.fullmatch, row)) for row in islice(table.rows(), _FIRST)]
    return sum(has_only_words) < 0.05 * len(has_only_words)


def _seems_quoted(table: Delimited, max_rows: int | None) -> bool:
    """Whether a table that was opened without quoting seems to be quoted.

    It does if a row can't be read, if a text in quotes contains doubled quotes, or if quotes enclose all texts or
    (Excel) exactly the texts with a comma.
    """
    texts, quoted, as_excel = 0, 0, 0
    try:
        for cell in (cell for row in islice(table.rows(), max_rows) for cell in row if _is_text(cell)):
            is_quoted = len(cell) > 1 and cell[0] == cell[-1] == '"'
            if is_quoted and '""' in cell[1:-1]:
                return True
            texts, quoted, as_excel = texts + 1, quoted + is_quoted, as_excel + (is_quoted == ("," in cell))
    except ValueError:
        return True
    return quoted > 0 and texts in (quoted, as_excel)


def _with_doubled_quotes(line: str) -> str:
    """Double the quotes that a backslash escapes. Other backslashes stay, because Spark does not escape them."""
    return _BACKSLASHES.sub(_unescaped, line) if "\\" in line else line


def _unescaped(match: re.Match[str]) -> str:
    count, end = len(match[1]), match[2]
    return "\\" * (count // 2) + ('""' if end == '"' and count % 2 else end)
