"""Corpora from files: one sentence a line, and an account of every line that is not taken."""

from __future__ import annotations

import gzip
import unicodedata
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from st_contrastive._checks import require_count

MAX_CHARACTERS = 2000


class CorpusError(ValueError):
    """A corpus file that can't be read, or holds no sentence; the message names the file and the cure."""


@dataclass(frozen=True)
class CorpusReport:
    """What became of a file's lines: ``taken`` plus the lines left out is ``lines``."""

    lines: int = 0
    taken: int = 0
    blank: int = 0
    too_long: int = 0
    undecodable: int = 0
    without_partner: int = 0
    cleaned: int = 0  # had control characters, and were not left out for what remained

    def __str__(self) -> str:
        notes = {
            "blank": "blank",
            "too_long": "too long",
            "undecodable": "not UTF-8",
            "without_partner": "left out with their partner",
        }
        counts = asdict(self)
        left_out = [f"{counts[key]:,} {note}" for key, note in notes.items() if counts[key]]
        said = f"{self.taken:,} of {self.lines:,} lines taken"
        if left_out:
            said += f"; left out: {', '.join(left_out)}"
        return said + (f"; {self.cleaned:,} had control characters removed" if self.cleaned else "")


@dataclass(frozen=True)
class Corpus:
    """The sentences of a file, and the report on its lines."""

    sentences: list[str]
    report: CorpusReport


def read_corpus(path: str | Path, *, limit: int | None = None, max_characters: int = MAX_CHARACTERS) -> Corpus:
    """Read a text file, or a .gz of one, with one sentence a line.

    The rules, in this order; each line that is left out is counted in the report:

    1. A line ends at a line feed. A byte order mark at the start of the file is dropped.
    2. A line that is not UTF-8 is left out.
    3. Control characters (Unicode category Cc) are removed, but a tab and the like, which part words, become a space;
       white space at both ends is stripped. What is inside stays, double spaces included.
    4. A blank line is left out.
    5. A line of more than ``max_characters`` characters is left out: it is no sentence.

    Args:
        path: the file.
        limit: stop after so many sentences.
        max_characters: longest line that is taken.

    Raises:
        CorpusError: the file can't be opened or is damaged, or no line is a sentence.

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
    """The sentences of a file one by one, for a corpus that need not be held in memory; see :func:`stream_corpus`.

    Each iteration reads the file anew.
    """

    def __init__(self, path: Path, limit: int | None, max_characters: int) -> None:
        self.path = path
        self.limit = limit
        self.max_characters = max_characters
        self._counts = LineCounts()
        self._taken = 0

    def __iter__(self) -> Iterator[str]:
        self._counts, self._taken = LineCounts(), 0
        for line in lines(self.path, self.max_characters):
            if self.limit is not None and self._taken >= self.limit:
                break
            sentence = self._counts.take(line, self.max_characters)
            if sentence is not None:
                self._taken += 1
                yield sentence
        self._counts.report(self.path, self._taken)  # no sentence at all is an error

    @property
    def report(self) -> CorpusReport:
        """What became of the lines read so far."""
        return CorpusReport(taken=self._taken, **asdict(self._counts))


def stream_corpus(path: str | Path, *, limit: int | None = None, max_characters: int = MAX_CHARACTERS) -> CorpusStream:
    """The sentences that :func:`read_corpus` reads, one by one; ``report`` tells of the lines when they are through.

    Raises:
        CorpusError: when the file is read, as for :func:`read_corpus`.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "corpus.txt"
        >>> _ = path.write_text("A cat sleeps.\\n\\nIt rains.\\n")
        >>> stream = stream_corpus(path)
        >>> from st_contrastive import simcse_dataset
        >>> simcse_dataset(stream).num_rows, stream.report.blank
        (2, 1)
    """
    check_limits(limit, max_characters)
    return CorpusStream(Path(path), limit, max_characters)


def _printed(character: str) -> str:
    """The character, or a space or nothing for a control character."""
    if unicodedata.category(character) != "Cc":
        return character
    return " " if character.isspace() else ""


@dataclass
class LineCounts:
    """What became of the lines so far, and the rules that decide it."""

    lines: int = 0
    blank: int = 0
    too_long: int = 0
    undecodable: int = 0
    without_partner: int = 0
    cleaned: int = 0

    def take(self, line: bytes | None, max_characters: int) -> str | None:
        """The sentence on the line; None, and one more counted, where it is left out."""
        self.lines += 1
        if line is None:
            self.too_long += 1
            return None
        if self.lines == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            self.undecodable += 1
            return None
        return self.clean(text, max_characters)

    def clean(self, text: str, max_characters: int) -> str | None:
        """The text of a line that has been counted, as a sentence; None where it is left out."""
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:  # half of a surrogate pair, which JSON can write
                self.undecodable += 1
                return None
        plain = text.strip(" \t\r\n")
        sentence = (plain if plain.isprintable() else "".join(map(_printed, plain))).strip()
        if not any(letter.isprintable() and letter != " " for letter in sentence):  # joiners alone are no text
            self.blank += 1
            return None
        if len(sentence) > max_characters:
            self.too_long += 1
            return None
        self.cleaned += sentence != plain
        return sentence

    def report(self, path: Path, taken: int) -> CorpusReport:
        """The counts so far; a file without any sentence is an error."""
        report = CorpusReport(taken=taken, **asdict(self))
        if not taken:
            raise CorpusError(f"{path} holds no sentence ({report}). It must be UTF-8 text, one sentence a line.")
        return report


def check_limits(limit: int | None, max_characters: int) -> None:
    """Refuse limits that leave nothing."""
    if limit is not None:
        require_count("limit", limit)
    require_count("max_characters", max_characters)


def lines(path: Path, max_characters: int) -> Iterator[bytes | None]:
    """The file's lines, and None for each that is longer than any sentence: a file without line ends is not held."""
    most_bytes = 8 * max_characters + 64
    try:
        with open_bytes(path) as file:
            while line := file.readline(most_bytes):
                if line.endswith(b"\n") or len(line) < most_bytes:
                    yield line
                    continue
                while (rest := file.readline(most_bytes)) and not rest.endswith(b"\n"):
                    pass
                yield None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path} is damaged or cut short ({error}). Fetch or compress it again.") from error
    except OSError as error:
        raise CorpusError(f"{path} can't be read: {error.strerror or error}.") from error


def open_bytes(path: Path) -> BinaryIO:
    """A file, or what a .gz holds."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]
