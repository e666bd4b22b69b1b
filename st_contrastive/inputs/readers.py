"""Sentences, or sentences with translations, from any source; each row is accounted for."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

from datasets import Dataset, Features, IterableDataset, Value

from st_contrastive._checks import require_flag, require_languages, warn
from st_contrastive.inputs._tables import Source, is_text_file, naming, read_table, text_column, text_columns
from st_contrastive.inputs.sentences import language_of, split_sentences

_FEATURES = Features({"sentence": Value("string")})
_PAIRS = Features({"sentence": Value("string"), "translation": Value("string")})


def load_sentences(source: Source, *, column: str | None = None, split: str = "lines", streaming: bool = False) -> Any:
    """A Dataset with the column ``sentence`` from a file, a hub name, a Dataset or a sequence of strings.

    White space at both ends of a text is removed. Empty texts and exact repeats are left out and counted;
    :func:`describe` shows the counts. No text is left out for its length.

    Args:
        source: a .csv, .tsv, .json, .jsonl, .parquet or text file, or a .gz of it; a folder of files of one kind; a
            name on the hub, whose split "train" is read; a Dataset; or a sequence of strings.
        column: the column of text; needed where there are several. A field of objects is "doc.body".
        split: "lines" takes each row as it is; "sentences" cuts it into sentences, for documents, by rules for English,
            and a language's code, such as "de", by rules for that language.
        streaming: read the rows when training asks for them, and return an IterableDataset. The counts come as a
            warning at the end of each pass.

    Raises:
        OSError, ValueError: the source can't be read, is something else than its name says, or over half of its rows
            are empty or repeated.

    Example:
        >>> load_sentences(["A cat sleeps.", "", "It rains.", "A cat sleeps.", "It snows."])["sentence"][:]
        ['A cat sleeps.', 'It rains.', 'It snows.']
    """
    language = language_of(split)
    require_flag("streaming", streaming)
    table = read_table(source, () if column is None else (column,), streaming=streaming)
    table = table.flatten() if isinstance(table, Dataset) else table  # fields of objects as columns
    name = str(source) if isinstance(source, (str, os.PathLike)) else "source"
    with naming(name):
        columns, start = text_columns(table), list(islice(table, 100))
    column = text_column(columns, column, name)
    if is_text_file(source) and 2 * sum("\t" in row[column] for row in start) > len(start):
        raise ValueError(
            f"{name} has tabs on most lines, so it is a table or a file of pairs: let its name end in .tsv, with a "
            "heading, and say with column=... which column holds the sentences. load_translations reads pairs."
        )
    if isinstance(table, IterableDataset):
        options = {"table": table, "name": name, "column": column, "language": language}
        return IterableDataset.from_generator(_stream, _FEATURES, gen_kwargs=options)
    cleaning = _Cleaning(name, column, language)
    data = table.map(
        cleaning, batched=True, remove_columns=table.column_names, features=_FEATURES, load_from_cache_file=False
    )
    cleaning.require_most()
    has_names = not is_text_file(source) and column != "sentence"
    data.info.description = json.dumps({**cleaning.counts, "column": column if has_names else None})
    return data


def load_translations(source: Source, *, languages: tuple[str, str] = ("en", "de")) -> Dataset:
    """A Dataset with the columns ``sentence`` and ``translation``.

    White space at both ends of a text is removed. Rows without one of the two are left out and counted;
    :func:`describe` shows the count.

    Args:
        source: as for :func:`load_sentences`, of pairs. A .tsv of two columns needs no heading; ``paste`` makes one of
            two text files with as many lines.
        languages: the columns of the sentence and of the translation, which may be fields under ``translation``, as in
            data sets of the hub. A table with the columns ``sentence`` and ``translation`` needs none.

    Raises:
        OSError, ValueError: the source can't be read, lacks a column, or no row has both texts.
    """
    require_languages(languages)
    name = str(source) if isinstance(source, (str, os.PathLike)) else "source"
    table = read_table(source, languages)
    if not isinstance(table, Dataset):
        raise TypeError(f"source must be read whole, got a {type(table).__name__}.")
    table = table.flatten()
    first, second = _fields(table, languages, name)
    table = table.map(
        lambda batch: {"sentence": list(map(strip, batch[first])), "translation": list(map(strip, batch[second]))},
        batched=True,
        remove_columns=table.column_names,
        features=_PAIRS,
    )
    pairs = table.filter(lambda batch: [bool(a and b) for a, b in zip(*batch.values(), strict=True)], batched=True)
    if not len(pairs):
        raise ValueError(f"{name}: none of {len(table):,} rows has both {first!r} and {second!r}.")
    pairs.info.description = json.dumps({"rows": len(table), "unpaired": len(table) - len(pairs)})
    return pairs


def strip(text: str | None) -> str:
    """The text without white space at its ends; "" if nothing in it can be seen."""
    text = (text or "").strip().strip("\ufeff")
    return text if text.isprintable() or any(c.isprintable() and not c.isspace() for c in text) else ""


class _Cleaning:
    """Leaves out empty and repeated rows of batches, and counts them."""

    def __init__(self, name: str, column: str, language: str | None) -> None:
        self.name, self.column, self.language = name, column, language
        self.counts = Counter(rows=0, empty=0, repeated=0)
        self._seen: set[int] = set()

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[str]]:
        texts = [strip(text) for text in batch[self.column]]
        self.counts["rows"] += len(texts)
        self.counts["empty"] += texts.count("")
        texts = self._new([text for text in texts if text], "repeated")
        if self.language is not None:
            parts = [part for text in texts for part in split_sentences(text, self.language)]
            texts = self._new(parts, "repeated sentences")
        return {"sentence": texts}

    def _new(self, texts: list[str], kind: str) -> list[str]:
        new = []
        for text in texts:
            before = len(self._seen)
            self._seen.add(hash((kind, text)))
            if len(self._seen) > before:
                new.append(text)
        self.counts[kind] += len(texts) - len(new)
        return new

    def require_most(self) -> None:
        """Refuse a source that has lost most of its rows."""
        rows, empty, repeated = (self.counts[kind] for kind in ("rows", "empty", "repeated"))
        if 2 * (empty + repeated) > rows or not rows:
            raise ValueError(
                f"{self.name}: of {rows:,} rows, {empty:,} are empty and {repeated:,} repeat another. Is column="
                f"{self.column!r} the right one? If it is, leave them out first, with pandas for example."
            )


def _stream(table: Any, name: str, column: str, language: str | None) -> Iterator[dict[str, str]]:
    cleaning = _Cleaning(name, column, language)
    batches = table.iter(1000)
    while True:
        with naming(name):
            batch = next(batches, None)
        if batch is None:
            break
        texts = cleaning(batch)["sentence"]
        if cleaning.counts["rows"] <= 1000:
            cleaning.require_most()
        yield from ({"sentence": text} for text in texts)
    cleaning.require_most()
    counts = ", ".join(f"{count:,} {kind}" for kind, count in cleaning.counts.items())
    warn(f"{name} was read once: {counts}; empty and repeated ones were left out.")


def _fields(table: Dataset, languages: tuple[str, str], name: str) -> tuple[str, str]:
    """The columns of the sentence and of the translation."""
    columns = text_columns(table)
    nested = tuple(f"translation.{language}" for language in languages)
    for first, second in (languages, nested, tuple(_PAIRS)):
        if first in columns and second in columns:
            return first, second
    known = ", ".join(column.removeprefix("translation.") for column in columns) or "(none)"
    raise ValueError(
        f"languages={languages!r}: {name} has the text columns {known}. Name the sentence's and the translation's; a "
        "text file of pairs needs a name that ends in .tsv."
    )
