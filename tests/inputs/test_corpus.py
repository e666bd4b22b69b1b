from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from st_contrastive.inputs import CorpusError, read_corpus, read_parallel, stream_corpus


def write(path, content):
    path.write_bytes(content)
    return path


def test_every_rule_and_every_count(tmp_path):
    lines = [
        b"\xef\xbb\xbfThe first line, after a byte order mark.",
        b"",
        b"   \t ",
        b"\x00\x07",
        "Straße und Äpfel,  double  spaces.".encode(),
        b"not utf-8: \xff\xfe",
        b"tab\there\x00, and\x0bhere",
        b"  spaces around  \r",
        b"x" * 51,
        b"y" * 5000,
        b"the last line has no end",
    ]
    corpus = read_corpus(write(tmp_path / "c.txt", b"\n".join(lines)), max_characters=50)
    assert corpus.sentences == [
        "The first line, after a byte order mark.",
        "Straße und Äpfel,  double  spaces.",
        "tab here, and here",
        "spaces around",
        "the last line has no end",
    ]
    assert asdict(corpus.report) == {
        "lines": 11, "taken": 5, "blank": 3, "too_long": 2, "undecodable": 1, "without_partner": 0, "cleaned": 1,
    }  # fmt: skip
    assert str(corpus.report) == (
        "5 of 11 lines taken; left out: 3 blank, 2 too long, 1 not UTF-8; control characters removed from 1"
    )


@given(st.lists(st.binary(max_size=30)))
def test_every_line_is_counted(tmp_path_factory, lines):
    # As many good lines as others: a file whose lines are mostly not UTF-8 is refused.
    good = [b"One good line."] * (2 + b"\n".join(lines).count(b"\n"))
    path = write(tmp_path_factory.mktemp("c") / "c.txt", b"\n".join([*good, *lines, b""]))
    report = read_corpus(path, max_characters=20).report
    counts = asdict(report)
    assert report.lines == len(path.read_bytes().removesuffix(b"\n").split(b"\n"))
    assert report.lines == sum(counts[key] for key in ("taken", "blank", "too_long", "undecodable"))


def test_gzip_and_limit(tmp_path):
    path = write(tmp_path / "c.txt.gz", gzip.compress(b"one line\nsecond line\nthird line\n"))
    assert read_corpus(path).sentences == ["one line", "second line", "third line"]
    assert read_corpus(path, limit=2).sentences == ["one line", "second line"]
    cut = write(tmp_path / "cut.txt.gz", gzip.compress(b"a line of text\n" * 10_000)[:-40])
    with pytest.raises(CorpusError, match="cut short"):
        read_corpus(cut)
    with pytest.raises(CorpusError, match="damaged"):
        read_corpus(write(tmp_path / "not.gz", b"plain text\n"))


def test_unreadable_files_and_bad_limits_are_named(tmp_path):
    with pytest.raises(CorpusError, match="No such file"):
        read_corpus(tmp_path / "missing.txt")
    with pytest.raises(CorpusError, match="directory"):
        read_corpus(tmp_path)
    with pytest.raises(CorpusError, match="holds no sentence"):
        read_corpus(write(tmp_path / "empty.txt", b"\n\n"))
    with pytest.raises(
        CorpusError, match=r"latin1\.txt is not UTF-8 text \(1 of 3 lines taken; left out: 2 not UTF-8\)"
    ):
        read_corpus(write(tmp_path / "latin1.txt", "Straße\nÄpfel\nBirnen\n".encode("latin1")))
    for options in ({"limit": 0}, {"max_characters": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            read_corpus(tmp_path / "empty.txt", **options)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("Grüße aus Köln.\nEs regnet.\n".encode("utf-16"), "UTF-16 text, not UTF-8. Convert it"),
        ("Grüße aus Köln.\nEs regnet.\n".encode("utf-16-be"), "UTF-16 text"),
        ("Es regnet.\nWieder.\n".encode("utf-16-le"), "UTF-16 text"),
        (codecs.BOM_UTF16_BE + "今天\n".encode("utf-16-be"), "UTF-16 text"),
        (gzip.compress(b"a line\n" * 9, mtime=0), "compressed by gzip, not UTF-8. Write it as text"),
        (bz2.compress(b"a line\n" * 9), "compressed by bzip2"),
        (lzma.compress(b"a line\n" * 9), "compressed by xz"),
        (b"PK\x03\x04 a line\nanother\n", "a zip archive"),
        (b"PAR1 a line\nanother\n", "a Parquet table"),
    ],
)
def test_files_that_are_not_text_are_named(tmp_path, content, kind):
    with pytest.raises(CorpusError, match=kind):
        read_corpus(write(tmp_path / "corpus.txt", content))
    with pytest.raises(CorpusError, match=kind):
        read_corpus(write(tmp_path / "corpus.txt.gz", gzip.compress(content)), limit=1)


@pytest.mark.parametrize("name", ["c.csv", "c.tsv.gz", "c.JSONL", "c.json", "c.parquet"])
def test_tables_are_not_read_as_sentences(tmp_path, name):
    path = write(tmp_path / name, b"id,text\n1,a cat\n")
    for read in (read_corpus, stream_corpus):
        with pytest.raises(CorpusError, match=r"is a table by its name .*load_dataset\('(csv|json|parquet)'"):
            read(path)


def test_the_longest_line_and_white_space_that_is_no_control_character(tmp_path):
    path = write(tmp_path / "c.txt", "\u3000今天很好。\n\xa0tenletters\nelevenletter\n".encode())
    corpus = read_corpus(path, max_characters=10)
    assert corpus.sentences == ["今天很好。", "tenletters"]
    assert (corpus.report.too_long, corpus.report.cleaned) == (1, 0)


def test_parallel_lines_stay_together(tmp_path):
    english = write(tmp_path / "en", b"one\n\nthree\nfour\nfive\n")
    german = write(tmp_path / "de", b"eins\nzwei\n\xff\nvier\n\n")
    corpus = read_parallel(english, german)
    assert (corpus.sentences, corpus.translations) == (["one", "four"], ["eins", "vier"])
    assert (corpus.report.lines, corpus.report.taken, corpus.report.blank) == (5, 2, 1)
    assert corpus.report.without_partner == 2
    short = write(tmp_path / "short", b"eins\nzwei\ndrei\n")
    for limit in (None, 1, 2):
        with pytest.raises(CorpusError, match="fewer lines"):
            read_parallel(english, short, limit=limit)
    limited = read_parallel(english, german, limit=1)
    assert (limited.sentences, limited.report.lines) == (["one"], 1)
    latin1 = "ß\nß\nß\nß\nzwei\n".encode("latin1")
    with pytest.raises(CorpusError, match=r"latin1 is not UTF-8 text"):
        read_parallel(english, write(tmp_path / "latin1", latin1))
    with pytest.raises(CorpusError, match="more lines"):
        read_parallel(english, write(tmp_path / "long", b"x\n" * 9))
