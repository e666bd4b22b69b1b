"""Readers of text files with one sentence per line, which count each line that they leave out."""

from __future__ import annotations

import gzip
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from st_contrastive._checks import require_count

MAX_CHARACTERS = 2000
#: The first bytes of files that are not UTF-8 text, and what they are.
_OTHER_FILES = {
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"\x1f\x8b": "compressed by gzip",
    b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "a Parquet table",
}
#: Endings of tables, and the arguments with which datasets.load_dataset reads them.
_TABLES = {
    ".csv": "'csv'", ".tsv": "'csv', sep='\\t'", ".json": "'json'", ".jsonl": "'json'", ".parquet": "'parquet'"
}  # fmt: skip
_RECODE = "Convert it, for example with `iconv -f {} -t utf-8`, naming the encoding that it has."


class CorpusError(ValueError):
    """A corpus file can't be read or has no sentence; the message names the file and the remedy."""


@dataclass(frozen=True)
class CorpusReport:
    """What became of a file's lines. ``taken`` and the counts of lines left out add up to ``lines``."""

    lines: int = 0
    taken: int = 0
    blank: int = 0
    too_long: int = 0
    undecodable: int = 0
    without_partner: int = 0
    cleaned: int = 0  # texts from which control characters were removed

    def __str__(self) -> str:
        reasons = {
            "blank": self.blank,
            "too long": self.too_long,
            "not UTF-8": self.undecodable,
            "left out with their partner": self.without_partner,
        }
        text = f"{self.taken:,} of {self.lines:,} lines taken"
        if left_out := ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count):
            text += f"; left out: {left_out}"
        return text + (f"; control characters removed from {self.cleaned:,}" if self.cleaned else "")


@dataclass(frozen=True)
class Corpus:
    """The sentences of a file, and the report on its lines."""

    sentences: list[str]
    report: CorpusReport


def read_corpus(path: str | Path, *, limit: int | None = None, max_characters: int = MAX_CHARACTERS) -> Corpus:
    """Read a text file or .gz with one sentence per line.

    The rules, in this order; the report counts each line that is left out:

    1. A line ends at a line feed. A byte order mark at the start of the file is dropped.
    2. A line that is not UTF-8 is left out.
    3. Control characters (Unicode category Cc) are removed; those that separate words, such as tabs, become spaces.
       White space at both ends is stripped. White space inside is kept, double spaces included.
    4. A blank line is left out.
    5. A line of more than ``max_characters`` characters is left out.

    Args:
        path: the file.
        limit: stop after this number of sentences.
        max_characters: length of the longest line that is taken.

    Raises:
        CorpusError: the file is a table by its name (.csv, .tsv, .json, .jsonl, .parquet), can't be opened, is damaged,
            is not UTF-8 text, or has no sentence.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "corpus.txt"
        >>> _ = path.write_bytes(b"A cat sleeps.\\n\\n\\xff\\nIt rains.\\n")
        >>> corpus = read_corpus(path)
        >>> corpus.sentences
        ['A cat sleeps.', 'It rains.']
        >>> print(corpus.report)
        2 of 4 lines taken; left out: 1 blank, 1 not UTF-8
    """
    stream = stream_corpus(path, limit=limit, max_characters=max_characters)
    return Corpus(list(stream), stream.report)


class CorpusStream:
    """The sentences of a file one by one; see :func:`stream_corpus`. Each iteration reads the file again."""

    def __init__(self, path: Path, limit: int | None, max_characters: int) -> None:
        self.path = path
        self.limit = limit
        self.max_characters = max_characters
        self._counts = LineCounts()

    def __iter__(self) -> Iterator[str]:
        counts = self._counts = LineCounts()
        for line in lines(self.path, self.max_characters):
            sentence = counts.clean(counts.decode(line), self.max_characters)
            if sentence is not None:
                counts["taken"] += 1
                yield sentence
                if counts["taken"] == self.limit:
                    break
        counts.require_sentence(self.path)

    @property
    def report(self) -> CorpusReport:
        """What became of the lines read so far."""
        return CorpusReport(**self._counts)


