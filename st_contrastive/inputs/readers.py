"""Sentences, pairs and translations from any source; each row is accounted for."""

from __future__ import annotations

import copy
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from datasets import Dataset, Features, IterableDataset, Value

from st_contrastive._checks import require_choice, require_flag, require_languages, warn
from st_contrastive.inputs._tables import Source, naming, read_table, text_column, text_columns

_Rows: TypeAlias = list[tuple[str, ...]]
_PAIR, _TRANSLATED = ("sentence", "other"), ("sentence", "translation")
_GRADED = Features({"sentence1": Value("string"), "sentence2": Value("string"), "score": Value("float64")})


def load_sentences(
    source: Source, *, column: str | None = None, segment: str = "lines", repeats: bool = False, streaming: bool = False
) -> Any:
    """A Dataset with the column ``sentence`` from a file, a hub name, a Dataset or a sequence of strings.

    White space at both ends of a text is removed. Empty texts and exact repeats are left out and counted;
    :func:`describe` shows the counts. No text is left out for its length.

    Args:
        source: a .csv, .tsv, .json, .jsonl, .parquet or text file, also compressed (.gz, .bz2, .xz, .zip of one file);
            a folder of files of one kind, or of a Dataset's ``save_to_disk``; a name on the hub, whose split "train" is
            read; a Dataset; or a sequence of strings.
        column: the column of text; needed where there are several. A field of objects is "doc.body".
        segment: "lines" takes each row as it is; "sentences" cuts it into sentences, for documents, by rules for
            English, and a language's code, such as "de", by rules for that language.
        repeats: keep exact repeats, as the papers do.
        streaming: read the rows when training asks for them, and return an IterableDataset. The counts come as a
            warning at the end of each pass.

    Raises:
        OSError, ValueError: the source can't be read, is something else than its name says, or over half of its rows
            are empty or repeated.

    Example:
        >>> load_sentences(["A cat sleeps.", "", "It rains.", "A cat sleeps.", "It snows."])["sentence"][:]
        ['A cat sleeps.', 'It rains.', 'It snows.']
    """
    require_flag("repeats", repeats)
    language = get_language(segment)
    if column is not None and not isinstance(column, str):
        raise ValueError(f"column={column!r}: name one column. load_pairs(source, columns=...) makes pairs of two.")
    name, table, known = _table(source, () if column is None else (column,), streaming)
    column = text_column(known, column, name)
    return _cleaned(table, RowFilter(name, [column], ("sentence",), language, repeats))


def load_pairs(
    source: Source,
    *,
    columns: str | Sequence[str] = ("title", "body"),
    pairs: str = "columns",
    language: str = "en",
    streaming: bool = False,
) -> Any:
    """A Dataset with the columns ``sentence`` and ``other``, for SimCSELoss: two texts that belong together.

    White space at both ends of a text is removed. Rows with an empty text, pairs of equal texts and repeated pairs are
    left out and counted; :func:`describe` shows the counts.

    Args:
        source: as for :func:`load_sentences`.
        columns: the two columns of text, also as "title,body".
        pairs: "first" pairs the first sentence of each document with the rest of it, for documents without titles.
            ``columns`` then names the one column of documents, and may be left out where there is only one of text.
            Documents of one sentence are left out and counted.
        language: by whose rules "first" finds the sentence.
        streaming: as for :func:`load_sentences`.

    Example:
        >>> load_pairs(["Cats sleep. They dream, too."], pairs="first")[0]
        {'sentence': 'Cats sleep.', 'other': 'They dream, too.'}
    """
    require_choice("pairs", pairs, ("columns", "first"))
    names = [name.strip() for name in columns.split(",")] if isinstance(columns, str) else list(columns)
    if pairs == "columns" and (len(names) != 2 or len({*names}) != 2):
        raise ValueError(
            f'columns must be two names, such as ("title", "body"), got {columns!r}. To pair the first sentence of the '
            'documents of one column with the rest, add pairs="first".'
        )
    name, table, known = _table(source, names, streaming)
    if pairs == "first":
        column = text_column(known, names[0] if len(names) == 1 else None, name)
        return _cleaned(table, RowFilter(name, [column], _PAIR, require_language("language", language)))
    if missing := [column for column in names if column not in known]:
        raise ValueError(
            f"columns={columns!r}: {name} has no column of text {missing[0]!r}, only {', '.join(known) or '(none)'}. "
            'Name two of them; for documents without titles, name their column and add pairs="first".'
        )
    return _cleaned(table, RowFilter(name, names, _PAIR))


