"""Every source gives its sentences, every row is accounted for, and every wrong thing is named."""

from __future__ import annotations

import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict, IterableDataset
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from st_contrastive.inputs import describe, load_pairs, load_sentences, streams, text_dataset
from st_contrastive.inputs.row_filter import RowCounts, get_row_counts
from st_contrastive.inputs.segments import split_sentences
from tests.inputs.files import write

TEXTS = ["A cat sleeps.", "Straße, naïve  double  spaces", "今天很好。", 'He said "go".']


def iter_texts(data):
    return [row["sentence"] for row in data]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("crlf.txt", "\ufeff" + "\r\n".join(TEXTS)),
        ("no-ending", "\n".join(TEXTS)),
        ("strings.json", json.dumps(TEXTS)),
        ("semicolons.csv", "\n\nid;body\n" + "".join(f"{n};{text}\n" for n, text in enumerate(TEXTS))),
    ],
)
def test_files(tmp_path, name, content):
    path = write(tmp_path / name, content)
    assert load_sentences(path)["sentence"][:] == TEXTS
    stream = load_sentences(str(path), streaming=True)
    assert isinstance(stream, IterableDataset)
    with pytest.warns(UserWarning, match="4 rows, 0 empty, 0 repeated"):
        assert iter_texts(stream) == TEXTS


def test_names_that_look_like_patterns(tmp_path):
    write(tmp_path / "c1.txt", "another file")
    assert load_sentences(write(tmp_path / "c[1]*.txt", "\n".join(TEXTS)))["sentence"][:] == TEXTS


def test_a_column_that_is_named_is_text_whatever_its_cells_look_like(tmp_path):
    words = ["true", "1e5", "12", "2001-01-01", "", "a", "b"]
    bodies = [*words, *(f"t{n}" for n in range(12_000)), "c"]
    rows = Dataset.from_dict({"body": bodies, "note": [*[""] * (len(bodies) - 1), "late"]})
    rows.to_csv(tmp_path / "c.csv")
    data = load_sentences(tmp_path / "c.csv", column="body")
    assert data["sentence"][:6] == [word for word in words if word][:6]
    assert get_row_counts(data).dropped["empty"] == 1
    multiline = write(tmp_path / "m.csv", 'body\n"one\ntwo"\nthree\n')
    assert load_sentences(multiline)["sentence"][:] == ["one\ntwo", "three"]
    nested = write(tmp_path / "n.jsonl", '{"doc": {"body": "a", "id": 1}}\n{"doc": {"body": "b", "id": 2}}\n')
    assert load_sentences(nested, column="doc.body")["sentence"][:] == ["a", "b"]
    with pytest.warns(UserWarning, match="2 rows"):
        assert iter_texts(load_sentences(nested, column="doc.body", streaming=True)) == ["a", "b"]