def stream_corpus(path: str | Path, *, limit: int | None = None, max_characters: int = MAX_CHARACTERS) -> CorpusStream:
    """The sentences that :func:`read_corpus` reads, one by one, for a corpus that does not fit into memory.

    When all are read, ``report`` says what became of the lines.

    Raises:
        CorpusError: the file is a table by its name; or, while it is read, as for :func:`read_corpus`.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "corpus.txt"
        >>> _ = path.write_text("A cat sleeps.\\n\\nIt rains.\\n")
        >>> stream = stream_corpus(path)
        >>> from st_contrastive import text_dataset
        >>> text_dataset(stream).num_rows, stream.report.blank
        (2, 1)
    """
    check_limits(limit, max_characters)
    require_no_table(Path(path))
    return CorpusStream(Path(path), limit, max_characters)


class LineCounts(Counter[str]):
    """What became of the lines so far: the fields of CorpusReport, and the rules that decide on them."""

    def decode(self, line: bytes | None) -> str | None:
        """The text of the next line; None if it is left out. The line None was longer than any sentence."""
        self["lines"] += 1
        if line is None:
            self["too_long"] += 1
            return None
        try:
            return line.decode()
        except UnicodeDecodeError:
            self["undecodable"] += 1
            return None

    def clean(self, text: str | None, max_characters: int) -> str | None:
        """The sentence of a decoded line; None if it is left out."""
        if text is None:
            return None
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write
            self["undecodable"] += 1
            return None
        plain = text.strip(" \t\r\n")
        printed = plain if plain.isprintable() else "".join(map(_printed, plain))
        sentence = printed.strip()
        if not any(letter.isprintable() and letter != " " for letter in sentence):  # for example only joiners
            self["blank"] += 1
            return None
        if len(sentence) > max_characters:
            self["too_long"] += 1
            return None
        self["cleaned"] += printed != plain
        return sentence

    def require_sentence(self, path: Path) -> None:
        """Refuse a file without any sentence, or with an encoding that few lines are readable in."""
        if self["undecodable"] > self["lines"] / 2:
            raise CorpusError(f"{path} is not UTF-8 text ({CorpusReport(**self)}). {_RECODE.format('latin1')}")
        if not self["taken"]:
            report = CorpusReport(**self)
            raise CorpusError(
                f"{path} holds no sentence ({report}). It must be UTF-8 text, one sentence per line, each line of at "
                "most max_characters and with a line feed at its end."
            )


def require_no_table(path: Path) -> None:
    """Refuse a file whose headings, identifiers and punctuation would be read as sentences."""
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    if kind in _TABLES:
        raise CorpusError(
            f"{path} is a table by its name ({kind}), and this reads text, one sentence per line. Take the column of "
            f"sentences from it, such as datasets.load_dataset({_TABLES[kind]}, data_files=...)['train']['text']."
        )


def _require_text(path: Path, start: bytes) -> None:
    """Refuse a file whose first line shows that it is no UTF-8 text."""
    kind = next((kind for magic, kind in _OTHER_FILES.items() if start.startswith(magic)), None)
    if kind is None and start.count(0) > len(start) / 4:
        kind = "UTF-16 text"
    if kind is not None:
        remedy = "Write it as text, one sentence per line, or as a .gz of that."
        if kind == "UTF-16 text":
            remedy = _RECODE.format("utf-16")
        raise CorpusError(f"{path} is {kind}, not UTF-8. {remedy}")


def _printed(character: str) -> str:
    """The character; for a control character, a space or nothing."""
    if unicodedata.category(character) != "Cc":
        return character
    return " " if character.isspace() else ""


def check_limits(limit: int | None, max_characters: int) -> None:
    """Refuse limits that leave nothing to read."""
    if limit is not None:
        require_count("limit", limit)
    require_count("max_characters", max_characters)


def lines(path: Path, max_characters: int) -> Iterator[bytes | None]:
    """The file's lines; None for each that is longer than any sentence, so that memory stays bounded."""
    most_bytes = 8 * max_characters + 64
    try:
        with open_bytes(path) as file:
            first = True
            while line := file.readline(most_bytes):
                if first:
                    _require_text(path, line)
                if line.endswith(b"\n") or len(line) < most_bytes:
                    yield line.removeprefix(b"\xef\xbb\xbf") if first else line
                else:
                    while (rest := file.readline(most_bytes)) and not rest.endswith(b"\n"):
                        pass
                    yield None
                first = False
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path} is damaged or cut short ({error}). Fetch or compress it again.") from error
    except OSError as error:
        raise CorpusError(f"{path} can't be read: {error.strerror or error}. Check path and permissions.") from error


def open_bytes(path: Path) -> BinaryIO:
    """Open a file, or what a .gz contains, for reading."""
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]
