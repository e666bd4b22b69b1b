"""Sentences, pairs and translations from any source; each row is accounted for."""

from __future__ import annotations

import copy
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from datasets import Dataset, Features, IterableDataset, Value

from st_contrastive._arguments import checked
from st_contrastive._checks import warn
from st_contrastive.inputs._delimited import LABEL
from st_contrastive.inputs._tables import (
    Source,
    column_types,
    naming,
    read_table,
    text_column,
    text_columns,
)

_Rows: TypeAlias = list[tuple[str, ...]]
_PAIR, _TRANSLATED = ("sentence", "other"), ("sentence", "translation")
#: ISO 639-1.
_LANGUAGES = frozenset(
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv dz ee el en "
    "eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv "
    "ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne "
    "ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st "
    "su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu".split()
)
#: After a mark that ends a sentence in Khmer or Tibetan.
_MARK = re.compile("(?<=[\u17d4\u17d5\u0f0d\u0f0e])(?!\\s*[\u17d4\u17d5\u0f0d\u0f0e]|$)\\s*")
#: In what was not cut: spaces in Thai or Lao, which end sentences there and parts of them; or many characters.
_UNCUT = re.compile("[\u0e01-\u0edf]\\s+[\u0e01-\u0edf]|.{500}", re.DOTALL)
_RECENT = 1_000_000  # rows of a stream among which repeats are found
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

    White space at both ends of a text is removed. Empty texts and exact repeats are left out and counted;
    :func:`describe` shows the counts. No text is left out for its length.

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
            million rows. The counts come as a warning at the end of each pass.

    Raises:
        OSError, ValueError: the source can't be read, is something else than its name says, or over half of its rows
            are empty or repeated.

    Example:
        >>> load_sentences(["A cat sleeps.", "", "It rains.", "A cat sleeps.", "It snows."])["sentence"][:]
        ['A cat sleeps.', 'It rains.', 'It snows.']
    """
    language = get_language(segment)
    name, table = _table(source, () if column is None else (column,), streaming, split)
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
            as pairs that belong together.

    Example:
        >>> load_pairs(["Cats sleep. They dream, too."], pairs="first")[0]
        {'sentence': 'Cats sleep.', 'other': 'They dream, too.'}
    """
    names = [name.strip() for name in columns.split(",")] if isinstance(columns, str) else list(columns)
    if pairs == "columns":
        hint = ' To pair the first sentence of the documents of one column with the rest, add pairs="first".'
        _require_two("columns", names, hint)
    name, table = _table(source, names, streaming, split)
    if pairs == "first":
        column = text_column(table, names[0] if len(names) == 1 else None, name)
        return _cleaned(table, RowFilter(name, [column], _PAIR, require_language("language", language)))
    for column in names:
        remedy = 'Name two of columns; for documents without titles, name their column and add pairs="first".'
        text_column(table, column, name, remedy)
    labels = [column for column in column_types(table) if LABEL.fullmatch(column) and column not in names]
    return _cleaned(table, RowFilter(name, names, _PAIR, labels=labels))


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
    name, table = _table(source, languages, False, heading=False)
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
    name = _name(source)
    table = read_table(source, [*_GRADED], split=split)
    with naming(name):
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


def get_language(segment: str) -> str | None:
    """The language by whose rules ``segment`` cuts documents; None for "lines", which cuts none."""
    if segment == "lines":
        return None
    return "en" if segment == "sentences" else require_language("segment", segment, '"lines", "sentences" or ')


def require_language(name: str, code: str, others: str = "") -> str:
    """Require the code of a language, and return it."""
    if code not in _LANGUAGES:
        raise ValueError(
            f'{name} must be {others}the two-letter code of a language (ISO 639-1), such as "de"; got {code!r}.'
        )
    return code


def split_sentences(text: str, language: str = "en") -> list[str]:
    """The sentences of a document, each on one line, by sentencex's rules for a language.

    A blank line ends a sentence. The full stops of other scripts do so too.
    """
    import sentencex

    parts = (part for sentence in sentencex.segment(language, text) for part in _MARK.split(sentence))
    return [sentence for part in parts if (sentence := " ".join(part.split()))]


def strip(text: str | None) -> str:
    """The text without white space at its ends; "" if nothing in it can be seen, or if it says that it is missing."""
    text = text.strip().strip("\ufeff") if text else ""
    if text[:1].isalnum():
        return text
    is_seen = any(character.isprintable() and not character.isspace() for character in text)
    return text if is_seen and text != "\\N" else ""  # as databases write what is missing


def _number(value: Any) -> float:
    """The number, nan if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def _require_two(argument: str, names: Sequence[str], hint: str = "") -> None:
    if len(names) != 2 or len({*names}) != 2:
        raise ValueError(f"{argument} must be two names, got {names!r}.{hint}")


def _name(source: Source) -> str:
    return str(source) if isinstance(source, (str, os.PathLike)) else "source"


def _table(
    source: Source, columns: Sequence[str], streaming: bool, split: str | None = None, heading: bool = True
) -> tuple[str, Any]:
    """The source's name, and its table with fields of objects as columns."""
    name = _name(source)
    path = Path(name).expanduser()
    if split is not None and (name == "source" or (path.exists() and not (path / "dataset_dict.json").is_file())):
        raise ValueError(f"split={split!r} is for names on the hub and saved DatasetDicts; segment=... cuts documents.")
    table = read_table(source, columns, heading=heading, split=split or "train", streaming=streaming)
    return name, table.flatten() if isinstance(table, Dataset) else table