def test_every_file_of_a_folder_is_read_as_by_itself(tmp_path):
    folder = tmp_path / "test"  # a name that the user gave
    write(folder / "train_travel.txt", "a\nb\n")
    write(folder / "more" / "plane_test_flights.TXT", "c\n")
    write(folder / ".hidden.txt", "no\n")
    assert sorted(load_sentences(folder)["sentence"][:]) == ["a", "b", "c"]
    with pytest.warns(UserWarning, match="3 rows"):
        assert sorted(iter_texts(load_sentences(folder, streaming=True))) == ["a", "b", "c"]
    tables = tmp_path / "tables"
    write(tables / "a.csv", "id,body\n1,a\n")
    write(tables / "b.csv", "id;body\n2;b, c\n")
    assert load_sentences(tables)["sentence"][:] == ["a", "b, c"]
    write(tables / "c.txt", "d\n")
    with pytest.raises(ValueError, match=r"tables must hold files of one kind .*, but holds csv and text"):
        load_sentences(tables)
    for name in ("train-00000-of-00001.txt", "test.txt"):
        write(tmp_path / "split" / name, "a\n")
        write(tmp_path / "parts" / f"corpus-{name[:5].strip('.-')}.txt", "a\n")
    for folder in ("split", "parts"):
        with pytest.raises(ValueError, match="holds the splits test, train"):
            load_sentences(tmp_path / folder)
    write(tables / "c.csv", "Id,Body\n3,e\n")
    (tables / "c.txt").unlink()
    with pytest.raises(ValueError, match=r"c\.csv has the columns Id, Body, but .*a\.csv has id, body"):
        load_sentences(tables, column="body")
    (tables / "c.csv").replace(tables / "a.csv")
    with pytest.raises(ValueError, match=r"b\.csv has the columns id, body, but .*a\.csv has Id, Body"):
        load_sentences(tables, column="body")
    write(tmp_path / "json" / "a.jsonl", '{"body": "a"}\n')
    write(tmp_path / "json" / "b.jsonl", '{"body": "b", "tags": "c"}\n')
    with pytest.raises(ValueError, match=r"json can't be read: .*same columns"):
        load_sentences(tmp_path / "json", column="body")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"one kind \(\.txt.*holds none"):
        load_sentences(tmp_path / "empty")
    Dataset.from_dict({"body": TEXTS}).save_to_disk(tmp_path / "saved")
    with pytest.warns(UserWarning, match="4 rows"):
        assert iter_texts(load_sentences(tmp_path / "saved", streaming=True)) == TEXTS
    splits = {"test": Dataset.from_dict({"body": ["t"]}), "validation": Dataset.from_dict({"body": ["v"]})}
    DatasetDict(splits).save_to_disk(tmp_path / "splits")
    with pytest.raises(ValueError, match=r"source .*splits can't be read: .*splits/train"):
        load_sentences(tmp_path / "splits")
    DatasetDict({**splits, "train": Dataset.from_dict({"body": TEXTS})}).save_to_disk(tmp_path / "train")
    assert load_sentences(tmp_path / "train")["sentence"][:] == TEXTS


def test_sources_that_are_no_files(tmp_path):
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder" / "a.txt", "\n".join(TEXTS))
    data = Dataset.from_dict({"n": [1, 2, 3, 4], "body": TEXTS})
    for source in (tmp_path / "folder", TEXTS, iter(TEXTS), data, data["body"], load_sentences(TEXTS)):
        assert load_sentences(source)["sentence"][:] == TEXTS
    with pytest.warns(UserWarning, match="4 rows"):
        assert iter_texts(load_sentences(data.to_iterable_dataset())) == TEXTS


@given(st.lists(st.sampled_from(["a", "b", "c", " a ", "", " \t", "\u200b", "日本"]) | st.text(max_size=5), min_size=1))
@settings(max_examples=10)
def test_every_row_is_kept_or_counted(rows):
    rows = [*rows, *(f"filler {n}" for n in range(len(rows) + 1))]  # most of them are new
    data = load_sentences(rows)
    counts = get_row_counts(data)
    assert counts.rows == len(rows) == len(data) + sum(counts.dropped.values())
    assert data["sentence"][:] == list(dict.fromkeys(text for text in data["sentence"][:]))
    assert set(data["sentence"][:]) <= {row.strip().strip("\ufeff").strip() for row in rows}
    assert not any(text == "" for text in data["sentence"])


@pytest.mark.parametrize(
    "text", ["\ufeff A cat", " \ufeff\ufeff A cat \ufeff ", "\ufeff\n\ufeff A cat\ufeff", "A cat \ufeff"]
)
def test_byte_order_marks_leave_no_space(text):
    assert load_sentences([text, "A cat", "x"])["sentence"][:] == ["A cat", "x"]


def test_no_text_is_left_out_for_its_length():
    long = "word " * 200_000
    assert load_sentences([long, "short"])["sentence"][:] == [long.strip(), "short"]


