"""Tables of fields between separators (.csv, .tsv), read by Python's csv module: no text is cut, lost or merged.

The module is strict: a row with another number of fields than the heading, or with wrong quotes, ends the reading.
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

_SAMPLE = 100_000  # characters
_FIRST = 250  # rows whose cells tell which columns are texts
_STREAMED = 10_000  # rows that are read of a file before it is streamed
_NUMBER = re.compile(r"[-+]?(\d[\d.,]*|\.\d+)([eE][-+]?\d+)?|true|false|nan", re.IGNORECASE)
_WORD = re.compile(r"[\w-]+")
_BACKSLASHES = re.compile(r'(?<!\\)(\\+)(["\r\n])')
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
    def reader(self) -> Iterator[Any]:
        """The csv module's reader, behind the heading."""
        with open_text(self.path) as file:
            lines = map(_with_doubled_quotes, file) if self.is_escaped else file
            quoting: Any = csv.QUOTE_MINIMAL if self.is_quoted else csv.QUOTE_NONE
            csv.field_size_limit(2**31 - 1)  # characters; the module's own limit is 131,072
            reader = csv.reader(lines, delimiter=self.separator, quoting=quoting, strict=True)
            if self.has_heading:
                _heading(reader)
            yield reader

    def rows(self) -> Iterator[list[str]]:
        """The cells of each row, in the heading's columns. Blank lines are no rows."""
        width = len(self.names)
        with self.reader() as reader:
            line = reader.line_num + 1
            try:
                for row in reader:
                    is_blank = len(row) < 2 and not "".join(row).strip()
                    if any(row[width:]) or (len(row) < width and not is_blank):
                        raise ValueError(
                            f"{self.path}, line {line}: the row has {len(row)} fields, and the heading {width} "
                            f"({', '.join(self.names):.80}). Texts that hold {self.separator!r} or a line break are "
                            f"to be quoted. {_REMEDY}"
                        )
                    if len(row) >= width:
                        yield row[:width]
                    line = reader.line_num + 1
            except csv.Error:
                raise ValueError(
                    f"{self.path}, line {line}: a double quote is not closed, or text follows a closing one; quotes "
                    f"inside a quoted text are doubled. {_REMEDY}"
                ) from None

    def can_be_parsed(self, most: int | None) -> bool:
        """Whether the rows can be read, at most the first ``most``."""
        try:
            return all(True for _ in islice(self.rows(), most))
        except ValueError:
            return False


def open_delimited(path: Path, suffix: str, pair: Sequence[str] = (), streaming: bool = False) -> Delimited:
    """A file, and how its rows must be read. The heading tells, or else all rows; the first 10,000 with ``streaming``.

    Args:
        pair: names for the two columns of a .tsv that has no heading.
    """
    most = _STREAMED if streaming else None
    with open_text(path) as file:
        lines = [line for line in file.read(_SAMPLE).splitlines() if line.strip() and not line.startswith("sep=")]
    # Spreadsheets of many countries write semicolons.
    order = ",;\t|" if suffix == ".csv" else "\t,;|"
    separator = max(order, key=lambda each: len(next(csv.reader(lines[:1], delimiter=each), [])))
    is_quoted = suffix == ".csv" or separator != "\t"
    table = _with_heading(Delimited(path, separator, is_quoted))
    others = [replace(table, is_quoted=True, is_escaped=True)]
    if is_quoted:
        with open_text(path) as file:
            is_doubtful = any('\\"' in line for line in islice(file, most)) and not table.can_be_parsed(most)
    else:  # most .tsv quote nothing, and some as .csv do
        others.insert(0, replace(table, is_quoted=True))
        is_doubtful = _seems_quoted(table, most)
    if is_doubtful:
        table = next((other for other in map(_with_heading, others) if other.can_be_parsed(most)), table)
    named = {*table.names} in ({*pair}, {"sentence", "translation"})
    if pair and suffix != ".csv" and len(table.names) == 2 and not named and not _seems_named(table):
        table = replace(table, names=tuple(pair), has_heading=False)
    return table