def _cleaned(table: Any, cleaning: RowFilter) -> Any:
    """The rows of a table that are right, and the counts of the others."""
    features = Features({name: Value("string") for name in cleaning.names})
    if isinstance(table, IterableDataset):
        return IterableDataset.from_generator(_stream, features, gen_kwargs={"table": table, "cleaning": cleaning})
    with naming(cleaning.source):
        data = table.map(
            cleaning, batched=True, batch_size=10_000, features=features, remove_columns=table.column_names,
            load_from_cache_file=False, desc=f"read {cleaning.source}",
        )  # fmt: skip
    cleaning.warn_of_uncut()
    cleaning.require_rows(len(data))
    return set_reading(data, cleaning.reading())


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
            if len(cleaning.seen) > _RECENT:
                cleaning.seen.clear()
            yield from rows
    cleaning.warn_of_uncut()
    cleaning.require_rows(count)
    warn(f"{cleaning.source} was read once: {cleaning}, which are left out.")


@dataclass(frozen=True)
class Reading:
    """What a reader found: the rows of the source, and those that it left out."""

    rows: int
    left_out: Mapping[str, int]  #: numbers of rows by what is wrong with them
    columns: tuple[str, ...] = ()  #: that were read, where the source names them


def set_reading(dataset: Dataset, reading: Reading | None) -> Dataset:
    """Let a Dataset carry what its reader found, for :func:`describe`. Datasets made of it carry nothing."""
    dataset.reading = reading
    return dataset


def get_reading(dataset: Any) -> Reading | None:
    """What the reader of a Dataset found; None for a Dataset from elsewhere."""
    return getattr(dataset, "reading", None)


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
    labels: Sequence[str] = ()  #: columns whose values may not differ
    label: dict[str, Any] = field(default_factory=dict)
    uncut: int = 0
    counts: Counter[str] = field(default_factory=lambda: Counter(rows=0, empty=0))
    seen: set[int] = field(default_factory=set)

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[str]]:
        for name in self.labels:
            self._require_one_label(name, batch[name])
        rows: _Rows = list(zip(*(map(strip, batch[column]) for column in self.columns), strict=True))
        self.counts["rows"] += len(rows)
        rows = self._kept("empty", rows, all)
        if self.names == _PAIR:
            if self.language is not None:
                parts = [self._split(text) for (text,) in rows]
                rows = self._kept("of one sentence", [(first, " ".join(rest)) for first, *rest in parts], all)
            rows = self._kept("of equal texts", rows, lambda row: row[0] != row[1])
        rows = self._kept("repeated", rows, self._is_new)
        if len(self.names) == 1 and self.language is not None:
            rows = [(part,) for (text,) in rows for part in self._split(text)]
            rows = self._kept("repeated sentences", rows, lambda row: self._is_new((*row, "sentence")))
        return {name: [row[index] for row in rows] for index, name in enumerate(self.names)}

    def _split(self, text: str) -> list[str]:
        parts = split_sentences(text, self.language or "en")
        self.uncut += len(parts) == 1 and bool(_UNCUT.search(parts[0]))
        return parts

    def warn_of_uncut(self) -> None:
        """Warn of documents in which no end of a sentence was found."""
        if 2 * self.uncut > self.counts["rows"] - self.counts["empty"]:
            warn(
                f"{self.source}: {self.uncut:,} documents were not cut into sentences by the rules for "
                f"{self.language!r}: no marks in them end one, as in Thai and Lao. Cut them by a library for "
                "the language, and give one sentence a row."
            )

    def _require_one_label(self, name: str, values: list[Any]) -> None:
        for row, value in enumerate(values, self.counts["rows"]):
            first = self.label.setdefault(name, value)
            if value != first:
                raise ValueError(
                    f"{self.source}: the column {name!r} is {first!r} in row 0 and {value!r} in row {row}. Every row "
                    "is trained as a pair that belongs together: keep the rows that do, and leave the column out. "
                    "load_graded_pairs reads scores."
                )

    def _kept(self, fault: str, rows: _Rows, is_right: Callable[[tuple[str, ...]], bool]) -> _Rows:
        kept = [row for row in rows if is_right(row)]
        self.counts[fault] += len(rows) - len(kept)
        return kept

    def _is_new(self, row: tuple[str, ...]) -> bool:
        key = hash(row)
        if key in self.seen:
            return self.repeats
        self.seen.add(key)
        return True

    def reading(self) -> Reading:
        """The counts of the rows so far."""
        left_out = {kind: count for kind, count in self.counts.items() if kind != "rows"}
        named = () if self.columns in (["text"], ["sentence"]) else tuple(self.columns)  # of a file without names
        return Reading(self.counts["rows"], left_out, named)

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