def load_translations(source: Source, *, languages: tuple[str, str] = ("en", "de")) -> Dataset:
    """A Dataset with the columns ``sentence`` and ``translation``.

    White space at both ends of a text is removed. Rows without one of the two are left out and counted;
    :func:`describe` shows the count.

    Args:
        source: as for :func:`load_sentences`, of pairs. A .tsv of two columns needs no heading; ``paste`` makes one of
            two text files with as many lines.
        languages: the columns of the sentence and of the translation, which may be fields under ``translation``, as in
            data sets of the hub. A table with the columns ``sentence`` and ``translation`` needs none.
    """
    require_languages(languages)
    name, table, known = _table(source, languages, False, heading=False)
    for fields in (languages, tuple(f"translation.{language}" for language in languages), _TRANSLATED):
        if {*fields} <= {*known}:
            return _cleaned(table, RowFilter(name, list(fields), _TRANSLATED, repeats=True))
    columns = ", ".join(column.removeprefix("translation.") for column in known) or "(none)"
    raise ValueError(
        f"languages={languages!r}: {name} has the text columns {columns}. Name the sentence's and the translation's; a "
        "text file of pairs needs a name that ends in .tsv."
    )


def load_graded_pairs(source: Source, *, split: str = "validation") -> Dataset:
    """A Dataset with the columns ``sentence1``, ``sentence2`` and ``score``, of every row.

    Args:
        source: as for :func:`load_sentences`, with these columns.
        split: the split to read of a name on the hub.

    Raises:
        ValueError: a text is empty or a score no finite number; the message names the row.
    """
    name = _name(source)
    table = read_table(source, list(_GRADED)[:2], numbers=("score",), split=split)
    with naming(name):
        table = table.select_columns(list(_GRADED)).cast(_GRADED)
    for number, row in enumerate(table):
        for column, value in row.items():
            if value is None or not (strip(value) if isinstance(value, str) else math.isfinite(value)):
                raise ValueError(f"{name}, row {number}: {column!r} is {value!r}. Mend the row or leave it out.")
    return table


def get_language(segment: str) -> str | None:
    """The language by whose rules ``segment`` cuts documents; None for "lines", which cuts none."""
    if segment == "lines":
        return None
    return "en" if segment == "sentences" else require_language("segment", segment, '"lines", "sentences" or ')


def require_language(name: str, code: str, others: str = "") -> str:
    """Require the code of a language, and return it."""
    if not re.fullmatch("[a-z]{2,3}", str(code)):
        raise ValueError(f'{name} must be {others}the code of a language, such as "de"; got {code!r}.')
    return code


def split_sentences(text: str, language: str = "en") -> list[str]:
    """The sentences of a document, each on one line, by sentencex's rules for a language.

    A blank line ends a sentence. The full stops of other scripts do so too.
    """
    import sentencex

    sentences = (" ".join(part.split()) for part in sentencex.segment(language, text))
    return [sentence for sentence in sentences if sentence]


def strip(text: str | None) -> str:
    """The text without white space at its ends; "" if nothing in it can be seen."""
    text = (text or "").strip().strip("\ufeff")
    return text if text.isprintable() or any(c.isprintable() and not c.isspace() for c in text) else ""


def _name(source: Source) -> str:
    return str(source) if isinstance(source, (str, os.PathLike)) else "source"


def _table(source: Source, columns: Sequence[str], streaming: bool, heading: bool = True) -> tuple[str, Any, list[str]]:
    """The source's name, its table with fields of objects as columns, and the columns of text."""
    name = _name(source)
    table = read_table(source, columns, heading=heading, streaming=streaming)
    table = table.flatten() if isinstance(table, Dataset) else table
    with naming(name):
        return name, table, text_columns(table)