def test_documents_are_cut_into_sentences():
    first = "Dr. Smith\nis here. Two there.\n\n \nA heading"
    documents = [first, "Two there. Three.", "", "今天下雨。我们回家！！", first]
    data = load_sentences(documents, segment="sentences")
    assert data["sentence"][:] == [
        "Dr. Smith is here.",
        "Two there.",
        "A heading",
        "Three.",
        "今天下雨。",
        "我们回家！！",
    ]
    assert get_row_counts(data) == RowCounts(5, {"empty": 1, "repeated": 1, "repeated sentences": 1})
    german = ["Am 12. April kam er.", "Das ist z. B. ein Satz."]
    assert load_sentences([" ".join(german)], segment="de")["sentence"][:] == german


@given(st.text(max_size=80))
def test_splitting_loses_nothing_but_white_space(text):
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())


def test_a_heading_alone_has_no_row(tmp_path):
    for column in (None, "a"):
        with pytest.raises(ValueError, match="no row"):
            load_sentences(write(tmp_path / "c.csv", "a,b\n"), column=column)


def test_wrong_sources_are_named(tmp_path):
    for missing in (tmp_path / "none.txt", "none.csv", "./none"):
        with pytest.raises(FileNotFoundError, match="none"):
            load_sentences(missing)
    with pytest.raises(ValueError, match="owner/name"):
        load_sentences("owner/name")  # the hub can't be reached from here
    data = Dataset.from_dict({"title": ["a"], "body": ["b"], "n": [1]})
    for source, options, error, message in (
        (data, {"column": "text"}, ValueError, r"column='text'.*title, body"),
        (DatasetDict(train=data), {}, TypeError, r"source\['train'\]"),
        ([["title", "body"]], {}, TypeError, r"source\[0\].*row\[0\]"),
        (["a", None], {}, TypeError, r"source\[1\]"),
        (["Berichte/März.txt", "Berichte/Mai.txt"], {}, ValueError, "list of file names"),
        (["a"], {"segment": "words"}, ValueError, r"segment.*'words'"),
        (["a"], {"repeats": "false"}, ValueError, "repeats.*'false'"),
        (7, {}, ValueError, "source.*7"),
    ):
        with pytest.raises(error, match=message):
            load_sentences(source, **options)


def test_the_report_of_what_did_not_come_from_load_sentences(build, tmp_path):
    model = build("bert")
    for data in (["a", "", "b", "a"], Dataset.from_dict({"t": ["a", None, "b", "a"]})):
        report = describe(data, model)
        assert (report.rows, report.texts, report.is_filtered) == (4, 4, False)
        assert report.faults == {"empty": 1, "repeated": 1}
        assert "Still there" in str(report)
    stream = load_sentences(write(tmp_path / "c.txt", "a\n" + "".join(f"{n}\n" for n in range(1500))), streaming=True)
    with pytest.warns(UserWarning, match="stream.* first 1,000 rows"):
        assert describe(stream, model).texts == 1000
    pairs = Dataset.from_dict({"sentence": ["a"], "translation": ["b"]})
    assert describe(pairs, model).examples == (("a", "b"),)
    with pytest.raises(ValueError, match="no row"):
        describe(pairs.select([]), model)


def test_a_prompt_takes_room(build):
    model = build("bert")
    model.max_seq_length = 8
    model.preprocess(["cat"])
    before = model.tokenizer.backend_tokenizer.truncation
    for words, longer, alike in ((5, 1, 0), (6, 2, 1)):  # with the special ones, six leave none for the texts
        (column,) = describe(["cat", "dog cat"], model, prompt="cat " * words).columns
        assert (column.longer, column.alike) == (longer, alike)
    assert model.tokenizer.backend_tokenizer.truncation == before
    pairs = Dataset.from_dict({"sentence": ["cat", "dog cat"], "other": ["cat", "dog cat"]})
    columns = describe(pairs, model, prompt={"sentence": "cat " * 5}).columns
    assert [column.longer for column in columns] == [1, 0]


@pytest.mark.parametrize("code", ["jp", "xx", "zzz", "deu", "EN", "words"])
def test_codes_that_no_language_has(code):
    for read in (lambda: load_sentences(["a"], segment=code), lambda: load_pairs(["a"], pairs="first", language=code)):
        with pytest.raises(ValueError, match=r"(segment|language) must be .*two-letter"):
            read()


