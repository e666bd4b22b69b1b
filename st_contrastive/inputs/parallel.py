"""Sentences and their translations, from two files line by line or from one file of pairs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from st_contrastive.inputs.corpus import (
    MAX_CHARACTERS,
    CorpusError,
    CorpusReport,
    LineCounts,
    check_limits,
    lines,
)

_TABLES = (".tsv", ".jsonl")
_ANY_LENGTH = 100_000


@dataclass(frozen=True)
class ParallelCorpus:
    """Sentences, the translation of each, and the report on the lines that they come from."""

    sentences: list[str]
    translations: list[str]
    report: CorpusReport


def read_parallel(
    path: str | Path,
    translations: str | Path | None = None,
    *,
    languages: tuple[str, str] | None = None,
    limit: int | None = None,
    max_characters: int = MAX_CHARACTERS,
) -> ParallelCorpus:
    """Read translations by the rules of :func:`read_corpus`; where one side of a pair is left out, so is the other.

    Args:
        path: with ``translations``, a text file of sentences, one a line. Without, a table of pairs: a .tsv of two
            columns without a heading, or a .jsonl of objects; each may be a .gz.
        translations: a text file with the translations, line by line.
        languages: the two fields of a .jsonl, sentence first. None takes ``sentence`` and ``translation``, else the
            two fields of each object that hold text, in their order. A .tsv with ``languages`` has a heading with
            these names.
        limit: stop after so many pairs.
        max_characters: longest sentence or translation that is taken.

    Raises:
        CorpusError: a file can't be read, or is not as said above; the line is named.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "pairs.tsv"
        >>> _ = path.write_text("A cat sleeps.\\tEine Katze schläft.\\nIt rains.\\tEs regnet.\\n", encoding="utf-8")
        >>> read_parallel(path).translations
        ['Eine Katze schläft.', 'Es regnet.']
    """
    check_limits(limit, max_characters)
    counts = LineCounts()
    if translations is None:
        rows = _table_rows(Path(path), languages, counts, max_characters)
    else:
        if languages is not None:
            raise ValueError("languages names the fields of one file of pairs; two files have none.")
        rows = _rows_of_two(Path(path), Path(translations), counts, max_characters)
    pairs: list[tuple[str, str]] = []
    for pair in rows:
        pairs.append(pair)
        if len(pairs) == limit:
            break
    report = counts.report(Path(path), len(pairs))
    return ParallelCorpus([pair[0] for pair in pairs], [pair[1] for pair in pairs], report)


def is_pairs_file(path: str | Path) -> bool:
    """Whether the name says that the file holds pairs."""
    return Path(str(path).removesuffix(".gz")).suffix in _TABLES


def stream_pairs(path: str | Path, languages: tuple[str, str] | None = None) -> Iterator[tuple[str, str]]:
    """The pairs of a table one by one, those with an empty side too; see :func:`read_parallel`."""
    return _table_rows(Path(path), languages, LineCounts(), _ANY_LENGTH, keep_empty=True)


def cleaned(text: str) -> str:
    """A text as the readers would have read it."""
    return LineCounts().clean(text, _ANY_LENGTH) or ""


def _rows_of_two(path: Path, translations: Path, counts: LineCounts, max_characters: int) -> Iterator[tuple[str, str]]:
    foreign_counts = LineCounts()
    # An over-long line is None; no line at all is False.
    theirs: Iterator[bytes | Literal[False] | None] = lines(translations, max_characters)
    for line in lines(path, max_characters):
        partner = next(theirs, False)
        if isinstance(partner, bool):
            raise CorpusError(f"{translations} has fewer lines than {path}: they must be translations line by line.")
        sentence = counts.take(line, max_characters)
        translation = foreign_counts.take(partner, max_characters)
        if sentence is not None and translation is not None:
            yield sentence, translation
        elif sentence is not None:
            counts.without_partner += 1
    if next(theirs, False) is not False:
        raise CorpusError(f"{translations} has more lines than {path}: they must be translations line by line.")


def _table_rows(
    path: Path,
    languages: tuple[str, str] | None,
    counts: LineCounts,
    max_characters: int,
    *,
    keep_empty: bool = False,
) -> Iterator[tuple[str, str]]:
    if not is_pairs_file(path):
        raise CorpusError(
            f"{path} is no file of pairs by its name: it must end in .tsv or .jsonl, or one of these and .gz. Two text "
            "files are read as read_parallel(sentences, translations)."
        )
    if languages is not None and (isinstance(languages, str) or len(set(languages)) != 2 or len(languages) != 2):
        raise ValueError(f'languages must be two names, such as ("en", "de"), got {languages!r}.')
    parse = _TSV(languages) if path.name.removesuffix(".gz").endswith(".tsv") else _JSONLines(languages)
    for number, line in enumerate(lines(path, 8 * max_characters), start=1):
        counts.lines += 1
        if line is None:
            counts.too_long += 1
            continue
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            counts.undecodable += 1
            continue
        if not text.strip():
            counts.blank += 1
            continue
        pair = parse(text, f"{path}, line {number}")
        if pair is None:  # a heading
            counts.lines -= 1
            continue
        sentence = counts.clean(pair[0], max_characters)
        if sentence is None and keep_empty and not cleaned(pair[0]):
            sentence = ""
        if sentence is None:
            continue
        translation = LineCounts().clean(pair[1], max_characters)
        if translation is None and keep_empty and not cleaned(pair[1]):
            translation = ""
        if translation is None:
            counts.without_partner += 1
            continue
        yield sentence, translation


class _TSV:
    def __init__(self, languages: tuple[str, str] | None) -> None:
        self.languages = languages
        self.places: list[int] | None = None if languages else [0, 1]
        self.columns = 2

    def __call__(self, text: str, where: str) -> tuple[str, str] | None:
        cells = text.split("\t")
        if self.places is None:
            assert self.languages is not None
            self.places = [_place(name, cells, where) for name in self.languages]
            self.columns = len(cells)
            return None
        if len(cells) != self.columns:
            raise CorpusError(f"{where} has {len(cells)} column(s) between tabs; {self.columns} are needed.")
        return cells[self.places[0]], cells[self.places[1]]


class _JSONLines:
    def __init__(self, languages: tuple[str, str] | None) -> None:
        self.fields = languages

    def __call__(self, text: str, where: str) -> tuple[str, str]:
        try:
            row: Any = json.loads(text)
        except (ValueError, RecursionError) as error:  # also of numbers and nestings that are too long
            raise CorpusError(f"{where} is not JSON ({str(error).splitlines()[0]}).") from error
        if not isinstance(row, dict):
            raise CorpusError(f"{where} must be an object with a sentence and its translation.")
        if self.fields is None:
            self.fields = _text_fields(row, where)
        for name in self.fields:
            _place(name, list(row), where)
            if not isinstance(row[name], str):
                raise CorpusError(f"{where}: {name} must be a string, got {type(row[name]).__name__}.")
        return row[self.fields[0]], row[self.fields[1]]


def _text_fields(row: dict[str, Any], where: str) -> tuple[str, str]:
    if {"sentence", "translation"} <= row.keys():
        return "sentence", "translation"
    names = [name for name, value in row.items() if isinstance(value, str)]
    if len(names) != 2:
        raise CorpusError(
            f"{where} has the text fields {', '.join(names) or '(none)'}: say which two are the sentence and its "
            'translation, such as languages=("en", "de").'
        )
    return names[0], names[1]


def _place(name: str, names: list[str], where: str) -> int:
    if name not in names:
        raise CorpusError(f"{where} has no field {name!r}, only {', '.join(names)}.")
    return names.index(name)
