"""A file is read as what its name says, and what is no file of texts is refused."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pathlib
import random
import tarfile
import warnings
import zipfile
from datetime import datetime

import datasets
import pytest
from datasets import Dataset

from st_contrastive.inputs import load_graded_pairs, load_pairs, load_sentences, load_translations
from tests.inputs.files import write

TEXTS = ["A cat sleeps.", "Straße, naïve", "今天很好。", 'He said "go".']
LINES = {
    "txt": "\n".join(TEXTS),
    "pt": "\n".join(TEXTS),  # Portuguese, of a parallel corpus
    "json": json.dumps([{"body": text} for text in TEXTS]),
    "jsonl": "".join(json.dumps({"body": text}) + "\n" for text in TEXTS),
    "csv": "body\n" + "".join('"' + text.replace('"', '""') + '"\n' for text in TEXTS),
    "tsv": "id\tbody\n" + "".join(f"{n}\t{text}\n" for n, text in enumerate(TEXTS)),
}
LINES |= {"ndjson": LINES["jsonl"], "jsonlines": LINES["jsonl"], "jl": LINES["jsonl"], "tab": LINES["tsv"]}
PACK = {"": lambda data: data, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def zipped(path, **files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("_", "."), content)
    return path


@pytest.mark.parametrize("ending", LINES)
def test_every_ending_and_compression(tmp_path, ending):
    for compression, pack in PACK.items():
        path = write(tmp_path / f"c.{ending}{compression}", pack(LINES[ending].encode()))
        assert load_sentences(path)["sentence"][:] == TEXTS
    for name in (f"z.{ending}.ZIP", "z.zip"):
        path = zipped(tmp_path / name, **{f"inner_{ending}": LINES[ending]})
        assert load_sentences(path)["sentence"][:] == TEXTS
        with pytest.warns(UserWarning, match="4 rows"):
            assert [row["sentence"] for row in load_sentences(path, streaming=True)] == TEXTS


REFUSED = {
    "page.html": "<p>One</p>\n",
    "memory.tmx": '<?xml version="1.0"?>\n<tmx>\n',
    "film.srt": "1\n00:00:01,000 --> 00:00:02,000\nOne\n",
    "paper.PDF": "text that a tool has extracted\n",
    "table.xlsx": b"PK\x03\x04 ",
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("read", [load_sentences, load_pairs, load_translations, load_graded_pairs])
def test_endings_that_are_no_lines_of_text(tmp_path, name, read):
    ending = name.partition(".")[2].lower()
    with pytest.raises(ValueError, match=rf"ends in \.{ending}, .*list of strings"):
        read(write(tmp_path / name, REFUSED[name]))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read(f"missing-{name}")


#: Files that can't be read as their names say, and words of the message.
WRONG = {
    "lines of JSON.txt": (LINES["jsonl"], r"JSON.*\.jsonl"),
    "JSON.txt": (json.dumps([{"id": 1, "body": text} for text in TEXTS], indent=2), r"JSON.*\.json"),
    "lists of JSON.txt": ("".join(json.dumps([text, 1]) + "\n" for text in TEXTS), "JSON"),
    "xml.txt": ("<docs>\n" + "".join(f" <p>{text}</p>\n" for text in TEXTS) + "</docs>\n", "tags"),
    "csv.txt": ("id,text,label\n" + "".join(f'{n},"a, b and {n}",x\n' for n in range(9)), r"id, text, label.*\.csv"),
    "semicolons.txt": ("id;text\n" + "".join(f"{n};some, words {n}\n" for n in range(9)), r"id, text: .*\.csv"),
    "tabs.txt": ("".join(f"{n}\tsome words {n}\n\n" for n in range(9)), r"tabs.*\.tsv"),
    "no-ending": ("".join(f"{n}\tsome words {n}\n\n" for n in range(9)), r"tabs.*\.tsv"),
    "zeros.txt": (bytes(600), "not text"),
    "some zeros.txt": (b"A line of text.\n" * 20 + bytes(100), "not text"),
    "noise.txt": (random.Random(0).randbytes(600), "not text"),
    "plain.txt.gz": (b"plain", r"truncated or not a valid \.gz file"),
    "pdf.txt": (b"%PDF-1.7\n", "PDF"),
    "lfs.txt": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "Git LFS pointer.*git lfs pull"),
    "page.csv": (b"\n <!DOCTYPE html><html>", "web page"),
    "page.txt.gz": (gzip.compress(b"<html>"), "web page"),
    "utf-16.txt": ("Grüße\nab\n".encode("utf-16"), "UTF-16.*iconv -f utf-16"),
    "utf-16 without mark.txt": ("Grüße\nab\n".encode("utf-16-be"), "control bytes.*UTF-16.*iconv"),
    "utf-16.csv": ("text\nab\n".encode("utf-16-le"), "UTF-16"),
    "latin.txt": ("fine\nStraße\n".encode("latin1"), "byte 0xdf.*not UTF-8.*iconv -f latin1"),
    "latin.csv": ("t\nStraße\n".encode("latin1"), "not UTF-8"),
    "empty.txt": (b"", "is empty"),
    "two.csv": (b"title,body\na,b\n", "title, body.*column="),
    "bad.jsonl": (b'{"a": "x"}\n{broken\n', "row 1"),
    "lists.jsonl": ('["a", "b"]\n' * 3, "a list or a string on each line"),
    "strings.jsonl": ('"a"\n' * 3, "a list or a string on each line"),
    "pandas.json": (b'{"title":{"0":"a","1":"b"},"body":{"0":"c","1":"d"}}', "a table by columns.*orient="),
    "a column of lists.jsonl": ('{"set": ["a", "b"]}\n' * 3, r"only set \(list of string\)"),
    "columns of lists.jsonl": (
        '{"query": "a", "pos": ["b"], "neg": ["c"]}\n' * 3,
        r"query, pos \(list of string\), neg",
    ),
    "wide.csv": (b"a\nx, y\nz, w\n", "line 2: the row has 2 fields, but the heading has 1 .*quoted"),
    "ids.jsonl": (b'{"data": [1, 2]}\n', "no column of text"),
    "blank.txt": (b"\n\n\na\n", "4 rows, 3 empty.*column='text'"),
    "same.txt": (b"a\na\na\nb\na\n", "3 repeated"),
}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_named(tmp_path, name, streaming):
    content, message = WRONG[name]
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError, match=message) as info:
        list(load_sentences(path, streaming=streaming))
    assert str(path) in str(info.value) or (name, streaming) == ("bad.jsonl", True)  # a stream has pyarrow's words
    assert "datasets.load_dataset" not in str(info.value)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("ending", ["txt", "jsonl", "csv", "tsv"])
@pytest.mark.parametrize("compression", [".gz", ".bz2", ".xz"])
def test_compressed_files_under_any_name(tmp_path, compression, ending, streaming):
    names = [f"c.{ending}", f"d.{ending}.zip"]
    if ending == "txt":
        names += ["no-ending", "corpus.de"]
    for name in names:
        path = write(tmp_path / name, PACK[compression](LINES[ending].encode()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the counts of a stream
            assert [row["sentence"] for row in load_sentences(path, streaming=streaming)] == TEXTS


PACKAGES = {"zst": ("zstandard", "compress"), "lz4": ("lz4.frame", "compress")}


@pytest.mark.parametrize("name", ["c.txt.{}", "c.txt", "d.csv.{}", "e.jsonl.{}"])
@pytest.mark.parametrize("ending", PACKAGES)
def test_files_that_a_package_unpacks(tmp_path, ending, name):
    module, function = PACKAGES[ending]
    pack = getattr(pytest.importorskip(module), function)
    name = name.format(ending)
    content = LINES[name.split(".")[1]].encode()
    path = write(tmp_path / name, pack(content))
    assert load_sentences(path)["sentence"][:] == TEXTS
    with pytest.raises(ValueError, match=rf"truncated or not a valid \.{ending} file"):
        load_sentences(write(tmp_path / f"cut{name}", pack(os.urandom(3000).hex().encode())[:-900]))


def tar(name, content):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


#: Compressed files that can't be read: what is said of them.
UNREADABLE = {
    "7z": (b"7z\xbc\xaf\x27\x1c" + bytes(600), "by 7-Zip.*7z x"),
    "rar": (b"Rar!\x1a\x07\x01\0" + bytes(600), "by RAR.*unrar"),
    "Z": (b"\x1f\x9d\x90" + b"text" * 200, "by Unix compress.*uncompress"),
    "lzma": (lzma.compress(b"a\nb\n" * 90, format=lzma.FORMAT_ALONE), "by LZMA.*unlzma"),
    "lz": (b"LZIP\x01" + bytes(600), "by lzip"),
    "sz": (b"\xff\x06\0\0sNaPpY" + bytes(600), "by Snappy"),
    "tar": (tar("a.txt", b"a\nb\n"), "a tar archive.*tar -xf"),
    "tar.gz": (gzip.compress(tar("a.txt", b"a\nb\n")), "a tar archive.*tar -xf"),
    "gz": (gzip.compress(gzip.compress(b"a\nb\n")), "compressed twice"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_compressed_files_that_are_not_read(tmp_path, kind):
    content, message = UNREADABLE[kind]
    for name in (f"c.csv.{kind}", f"c.{kind}", "c.txt", "no-ending", "c.jsonl"):
        with pytest.raises(ValueError, match=rf"{name} is .*{message}") as info:
            load_sentences(write(tmp_path / name, content))
        assert "iconv" not in str(info.value)


@pytest.mark.parametrize("ending", ["br", "snappy"])
def test_compressed_files_that_only_their_names_tell(tmp_path, ending):
    with pytest.raises(ValueError, match="is compressed by"):
        load_sentences(write(tmp_path / f"c.csv.{ending}", random.Random(0).randbytes(600)))
    breton = write(tmp_path / f"corpus.{ending}", "Demat d’an holl.\nÉ" + "é" * 600)  # cut in a character
    assert len(load_sentences(breton)) == 2


@pytest.mark.parametrize("package", ["zstandard", "lz4"])
def test_a_compression_whose_package_is_missing(tmp_path, monkeypatch, package):
    monkeypatch.setattr("st_contrastive._file_kinds.find_spec", lambda name: None)
    start = {"zstandard": b"\x28\xb5\x2f\xfd", "lz4": b"\x04\x22\x4d\x18"}[package]
    for name in ("c.txt", "c.jsonl.x"):
        with pytest.raises(ValueError, match=f"compressed.*pip install {package}"):
            load_sentences(write(tmp_path / name, start + b"text" * 300))


@pytest.mark.parametrize(
    "lines",
    [
        ["Cats, dogs", "rain, snow", "sun, wind"],
        ["Well, yes", "No; never", "[Applause]", "{sic}", "a < b", "<3", '"So": he said it'],
        ["Cats,dogs", "and a longer line", "here"],
    ],
)
def test_texts_that_only_look_like_tables(tmp_path, lines):
    assert load_sentences(write(tmp_path / "c.txt", "\n".join(lines)))["sentence"][:] == lines


def test_archives_that_are_refused(tmp_path):
    two = zipped(tmp_path / "two.zip", a_txt="a\nb\n", b_txt="c\n")
    with pytest.raises(ValueError, match=r"two\.zip is a zip archive of 2 files"):
        load_sentences(two)
    with pytest.raises(ValueError, match=r"truncated or not a valid \.zip file"):
        load_sentences(write(tmp_path / "cut.zip", zipped(tmp_path / "z.zip", a_txt="a\n").read_bytes()[:30]))
    for ending, pack in list(PACK.items())[1:]:
        cut = write(tmp_path / f"cut.jsonl{ending}", pack(os.urandom(3000).hex().encode())[:-900])
        with pytest.raises(ValueError, match="Fetch or compress it again"):
            load_sentences(cut)


def test_links_in_a_folder_are_followed(tmp_path):
    corpus, outside = tmp_path / "corpus", tmp_path / "outside"
    for number, path in enumerate((corpus / "a.txt", outside / "b.txt", outside / "more" / "c.txt")):
        path.parent.mkdir(exist_ok=True)
        write(path, f"text {number}\n")
    (corpus / "b.txt").symlink_to(outside / "b.txt")
    (corpus / "more").symlink_to(outside / "more")
    (outside / "more" / "back").symlink_to(corpus)  # without end, if it were followed
    (corpus / "gone.txt").symlink_to(outside / "gone.txt")
    (corpus / "gone").symlink_to(outside / "gone")
    with pytest.warns(
        UserWarning, match=r"3 files are read, and 2 others are not: gone \(a link to .*gone\.txt \(a link"
    ):
        assert sorted(load_sentences(corpus)["sentence"][:]) == ["text 0", "text 1", "text 2"]
    (tmp_path / "link").symlink_to(outside / "more")
    assert load_sentences(tmp_path / "link" / "c.txt")["sentence"][:] == ["text 2"]
    for name in ("gone.txt", "gone"):
        with pytest.raises(FileNotFoundError, match=r"gone.* is a link to .*which does not exist"):
            load_sentences(corpus / name)


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    write(tmp_path / "a.txt", "a\n")
    (tmp_path / "locked").mkdir(mode=0)
    listed = pathlib.Path.iterdir

    def iterdir(folder):
        if folder.name == "locked":  # as for a user who is not root
            raise PermissionError(13, "Permission denied", str(folder))
        return listed(folder)

    monkeypatch.setattr(pathlib.Path, "iterdir", iterdir)
    with pytest.raises(PermissionError, match="locked"):
        load_sentences(tmp_path)


DATES = ["2021-03-01", "2021-03-02T10:00:00", "1999-12-31 23:59:59", "2021-03-04T10:00:00Z"]


@pytest.mark.parametrize("ending", ["jsonl", "json", "jsonl.gz", "json.zip"])
@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.filterwarnings("ignore:One pass over")
def test_texts_of_json_that_look_like_dates(tmp_path, ending, streaming):
    for form in (DATES[:1], DATES):
        rows = [
            {"n": n, "title": date, "body": f"text {n}", "doc": {"day": date, "tags": [date]}}
            for n, date in enumerate(form * 3)
        ]
        rows[1].pop("n")
        content = (
            json.dumps(rows) if ending.startswith("json.") or ending == "json" else "\n".join(map(json.dumps, rows))
        )
        path = tmp_path / f"c.{ending}"
        if ending.endswith("zip"):
            zipped(path, c_json=content)
        else:
            write(path, gzip.compress(content.encode()) if ending.endswith("gz") else content)
        pairs = load_pairs(path, streaming=streaming)
        assert [(row["sentence"], row["other"]) for row in pairs] == [(row["title"], row["body"]) for row in rows]
        if not streaming:
            days = load_sentences(path, column="doc.day", repeats=True)
            assert days["sentence"][:] == [row["title"] for row in rows]


def test_dates_of_a_table_are_not_texts(tmp_path):
    data = Dataset.from_dict({"title": [datetime(2021, 3, 1)], "body": ["a"]})
    with pytest.raises(ValueError, match=r"column='title': .*title \(timestamp"):
        load_pairs(data)


def test_a_folder_says_what_it_does_not_read(tmp_path):
    for name in ("a.txt", "b.txt.gz", "c.html", "notes.md", "more/d.docx", ".hidden"):
        content = name.encode() + b"\n"
        (tmp_path / "more").mkdir(exist_ok=True)
        write(tmp_path / name, gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.warns(UserWarning, match=r"2 files are read, and 3 others are not: c\.html, more/d\.docx, notes"):
        assert sorted(load_sentences(tmp_path)["sentence"][:]) == ["a.txt", "b.txt.gz"]


@pytest.mark.parametrize(
    ("name", "content"), [("c.txt", "{}\n"), ("c.jsonl", '{{"t": "{}"}}\n'), ("c.txt.gz", "{}\n"), ("c.csv", "t\n{}\n")]
)
def test_a_file_that_is_replaced_under_its_name_and_time(tmp_path, name, content):
    for folder in (False, True):
        for text in ("first", "other"):  # of the same length
            data = content.format(text).encode()
            path = write(tmp_path / name, gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
            os.utime(path, ns=(10**18, 10**18))
            assert load_sentences(tmp_path if folder else path)["sentence"][:] == [text]


@pytest.mark.parametrize("read", [load_sentences, lambda path: load_pairs(path, columns="id,body")])
def test_a_cache_that_cannot_be_written_is_not_the_corpus(tmp_path, monkeypatch, read):
    write(tmp_path / "file", "")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file" / "cache")
    with pytest.raises(OSError, match=r"^The cache .*file/cache, can't be written.*HF_DATASETS_CACHE"):
        read(write(tmp_path / "c.tsv", "id\tbody\nx\ta\ny\tb\n" if read is not load_sentences else "body\na\nb\n"))