def _cleaned(table: Any, cleaning: RowFilter) -> Any:
    """The rows of a table that are right, and the counts of the others."""
    features = Features({name: Value("string") for name in cleaning.names})
    if isinstance(table, IterableDataset):
        return IterableDataset.from_generator(_stream, features, gen_kwargs={"table": table, "cleaning": cleaning})
    options = {"batched": True, "remove_columns": table.column_names, "desc": f"read {cleaning.source}"}
    with naming(cleaning.source):
        data = table.map(cleaning, features=features, load_from_cache_file=False, **options)
    cleaning.require_rows(len(data))
    named = [] if cleaning.columns in (["text"], ["sentence"]) else cleaning.columns  # a text file has no names
    data.info.description = json.dumps({**cleaning.counts, "columns": named})
    return data


def _stream(table: Any, cleaning: RowFilter) -> Iterator[dict[str, str]]:
    cleaning = copy.deepcopy(cleaning)  # which no other pass has used
    count = 0
    with naming(cleaning.source):
        for batch in table.iter(1000):
            made = cleaning(batch)
            rows = [dict(zip(made, row, strict=True)) for row in zip(*made.values(), strict=True)]
            count += len(rows)
            if cleaning.counts["rows"] <= 1000:
                cleaning.require_rows(count)
            yield from rows
    cleaning.require_rows(count)
    warn(f"{cleaning.source} was read once: {cleaning}, which are left out.")


@dataclass
class RowFilter:
    """Makes rows of batches, and leaves out and counts those that are empty, repeated or equal.

    With a language, each text is cut into its sentences or, for a pair, into the first and the rest.
    """

    source: str
    columns: list[str]
    names: tuple[str, ...]
    language: str | None = None
    repeats: bool = False  #: are kept
    counts: Counter[str] = field(default_factory=lambda: Counter(rows=0, empty=0))
    seen: set[int] = field(default_factory=set)

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[str]]:
        rows: _Rows = list(zip(*(map(strip, batch[column]) for column in self.columns), strict=True))
        self.counts["rows"] += len(rows)
        rows = self._kept("empty", rows, all)
        if self.names == _PAIR:
            if self.language is not None:
                parts = [split_sentences(text, self.language) for (text,) in rows]
                rows = self._kept("of one sentence", [(first, " ".join(rest)) for first, *rest in parts], all)
            rows = self._kept("of equal texts", rows, lambda row: row[0] != row[1])
        rows = self._kept("repeated", rows, self._is_new)
        if len(self.names) == 1 and self.language is not None:
            rows = [(part,) for (text,) in rows for part in split_sentences(text, self.language)]
            rows = self._kept("repeated sentences", rows, lambda row: self._is_new((*row, "sentence")))
        return {name: [row[place] for row in rows] for place, name in enumerate(self.names)}

    def _kept(self, fault: str, rows: _Rows, is_right: Callable[[tuple[str, ...]], bool]) -> _Rows:
        kept = [row for row in rows if is_right(row)]
        self.counts[fault] += len(rows) - len(kept)
        return kept

    def _is_new(self, row: tuple[str, ...]) -> bool:
        before = len(self.seen)
        self.seen.add(hash(row))
        return self.repeats or len(self.seen) > before

    def require_rows(self, count: int) -> None:
        """Refuse a source that has lost most of its sentences, or all of its pairs."""
        lost = self.counts["empty"] + self.counts["repeated"]
        if not count or (len(self.names) == 1 and 2 * lost > self.counts["rows"]):
            columns = f"column={self.columns[0]!r}" if len(self.columns) == 1 else f"columns={tuple(self.columns)}"
            remedy = " If it is, leave them out first, with pandas for example." if count else ""
            raise ValueError(
                f"{self.source}: of {self}, {'few' if count else 'none'} are left. Is {columns} right?{remedy}"
            )

    def __str__(self) -> str:
        return ", ".join(f"{number:,} {kind}" for kind, number in self.counts.items())
