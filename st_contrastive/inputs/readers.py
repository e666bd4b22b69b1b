"""Readers of sentences, pairs and translations from any source. They count every row that they drop."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

from datasets import Dataset, Features, IterableDataset, Value

from st_contrastive._arguments import checked
from st_contrastive.inputs.faults import LABEL_NAME, strip
from st_contrastive.inputs.row_filter import PAIR, RowFilter, set_row_counts
from st_contrastive.inputs.segments import get_language, require_language
from st_contrastive.inputs.streams import filter_stream
from st_contrastive.inputs.tables import (
    Source,
    column_types,
    read_flat_table,
    read_table,
    source_errors,
    source_name,
    split_columns,
    text_column,
    text_columns,
)

_TRANSLATED = ("sentence", "translation")
#: Types of columns that may be labels, whatever their names.
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

    White space at both ends of a text is removed. Empty texts, placeholders for a missing text, such as "NULL" and
    "nan", and exact repeats are dropped and counted; :func:`describe` shows the counts. No text is dropped for its
    length.

    Args:
        source: a .csv, .tsv, .json, .jsonl, .parquet or text file, also compressed (.gz, .bz2, .xz, .zip of one file);
            a folder of files of one kind, or one that a Dataset's ``save_to_disk`` wrote; a name on the hub; a
            Dataset; or a sequence of strings.
        column: the column of text; required if there are several. The field of an object is written "doc.body".
        segment: "lines" keeps each row whole. "sentences" cuts documents into sentences by sentencex's rules for
            English; a two-letter code, such as "de", uses the rules for that language.
        repeats: keep exact repeats, as the papers do.
        split: the split to read from the hub or from a saved DatasetDict; None reads "train".
        streaming: return an IterableDataset, which reads rows only when training needs them. Repeats are found within a
            million rows. A warning at the end of each pass reports the counts. The first 10,000 rows of a .csv or .tsv
            determine how it is quoted.

    Raises:
        OSError, ValueError: the source can't be read, its contents don't match its name, or over half of its rows are
            empty or repeated.

    Example:
        >>> load_sentences(["A cat sleeps.", "", "It rains.", "A cat sleeps.", "It snows."])["sentence"][:]
        ['A cat sleeps.', 'It rains.', 'It snows.']
    """
    language = get_language(segment)
    columns = () if column is None else (column,)
    name, table = source_name(source), read_flat_table(source, columns, split=split, streaming=streaming)
    column = text_column(table, column, name)
    return _filter_rows(table, RowFilter(name, [column], ("sentence",), language, keep_repeats=repeats))


@checked
def load_pairs(
    source: Source,
    *,
    columns: str | Sequence[str] = ("title", "body"),
    pairs: Literal["columns", "first"] = "columns",
    language: str = "en",
    repeats: bool = False,
    split: str | None = None,
    streaming: bool = False,
) -> Any:
    """A Dataset with the columns ``sentence`` and ``other``, for SimCSELoss: two texts that belong together.

    White space at both ends of a text is removed. Rows with an empty text, pairs of equal texts and repeated pairs are
    dropped and counted; :func:`describe` shows the counts. The other arguments are the same as in
    :func:`load_sentences`.

    Args:
        columns: the two columns of text, also as "title,body".
        pairs: "first" pairs the first sentence of each document with the rest of it, for documents without titles.
            ``columns`` then names the column of documents; it is optional if there is only one column of text.
            Documents of one sentence are dropped and counted.
        language: two-letter code of the language whose rules "first" uses to find the end of the first sentence.

    Raises:
        ValueError: the source has a column of labels, such as "label", with different values: all rows would be trained
            as pairs that belong together. A column that may be a label under another name causes a warning.

    Example:
        >>> load_pairs(["Cats sleep. They dream, too."], pairs="first")[0]
        {'sentence': 'Cats sleep.', 'other': 'They dream, too.'}
    """
    names = split_columns(columns)
    if pairs == "first" and len(names) > 1 and names != ["title", "body"]:  # these are the default
        raise ValueError(
            f"pairs='first' reads one column of documents, got columns={columns!r}. Name one of them, or remove "
            "pairs='first' to pair the two columns."
        )
    if pairs == "columns":
        hint = ' To pair the first sentence of each document with the rest of it, pass pairs="first".'
        _require_two("columns", names, hint)
    name, table = source_name(source), read_flat_table(source, names, split=split, streaming=streaming)
    if pairs == "first":
        column = text_column(table, names[0] if len(names) == 1 else None, name)
        return _filter_rows(
            table, RowFilter(name, [column], PAIR, require_language("language", language), keep_repeats=repeats)
        )
    for column in names:
        remedy = 'Name two of them. For documents without titles, name only their column and pass pairs="first".'
        text_column(table, column, name, remedy)
    kinds = {column: kind for column, kind in column_types(table).items() if column not in names}
    possible_labels = [
        column for column, kind in kinds.items() if LABEL_NAME.fullmatch(column) or _PLAIN.fullmatch(kind)
    ]
    return _filter_rows(table, RowFilter(name, names, PAIR, possible_labels=possible_labels, keep_repeats=repeats))


