"""Readers of sentences with their translations, from two files line by line or from one file of pairs."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from st_contrastive._checks import first_line, require_languages
from st_contrastive.inputs.corpus import (
    MAX_CHARACTERS,
    CorpusError,
    CorpusReport,
    LineCounts,
    check_limits,
    lines,
    require_no_table,
)

DEFAULT_FIELDS = ("sentence", "translation")
_ANY_LENGTH = sys.maxsize
_MOST_CHARACTERS = 100_000  # of a line of pairs that is looked up


@dataclass(frozen=True)
class ParallelCorpus:
    """Sentences, the translation of each, and the report on the lines that they come from.

    ``fields`` names the two fields that they were read from, where the file has names.
    """

    sentences: list[str]
    translations: list[str]
    report: CorpusReport
    fields: tuple[str, str] | None = None

    def __str__(self) -> str:
        named = f" (sentence: {self.fields[0]!r}, translation: {self.fields[1]!r})" if self.fields else ""
        return f"{self.report}{named}"


def read_parallel(
    path: str | Path,
    translations: str | Path | None = None,
    *,
    languages: tuple[str, str] | None = None,
    limit: int | None = None,
    max_characters: int = MAX_CHARACTERS,
) -> ParallelCorpus:
    """Read sentences and translations by the rules of :func:`read_corpus`; both of a pair are taken, or neither.

    Args:
        path: with ``translations``, a text file with one sentence per line. Otherwise a file of pairs: a .tsv of two
            columns, whose cells are taken as they are, quotes included; or a .jsonl of objects, or of objects under
            ``translation``, as many data sets of the Hugging Face Hub have them; each may be a .gz.
        translations: a text file with the translation of each line of ``path``.
        languages: the two fields of a .jsonl, sentence first. By default ``sentence`` and ``translation``, or else the
            only two fields of the first object that hold text. A .tsv has these names in its heading; one without them
            has no heading, unless its first line is "sentence" and "translation".
        limit: stop after this number of pairs.
        max_characters: length of the longest sentence or translation that is taken.

    Raises:
        CorpusError: a file can't be read or has another form; the message names the line.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "pairs.tsv"
        >>> _ = path.write_text("A cat sleeps.\\tEine Katze schläft.\\nIt rains.\\tEs regnet.\\n", encoding="utf-8")
        >>> read_parallel(path).translations
        ['Eine Katze schläft.', 'Es regnet.']
    """
    check_limits(limit, max_characters)
    path, counts, partner_counts = Path(path), LineCounts(), LineCounts()
    rows: Iterable[tuple[str | None, str | None]]
    fields, both = None, None
    if translations is None:
        fields, rows = _pairs_of_table(path, languages, counts, max_characters)
    elif languages is not None:
        raise ValueError(
            "languages names the fields of one file of pairs; two text files have none: leave languages out."
        )
    else:
        require_no_table(path)
        require_no_table(Path(translations))
        both = _lines_of_two(path, Path(translations), max_characters)
        rows = ((counts.decode(line), partner_counts.decode(partner)) for line, partner in both)
    pairs: list[tuple[str, str]] = []
    for text, partner in rows:
        sentence = counts.clean(text, max_characters)
        translation = partner_counts.clean(partner, max_characters)
        if sentence is not None and translation is not None:
            pairs.append((sentence, translation))
            if len(pairs) == limit:
                deque(both or (), maxlen=0)  # to the end: files of different length are refused under any limit
                break
        elif sentence is not None:
            counts["without_partner"] += 1
    counts["taken"] = partner_counts["taken"] = len(pairs)
    if translations is not None:
        partner_counts.require_sentence(Path(translations))
    counts.require_sentence(path)
    counts["cleaned"] += partner_counts["cleaned"]
    return ParallelCorpus([pair[0] for pair in pairs], [pair[1] for pair in pairs], CorpusReport(**counts), fields)


def is_pairs_file(path: str | Path) -> bool:
    """Whether a file holds pairs, by its name."""
    return Path(_without_gz(path)).suffix in (".tsv", ".jsonl")


def _without_gz(path: str | Path) -> str:
    return str(path).lower().removesuffix(".gz")


def stream_pairs(path: Path, languages: tuple[str, str] | None = None) -> Iterator[tuple[str, str]]:
    """The cleaned pairs of a file one by one, including those with an empty side; see :func:`read_parallel`."""
    for sentence, translation in _pairs_of_table(path, languages, LineCounts(), _MOST_CHARACTERS)[1]:
        yield cleaned(sentence), cleaned(translation)


def cleaned(text: str) -> str:
    """A text as the readers return it."""
    return LineCounts().clean(text, _ANY_LENGTH) or ""


def _lines_of_two(path: Path, translations: Path, max_characters: int) -> Iterator[tuple[bytes | None, bytes | None]]:
    both = zip_longest(lines(path, max_characters), lines(translations, max_characters), fillvalue=False)
    for line, partner in both:  # False: the file has ended
        if isinstance(line, bool) or isinstance(partner, bool):
            count = "more" if isinstance(line, bool) else "fewer"
            raise CorpusError(
                f"{translations} has {count} lines than {path}: it must translate each line of that file."
            )
        yield line, partner


def _pairs_of_table(
    path: Path, languages: tuple[str, str] | None, counts: LineCounts, max_characters: int
) -> tuple[tuple[str, str] | None, Iterator[tuple[str, str]]]:
    """The names of the two fields, where there are names, and the pairs."""
    if not is_pairs_file(path):
        raise CorpusError(
            f"{path} is not a file of pairs: its name must end in .tsv, .jsonl, .tsv.gz or .jsonl.gz. Two text files "
            "are read with read_parallel(sentences, translations)."
        )
    if languages is not None:
        require_languages(languages)
    texts = _numbered_texts(path, counts, max_characters)
    if (first := next(texts, None)) is None:
        return None, iter(())
    where, line = first
    if _without_gz(path).endswith(".jsonl"):
        fields = languages or _text_fields(_json_object(line, where), where)
        return fields, _json_pairs(chain([first], texts), fields)
    names = line.split("\t")
    if languages is None and set(names) == set(DEFAULT_FIELDS):
        languages = DEFAULT_FIELDS
    if languages is None:
        return None, _tab_separated(chain([first], texts), (0, 1), 2)
    counts["lines"] -= 1
    places = (_place(languages[0], names, where), _place(languages[1], names, where))
    return languages, _tab_separated(texts, places, len(names))


def _numbered_texts(path: Path, counts: LineCounts, max_characters: int) -> Iterator[tuple[str, str]]:
    """What errors call a line, and its text; for each line that is not left out."""
    for number, line in enumerate(lines(path, 8 * max_characters), start=1):
        text = counts.decode(line)
        if text is not None and text.strip():
            yield f"{path}, line {number}", text.rstrip("\r\n")
        elif text is not None:
            counts["blank"] += 1


def _tab_separated(
    texts: Iterable[tuple[str, str]], places: tuple[int, int], columns: int
) -> Iterator[tuple[str, str]]:
    for where, text in texts:
        cells = text.split("\t")
        if len(cells) != columns:
            raise CorpusError(f"{where} has {len(cells)} column(s) between tabs; {columns} are needed.")
        yield cells[places[0]], cells[places[1]]


def _json_pairs(texts: Iterable[tuple[str, str]], fields: tuple[str, str]) -> Iterator[tuple[str, str]]:
    for where, text in texts:
        row = _json_object(text, where)
        for name in fields:
            _place(name, list(row), where)
            if not isinstance(row[name], str):
                raise CorpusError(f"{where}: {name} must be a string, got {type(row[name]).__name__}.")
        yield row[fields[0]], row[fields[1]]


def _json_object(text: str, where: str) -> dict[str, Any]:
    try:
        row: Any = json.loads(text)
    except (ValueError, RecursionError) as error:  # also a number or a nesting that is too long
        raise CorpusError(f"{where} is not JSON ({first_line(error)}).") from error
    if not isinstance(row, dict):
        raise CorpusError(f"{where} must be an object with a sentence and its translation.")
    nested = row.get("translation")
    return nested if isinstance(nested, dict) else row


def _text_fields(row: dict[str, Any], where: str) -> tuple[str, str]:
    if set(DEFAULT_FIELDS) <= row.keys():
        return DEFAULT_FIELDS
    names = [name for name, value in row.items() if isinstance(value, str)]
    if len(names) != 2:
        raise CorpusError(
            f"{where} has the text fields {', '.join(names) or '(none)'}: say which two are the sentence and its "
            'translation, such as languages=("en", "de"), or --languages en de.'
        )
    return names[0], names[1]


def _place(name: str, names: list[str], where: str) -> int:
    if name not in names:
        raise CorpusError(f"{where} has no field {name!r}, only {', '.join(names)}.")
    return names.index(name)
