"""A file is read as what its name says, and what is no file of texts is refused."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import json
import lzma
import os
import zipfile

import datasets
import pytest
from datasets import Dataset

from st_contrastive.inputs import load_graded_pairs, load_pairs, load_sentences, load_translations

TEXTS = ["A cat sleeps.", "Straße, naïve", "今天很好。", 'He said "go".']
LINES = {
    "txt": "\n".join(TEXTS),
    "pt": "\n".join(TEXTS),  # Portuguese, of a parallel corpus
    "jsonl": "".join(json.dumps({"body": text}) + "\n" for text in TEXTS),
    "csv": "body\n" + "".join('"' + text.replace('"', '""') + '"\n' for text in TEXTS),
    "tsv": "id\tbody\n" + "".join(f"{n}\t{text}\n" for n, text in enumerate(TEXTS)),
}
LINES |= {"ndjson": LINES["jsonl"], "jsonlines": LINES["jsonl"], "jl": LINES["jsonl"], "tab": LINES["tsv"]}
PACK = {"": lambda data: data, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


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


def test_compressed_pairs(tmp_path):
    rows = "".join(f"{text}\t{text[::-1]}\n" for text in TEXTS)
    for name, pack in PACK.items():
        pairs = load_translations(write(tmp_path / f"p.tsv{name}", pack(rows.encode())))
        assert pairs.to_dict() == {"sentence": TEXTS, "translation": [text[::-1] for text in TEXTS]}


REFUSED = {
    "page.html": "<p>One</p>\n",
    "memory.tmx": '<?xml version="1.0"?>\n<tmx>\n',
    "film.srt": "1\n00:00:01,000 --> 00:00:02,000\nOne\n",
    "paper.PDF": "text that a tool has extracted\n",
    "table.xlsx": b"PK\x03\x04 ",
    "dump.pkl.gz": gzip.compress(b"\x80\x04"),
    "file.arrow": b"\xff\xff\xff\xff\0\0",
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("read", [load_sentences, load_pairs, load_translations, load_graded_pairs])
def test_endings_that_are_no_lines_of_text(tmp_path, name, read):
    ending = name.removesuffix(".gz").partition(".")[2].lower()
    with pytest.raises(ValueError, match=rf"ends in \.{ending}, .*list of strings"):
        read(write(tmp_path / name, REFUSED[name]))
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        read(f"missing-{name}")


CONTENTS = {
    "json lines": (LINES["jsonl"], r"JSON.*\.jsonl"),
    "json": (json.dumps([{"id": 1, "body": text} for text in TEXTS], indent=2), r"JSON.*\.json"),
    "json of lists": ("".join(json.dumps([text, 1]) + "\n" for text in TEXTS), "JSON"),
    "xml": ("<docs>\n" + "".join(f" <p>{text}</p>\n" for text in TEXTS) + "</docs>\n", "tags"),
    "csv": ("id,text,label\n" + "".join(f'{n},"a, b and {n}",x\n' for n in range(9)), r"id, text, label.*\.csv"),
    "semicolons": ("id;text\n" + "".join(f"{n};some, words {n}\n" for n in range(9)), r"id, text: .*\.csv"),
    "tabs": ("".join(f"{n}\tsome words {n}\n\n" for n in range(9)), r"tabs.*\.tsv"),
    "zeros": (bytes(600), "zero bytes"),
    "some zeros": (b"A line of text.\n" * 20 + bytes(100), "zero bytes"),
    "utf-16": ("Grüße\nab\n".encode("utf-16-be"), "UTF-16"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_what_a_text_file_may_not_hold(tmp_path, name):
    content, message = CONTENTS[name]
    for path in (write(tmp_path / "c.txt", content), write(tmp_path / "no-ending", content)):
        for streaming in (False, True):
            with pytest.raises(ValueError, match=message) as info:
                load_sentences(path, streaming=streaming)
            assert str(path) in str(info.value)
    if name not in ("zeros", "some zeros", "utf-16"):
        with pytest.raises(ValueError, match=message):
            load_pairs(path, pairs="first")


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
    with pytest.raises(ValueError, match=r"not a whole \.zip file"):
        load_sentences(write(tmp_path / "cut.zip", zipped(tmp_path / "z.zip", a_txt="a\n").read_bytes()[:30]))
    for ending, pack in list(PACK.items())[1:]:
        cut = write(tmp_path / f"cut.jsonl{ending}", pack(os.urandom(3000).hex().encode())[:-900])
        with pytest.raises(ValueError, match="Fetch or compress it again"):
            load_sentences(cut)
    Dataset.from_dict({"t": TEXTS}).to_parquet(tmp_path / "t.parquet")
    packed = write(tmp_path / "t.parquet.gz", gzip.compress((tmp_path / "t.parquet").read_bytes()))
    with pytest.raises(ValueError, match=r"compressed Parquet table\. Unpack it"):
        load_sentences(packed)
    if importlib.util.find_spec("zstandard") is None:
        with pytest.raises(ValueError, match=r"c\.txt\.zst.*pip install zstandard"):
            load_sentences(write(tmp_path / "c.txt.zst", b"\x28\xb5\x2f\xfd"))


def test_a_folder_says_what_it_does_not_read(tmp_path):
    for name in ("a.txt", "b.txt.gz", "c.html", "notes.md", "more/d.docx", ".hidden"):
        content = name.encode() + b"\n"
        (tmp_path / "more").mkdir(exist_ok=True)
        write(tmp_path / name, gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.warns(
        UserWarning, match=r"2 files are read, and 3 of other endings are not: c\.html, more/d\.docx, notes"
    ):
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


def test_a_replaced_file_of_pairs(tmp_path):
    for text in ("first", "other"):
        path = write(tmp_path / "p.tsv", f"{text}\tText\n")
        os.utime(path, ns=(10**18, 10**18))
        assert load_translations(path)["sentence"][:] == [text]


@pytest.mark.parametrize("read", [load_sentences, lambda path: load_pairs(path, columns="id,body")])
def test_a_cache_that_cannot_be_written_is_not_the_corpus(tmp_path, monkeypatch, read):
    write(tmp_path / "file", "")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file" / "cache")
    with pytest.raises(OSError, match=r"^The cache .*file/cache, can't be written.*HF_DATASETS_CACHE"):
        read(write(tmp_path / "c.tsv", "id\tbody\nx\ta\ny\tb\n" if read is not load_sentences else "body\na\nb\n"))