def load_translations(source: Source, *, languages: Sequence[str] = ("en", "de")) -> Dataset:
    """A Dataset with the columns ``sentence`` and ``translation``.

    White space at both ends of a text is removed. Rows in which one of the two is missing are dropped and
    counted; :func:`describe` shows the count.

    Args:
        source: as for :func:`load_sentences`, but with pairs. A .tsv with two columns needs no heading; ``paste`` joins
            two text files with the same number of lines into one.
        languages: the column of the sentence and the column of its translation. They may be fields of ``translation``,
            as in data sets on the hub. Not needed if the columns are called ``sentence`` and ``translation``.
    """
    _require_two("languages", languages)
    name, table = source_name(source), read_flat_table(source, languages, heading=False)
    known = text_columns(table)
    choices = (languages, [f"translation.{language}" for language in languages], _TRANSLATED)
    columns = next((names for names in choices if {*names} <= {*known}), languages)
    for column in columns:
        remedy = "Pass both column names as languages=...; the name of a text file of pairs must end in .tsv."
        text_column(table, column, name, remedy)
    return _filter_rows(table, RowFilter(name, [*columns], _TRANSLATED, keep_repeats=True))


def load_graded_pairs(source: Source, *, split: str = "validation") -> Dataset:
    """A Dataset with the columns ``sentence1``, ``sentence2`` and ``score``. No row is dropped.

    Args:
        source: as for :func:`load_sentences`, with these columns.
        split: the split to read from the hub.

    Raises:
        ValueError: a text is empty, or a score is not a finite number; the message names the row.
    """
    name = source_name(source)
    table = read_table(source, [*_GRADED], split=split)
    if missing := [column for column in _GRADED if column not in (found := column_types(table))]:
        raise ValueError(
            f"{name} has the columns {', '.join(found)}, but no {missing[0]!r}. Graded pairs need sentence1, sentence2 "
            "and score."
        )
    table = table.select_columns([*_GRADED])
    rows = []
    for number, row in enumerate(table):
        score = _number(row["score"])
        for column, value in row.items():
            is_valid = math.isfinite(score) if column == "score" else isinstance(value, str) and strip(value)
            if not is_valid:
                wanted = "a number with a decimal point, such as 3.5" if column == "score" else "a text"
                raise ValueError(
                    f"{name}, row {number}: {column} must be {wanted}, got {value!r:.80}. Fix or remove the row."
                )
        rows.append({**row, "score": score})
    return Dataset.from_list(rows, features=_GRADED)


def _number(value: Any) -> float:
    """The value as a number; nan if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _require_two(argument: str, names: Sequence[str], hint: str = "") -> None:
    if len(names) != 2 or len({*names}) != 2:
        raise ValueError(f"{argument} must be two names, got {names!r}.{hint}")


def _filter_rows(table: Any, row_filter: RowFilter) -> Any:
    """Apply the filter to a table. The Dataset carries the filter's counts, and a stream reports them at its end."""
    features = Features({name: Value("string") for name in row_filter.names})
    if isinstance(table, IterableDataset):
        return filter_stream(table, row_filter, features)
    with source_errors(row_filter.source):
        data = table.map(
            row_filter, batched=True, batch_size=10_000, features=features, remove_columns=table.column_names,
            load_from_cache_file=False, desc=f"read {row_filter.source}",
        )  # fmt: skip
    row_filter.warn_of_rows()
    row_filter.require_rows(len(data))
    return set_row_counts(data, row_filter.row_counts())