def test_documents_without_marks_that_end_a_sentence():
    khmer, tibetan = "ឆ្មាដេក។ ភ្លៀង។ តម្លៃឡើង។", "ཞི་མི་ཉལ།ཆར་པ་བབས། རིན་གོང་འཕར།།"
    for text in (khmer, tibetan):
        assert len(split_sentences(text)) == 3
        assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
    thai = "ฝนตกที่กรุงเทพวันนี้ แมวนอนอยู่บนก้อนหินอุ่น"
    spoken = "and then we went there " * 30
    lines, bars = "朝は雨\n昼は晴れ\n夜は雪", "बिल्ली सोती है | बारिश होती है |"
    for text in (thai, spoken, lines, bars):
        for segment in ("sentences", "th"):
            with pytest.warns(UserWarning, match="2 documents were not cut"):
                load_sentences([text, text + " 1", "A cat. A dog."], segment=segment)
            stream = load_sentences(Dataset.from_dict({"t": [text, text + " 1"]}), segment=segment, streaming=True)
            with pytest.warns(UserWarning, match="not cut|One pass over") as caught:
                list(stream)
            assert any("2 documents were not cut" in str(each.message) for each in caught)
    load_sentences(["A cat sleeps", "It rains in the street", thai], segment="sentences")


OLD = pytest.mark.skipif(Version(datasets.__version__) < Version("5"), reason="datasets 4 does not know string_view")


@pytest.mark.parametrize(
    "kind", [pytest.param(pa.string_view(), marks=OLD), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
)
def test_every_type_of_text(tmp_path, kind):
    texts = pa.array(TEXTS).cast(kind)
    tables = [pa.table({"n": [1, 2, 3, 4], "text": texts}), pa.table({"doc": pa.array(TEXTS), "text": texts})]
    for table in tables:
        pq.write_table(table, tmp_path / "c.parquet")
        for source in (Dataset(table), tmp_path / "c.parquet"):
            assert load_sentences(source, column="text")["sentence"][:] == TEXTS
    assert load_sentences(Dataset(tables[0]))["sentence"][:] == TEXTS
    with pytest.raises(ValueError, match=r"no column of text, only t \(binary\)"):
        load_sentences(Dataset(pa.table({"t": pa.array([b"a"])})))


def test_a_split_is_that_of_a_dataset_dict(tmp_path):
    parts = {"train": Dataset.from_dict({"t": ["a", "b"]}), "test": Dataset.from_dict({"t": ["c", "d"]})}
    DatasetDict(parts).save_to_disk(tmp_path / "both")
    assert load_sentences(tmp_path / "both", split="test")["sentence"][:] == ["c", "d"]
    for source in (TEXTS, write(tmp_path / "c.txt", "a\nb\n")):
        with pytest.raises(ValueError, match=r"split='sentences'.*segment"):
            load_sentences(source, split="sentences")


def test_a_stream_forgets_rows_that_are_long_past(monkeypatch):
    monkeypatch.setattr(streams, "RECENT_ROWS", 1000)
    data = Dataset.from_dict({"t": [f"t {n}" for n in range(5000)] + ["t 4999", "t 0"]})
    with pytest.warns(UserWarning, match="5,002 rows, 0 empty, 1 repeated"):
        assert len(list(load_sentences(data, streaming=True))) == 5001


def test_a_text_that_is_missing_far_down_is_named_by_its_row():
    texts = [f"t {n}" for n in range(1300)]
    for column in ("sentence", "other"):
        rows = {"sentence": texts, "other": texts}
        rows[column] = [*texts[:1200], None, *texts[1201:]]
        with pytest.raises(TypeError, match=r"\[1200\]"):
            text_dataset(Dataset.from_dict(rows))
        with pytest.raises(TypeError, match=r"\[1200\]"):
            text_dataset(rows["sentence"], rows["other"])