def table_features(table: Delimited, texts: Sequence[str], streaming: bool = False) -> Features:
    """Types of a table's columns: string or, if a column is not read, null.

    Without names of its columns, those with other cells than numbers are texts.
    """
    rows = [*islice(table.rows(), _FIRST)]
    if not rows:
        raise ValueError(f"{table.path} has no row below its heading, {', '.join(table.names)!r:.80}.")
    names = table.names
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    if texts and {*texts} <= {*names}:
        has_few = {name for name, cells in columns.items() if len({*cells}) <= LABEL_VALUES}
        read = [name for name in names if name in texts or name in has_few or LABEL_NAME.fullmatch(name)]
    else:
        of_texts = [any(map(_is_text, cells)) for cells in columns.values()]
        empty = [index for index, cells in enumerate(columns.values()) if not any(cells)]
        more = islice(table.rows(), _FIRST, _STREAMED if streaming else None)
        for row in more if empty else ():  # texts may begin later
            for index in empty:
                of_texts[index] |= _is_text(row[index])
        read = [name for name, is_text in zip(names, of_texts, strict=True) if is_text]
        numbered = _NUMBER.fullmatch(names[0]) and not all(map(_NUMBER.fullmatch, names))
        if sentences := [*filter(_is_sentence, names)] or (numbered and read):
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
    options: Any = {"gen_kwargs": {"tables": [*tables], "features": features, "key": key}}
    kind = datasets.IterableDataset if streaming else datasets.Dataset
    return kind.from_generator(_generate, features, **options)


def _generate(tables: Sequence[Delimited], features: Features, key: str) -> Iterator[dict[str, str | None]]:
    are_read = [feature.dtype == "string" for feature in features.values()]
    for table in tables:
        for row in table.rows():
            yield {name: cell if is_read else None for name, cell, is_read in zip(features, row, are_read, strict=True)}


def _is_sentence(name: str) -> bool:
    """Whether a name of a column is a sentence, or has more than six words."""
    words = name.split(maxsplit=6)
    return len(words) > 6 or name.endswith(tuple("。！？।…")) or (len(words) > 1 and name.endswith((".", "!", "?")))


def _is_text(cell: str) -> bool:
    return bool(cell) and not _NUMBER.fullmatch(cell)


def _heading(reader: Any) -> list[str]:
    """The first row that is not blank, nor a spreadsheet's line "sep=;"."""
    return next((row for row in reader if "".join(row).strip() and not row[0].startswith("sep=")), [])


def _with_heading(table: Delimited) -> Delimited:
    """The table with the names of its columns, each a different one."""
    with replace(table, has_heading=False).reader() as reader:
        try:
            heading = _heading(reader)
        except csv.Error:
            heading = []
    names = [name.strip() or f"Unnamed: {number}" for number, name in enumerate(heading)]
    unlike = (f"{name}.{number}" if names.count(name) > 1 else name for number, name in enumerate(names))
    return replace(table, names=tuple(unlike))


def _seems_named(table: Delimited) -> bool:
    """Whether the first row is of single words, as "German" and "English", and hardly another is."""
    if not all(map(_WORD.fullmatch, table.names)):
        return False
    of_words = [all(map(_WORD.fullmatch, row)) for row in islice(table.rows(), _FIRST)]
    return sum(of_words) < 0.05 * len(of_words)


def _seems_quoted(table: Delimited, most: int | None) -> bool:
    """Whether, with quotes read as text, a row is wrong, all texts stand in quotes, or (Excel) just those with a comma,
    or one has doubled quotes."""
    texts, quoted, as_excel = 0, 0, 0
    try:
        for cell in (cell for row in islice(table.rows(), most) for cell in row if _is_text(cell)):
            is_quoted = len(cell) > 1 and cell[0] == cell[-1] == '"'
            if is_quoted and '""' in cell[1:-1]:
                return True
            texts, quoted, as_excel = texts + 1, quoted + is_quoted, as_excel + (is_quoted == ("," in cell))
    except ValueError:
        return True
    return quoted > 0 and texts in (quoted, as_excel)


def _with_doubled_quotes(line: str) -> str:
    """A line whose quotes are doubled in place of escaped. Other backslashes stay, as Spark leaves them."""
    return _BACKSLASHES.sub(_unescaped, line) if "\\" in line else line


def _unescaped(match: re.Match[str]) -> str:
    count, end = len(match[1]), match[2]
    return "\\" * (count // 2) + ('""' if end == '"' and count % 2 else end)
