"""Readers of sentences, pairs and translations from any source. Every row that is left out is counted."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

from datasets import Dataset, Features, IterableDataset, Value

from st_contrastive._arguments import checked
from st_contrastive.inputs.faults import LABEL_NAME, strip
from st_contrastive.inputs.row_filter import PAIR, RowFilter, set_reading
from st_contrastive.inputs.segments import get_language, require_language
from st_contrastive.inputs.streams import filter_stream
from st_contrastive.inputs.tables import (
    Source,
    column_types,
    naming,
    read_flat_table,
    read_table,
    source_name,
    text_column,
    text_columns,
)

_TRANSLATED = ("sentence", "translation")
#: Types of columns that are looked into for labels, whatever their names.
_PLAIN = re.compile(r"bool|(u?int|float)\d+|(large_)?string|string_view")
_GRADED = Features({"sentence1": Value("string"), "sentence2": Value("string"), "score": Value("float64")})


@checked
def load_sentences(
    source: Source,
    *,
    column: str | None = None,
    segment: str = "lines",
    repeats: bool = False,
    split: str | None = None,
    streaming: bool = False,
) -> Any:
    """A Dataset with the column ``sentence`` from a file, a hub name, a Dataset or a sequence of strings.

    White space at both ends of a text is removed. Empty texts, those that stand for a missing one, such as "NULL" and
    "nan", and exact repeats are left out and counted; :func:`describe` shows the counts. No text is left out for its
    length.

    Args:
        source: a .csv, .tsv, .json, .jsonl, .parquet or text file, also compressed (.gz, .bz2, .xz, .zip of one file);
            a folder of files of one kind, or of a Dataset's ``save_to_disk``; a name on the hub; a Dataset; or a
            sequence of strings.
        column: the column of text; needed where there are several. A field of objects is "doc.body".
        segment: "lines" takes each row as it is; "sentences" cuts it into sentences, for documents, by rules for
            English, and a language's two-letter code, such as "de", by the rules for it that sentencex has.
        repeats: keep exact repeats, as the papers do.
        split: the split to read of a name on the hub or a saved DatasetDict; None for "train".
        streaming: read the rows when training asks for them, and return an IterableDataset. Repeats are found within a
            million rows. The counts come as a warning at the end of each pass. The first 10,000 rows of a .csv or .tsv
            decide how it is quoted.

    Raises:
        OSError, ValueError: the source can't be read, is something else than its name says, or over half of its rows
            are empty or repeated.

    Example:
        >>> load_sentences(["A cat sleeps.", "", "It rains.", "A cat sleeps.", "It snows."])["sentence"][:]
        ['A cat sleeps.', 'It rains.', 'It snows.']
    """
    language = get_language(segment)
    columns = () if column is None else (column,)
    name, table = source_name(source), read_flat_table(source, columns, split=split, streaming=streaming)
    column = text_column(table, column, name)
    return _cleaned(table, RowFilter(name, [column], ("sentence",), language, repeats))


@checked
def load_pairs(
    source: Source,
    *,
    columns: str | Sequence[str] = ("title", "body"),
    pairs: Literal["columns", "first"] = "columns",
    language: str = "en",
    split: str | None = None,
    streaming: bool = False,
) -> Any:
    """A Dataset with the columns ``sentence`` and ``other``, for SimCSELoss: two texts that belong together.

    White space at both ends of a text is removed. Rows with an empty text, pairs of equal texts and repeated pairs are
    left out and counted; :func:`describe` shows the counts. Arguments that are not named here are as for
    :func:`load_sentences`.

    Args:
        columns: the two columns of text, also as "title,body".
        pairs: "first" pairs the first sentence of each document with the rest of it, for documents without titles.
            ``columns`` then names the one column of documents, and may be left out where there is only one of text.
            Documents of one sentence are left out and counted.
        language: by whose rules "first" finds the sentence.

    Raises:
        ValueError: the source has a column of labels, such as "label", whose values differ: all rows would be trained
            as pairs that belong together. Others that may be labels are warned of.

    Example:
        >>> load_pairs(["Cats sleep. They dream, too."], pairs="first")[0]
        {'sentence': 'Cats sleep.', 'other': 'They dream, too.'}
    """
    names = [name.strip() for name in columns.split(",")] if isinstance(columns, str) else list(columns)
    if pairs == "columns":
        hint = ' To pair the first sentence of the documents of one column with the rest, add pairs="first".'
        _require_two("columns", names, hint)
    name, table = source_name(source), read_flat_table(source, names, split=split, streaming=streaming)
    if pairs == "first":
        column = text_column(table, names[0] if len(names) == 1 else None, name)
        return _cleaned(table, RowFilter(name, [column], PAIR, require_language("language", language)))
    for column in names:
        remedy = 'Name two of columns; for documents without titles, name their column and add pairs="first".'
        text_column(table, column, name, remedy)
    kinds = {column: kind for column, kind in column_types(table).items() if column not in names}
    others = [column for column, kind in kinds.items() if LABEL_NAME.fullmatch(column) or _PLAIN.fullmatch(kind)]
    return _cleaned(table, RowFilter(name, names, PAIR, others=others))


def load_translations(source: Source, *, languages: Sequence[str] = ("en", "de")) -> Dataset:
    """A Dataset with the columns ``sentence`` and ``translation``.

    White space at both ends of a text is removed. Rows without one of the two are left out and counted;
    :func:`describe` shows the count.

    Args:
        source: as for :func:`load_sentences`, of pairs. A .tsv of two columns needs no heading; ``paste`` makes one of
            two text files with as many lines.
        languages: the columns of the sentence and of the translation, which may be fields under ``translation``, as in
            data sets of the hub. A table with the columns ``sentence`` and ``translation`` needs none.
    """
    _require_two("languages", languages)
    name, table = source_name(source), read_flat_table(source, languages, heading=False)
    known = text_columns(table)
    choices = (languages, [f"translation.{language}" for language in languages], _TRANSLATED)
    columns = next((names for names in choices if {*names} <= {*known}), languages)
    for column in columns:
        remedy = "Name the sentence's and the translation's by languages=...; a text file of pairs is to end in .tsv."
        text_column(table, column, name, remedy)
    return _cleaned(table, RowFilter(name, [*columns], _TRANSLATED, repeats=True))


def load_graded_pairs(source: Source, *, split: str = "validation") -> Dataset:
    """A Dataset with the columns ``sentence1``, ``sentence2`` and ``score``, of every row.

    Args:
        source: as for :func:`load_sentences`, with these columns.
        split: the split to read of a name on the hub.

    Raises:
        ValueError: a text is empty or a score no finite number; the message names the row.
    """
    name = source_name(source)
    table = read_table(source, [*_GRADED], split=split)
    if missing := [column for column in _GRADED if column not in (found := column_types(table))]:
        raise ValueError(
            f"{name} has the columns {', '.join(found)}, and no {missing[0]!r}: graded pairs have sentence1, sentence2 "
            "and score."
        )
    table = table.select_columns([*_GRADED])
    rows = []
    for number, row in enumerate(table):
        score = _number(row["score"])
        for column, value in row.items():
            is_right = math.isfinite(score) if column == "score" else isinstance(value, str) and strip(value)
            if not is_right:
                wanted = "a number with a decimal point, such as 3.5" if column == "score" else "a text"
                raise ValueError(
                    f"{name}, row {number}: {column} must be {wanted}, got {value!r:.80}. Fix the row or leave it out."
                )
        rows.append({**row, "score": score})
    return Dataset.from_list(rows, features=_GRADED)


def _number(value: Any) -> float:
    """The number, nan if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _require_two(argument: str, names: Sequence[str], hint: str = "") -> None:
    if len(names) != 2 or len({*names}) != 2:
        raise ValueError(f"{argument} must be two names, got {names!r}.{hint}")


def _cleaned(table: Any, row_filter: RowFilter) -> Any:
    """The rows of a table that are right, and the counts of the others."""
    features = Features({name: Value("string") for name in row_filter.names})
    if isinstance(table, IterableDataset):
        return filter_stream(table, row_filter, features)
    with naming(row_filter.source):
        data = table.map(
            row_filter, batched=True, batch_size=10_000, features=features, remove_columns=table.column_names,
            load_from_cache_file=False, desc=f"read {row_filter.source}",
        )  # fmt: skip
    row_filter.warn_of_rows()
    row_filter.require_rows(len(data))
    return set_reading(data, row_filter.reading())
