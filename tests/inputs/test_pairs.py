"""Pairs of two columns or of a document's first sentence and its rest; graded pairs."""

from __future__ import annotations

import json

import pytest
from datasets import Dataset, DatasetDict, IterableDataset

from st_contrastive import conisi_dataset
from st_contrastive.inputs import describe, load_graded_pairs, load_pairs, load_sentences, tables, text_dataset
from st_contrastive.inputs.row_filter import RowCounts, get_row_counts

ROWS = [
    ("Cats", "They sleep. They dream."),
    ("", "No title."),
    ("No body", "  "),
    (" Cats ", "They sleep. They dream."),
    ("The same", "The same"),
    ("Cats", "Another text of the same title."),
    ("Nothing", "NA, 12"),
    ("Dogs", "<NA>"),
    ("NULL", "No title."),
]
PAIRS = [ROWS[0], ROWS[5], ROWS[6]]
FAULTS = {"empty": 4, "of equal texts": 1, "repeated": 1}


def table(folder, name, rows=ROWS, names=("title", "body")):
    """The rows with a number in front, as a file whose kind its name tells."""
    data = Dataset.from_list([{"id": n, **dict(zip(names, row, strict=True))} for n, row in enumerate(rows)])
    path = folder / name
    tabs = {"sep": "\t"} if path.suffix == ".tsv" else {}
    writers = {".csv": data.to_csv, ".tsv": data.to_csv, ".jsonl": data.to_json, ".parquet": data.to_parquet}
    writers[path.suffix](path, **tabs)
    return path


def pairs_of(data):
    return [(row["sentence"], row["other"]) for row in data]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet"])
def test_pairs_of_two_columns(tmp_path, name):
    path = table(tmp_path, name)
    data = load_pairs(path)
    assert data.column_names == ["sentence", "other"]
    assert pairs_of(data) == PAIRS
    assert get_row_counts(data) == RowCounts(9, FAULTS, ("title", "body"))
    for columns in ("title,body", ["title", "body"]):
        assert pairs_of(load_pairs(str(path), columns=columns)) == PAIRS
    assert pairs_of(load_pairs(path, columns="body, title")) == [pair[::-1] for pair in PAIRS]
    stream = load_pairs(path, streaming=True)
    assert isinstance(stream, IterableDataset)
    for _ in range(2):
        with pytest.warns(UserWarning, match="9 rows, 4 empty, 1 of equal texts, 1 repeated"):
            assert pairs_of(stream) == PAIRS


def test_pairs_of_datasets_and_names(tmp_path, monkeypatch):
    data = Dataset.from_list([dict(zip(("title", "body"), row, strict=True)) for row in ROWS])
    hub = {"owner/articles": {"train": data}, "owner/lines": {"train": data.select_columns("body")}}

    def load(name, split, streaming):
        return hub[name][split].to_iterable_dataset() if streaming else hub[name][split]

    monkeypatch.setattr(tables, "load_dataset", load)
    DatasetDict(train=data).save_to_disk(tmp_path / "saved")
    nested = data.map(lambda row: {"doc": row}, remove_columns=data.column_names)
    for source in ("owner/articles", data, data.with_format("pandas"), tmp_path / "saved"):
        assert pairs_of(load_pairs(source)) == PAIRS
    assert pairs_of(load_pairs(nested, columns=("doc.title", "doc.body"))) == PAIRS
    for stream in (load_pairs("owner/articles", streaming=True), load_pairs(data.to_iterable_dataset())):
        with pytest.warns(UserWarning, match="9 rows"):
            assert pairs_of(stream) == PAIRS
    assert len(load_sentences("owner/lines")) == 5  # its only column of text
    with pytest.warns(UserWarning, match="9 rows"):
        assert len(list(load_sentences("owner/lines", streaming=True))) == 5


@pytest.mark.parametrize("form", ["pandas", "numpy", "torch", "arrow"])
def test_datasets_with_a_format(form):
    data = Dataset.from_dict({"text": ["a", "b"], "n": [1, 2]}).with_format(form)
    assert load_sentences(data)["sentence"][:] == ["a", "b"]
    sentences = load_sentences(data).with_format(form)
    assert text_dataset(sentences, lambda text, rng: text + "!").to_dict() == {
        "sentence": ["a", "b"], "other": ["a!", "b!"]
    }  # fmt: skip


DOCUMENTS = ["One here. Two there.\nThree.", "Alone.", "", "One here. Two there. Three.", "Same. Same.", "四。五。"]
FIRST = [("One here.", "Two there. Three."), ("四。", "五。")]


def test_the_first_sentence_and_the_rest(tmp_path):
    path = table(tmp_path, "d.csv", [(text,) for text in DOCUMENTS], ("body",))
    both = table(tmp_path, "b.csv", [(text, "x") for text in DOCUMENTS], ("body", "note"))
    (tmp_path / "d.txt").write_text("\n".join(DOCUMENTS[1:]), encoding="utf-8")
    for data in (
        load_pairs(path, pairs="first"),
        load_pairs(path, columns="body", pairs="first"),
        load_pairs(both, columns=("body",), pairs="first"),
        load_pairs(DOCUMENTS, pairs="first"),
        load_pairs(tmp_path / "d.txt", pairs="first"),
    ):
        assert pairs_of(data) == FIRST
        counts = get_row_counts(data)
        assert (counts.dropped["of one sentence"], counts.dropped["of equal texts"]) == (1, 1)
        assert counts.rows == 2 + sum(counts.dropped.values())
    with pytest.warns(UserWarning, match="6 rows, 1 empty, 1 of one sentence, 1 of equal texts, 1 repeated"):
        assert pairs_of(load_pairs(path, pairs="first", streaming=True)) == FIRST
    german = ["Am 12. April kam er. Dann ging er."]
    assert pairs_of(load_pairs(german, pairs="first", language="de")) == [("Am 12. April kam er.", "Dann ging er.")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"column='title': .*c\.csv holds head, text\. .*pairs=\"first\""),
        ({"columns": ("head", "n")}, "'n'"),
        ({"columns": "text"}, "two names.*'text'.*pairs=\"first\""),
        ({"columns": ("text", "text")}, "two names"),
        ({"columns": ("a", "b", "c")}, "two names"),
        ({"pairs": "first"}, "head, text. Name"),
        ({"pairs": "first", "columns": "body"}, "column='body'.*head, text"),
        ({"pairs": "both"}, "pairs.*'both'"),
        ({"pairs": "first", "columns": "text", "language": "lines"}, "language.*'lines'"),
    ],
)
def test_bad_columns_are_named(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        load_pairs(table(tmp_path, "c.csv", names=("head", "text")), **options)


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"set": [["a", "b"], ["c"]]}, r"set \(list of string\)"),
        ({"title": [1984, 2001], "body": ["a", "b"]}, r"title \(int64\), body\. Not all cells of .title. are read"),
    ],
)
def test_columns_of_no_text_are_named_by_their_types(columns, found):
    data = Dataset.from_dict(columns)
    for read in (load_pairs, lambda data: load_sentences(data, column="title")):
        with pytest.raises(ValueError, match=found):
            read(data)


def test_sources_without_a_pair(tmp_path):
    for rows, message in (([("a", ""), ("", "b")], "2 empty"), ([("a", "a")], "1 of equal texts")):
        with pytest.raises(ValueError, match=rf"{message}.*no rows are left.*columns=\('title', 'body'\)"):
            load_pairs(table(tmp_path, "e.csv", rows))
        with pytest.raises(ValueError, match=message):
            next(iter(load_pairs(table(tmp_path, "e.jsonl", rows), streaming=True)))
    with pytest.raises(ValueError, match="1 of one sentence"):
        load_pairs(["Alone."], pairs="first")
    assert len(load_pairs(table(tmp_path, "f.csv", [("a", ""), ("", "b"), ("c", ""), ("a", "b")]))) == 1
    for column in (["title", "body"], "title,body"):
        with pytest.raises(ValueError, match=r"column.*title"):
            load_sentences(table(tmp_path, "g.csv"), column=column)


def test_an_index_of_pandas_is_no_text():
    data = Dataset.from_dict({"text": ["a", "b"], "__index_level_0__": ["x", "y"]})
    assert load_sentences(data)["sentence"][:] == ["a", "b"]


def test_repeats_are_kept_where_asked_for():
    texts = ["One here. Two there.", "", "One here. Two there.", "Two there."]
    assert load_sentences(texts, repeats=True)["sentence"][:] == [text for text in texts if text]
    assert load_sentences(texts, repeats=True, segment="sentences")["sentence"][:] == [
        "One here.", "Two there.", "One here.", "Two there.", "Two there."
    ]  # fmt: skip
    assert len(load_sentences(["a"] * 5, repeats=True)) == 5


def test_the_report_of_pairs(build):
    model = build("bert")
    rows = [(f"the cat {n}", "the cat sleeps " * n) for n in range(1, 11)]
    rows[2], rows[3] = ("Vec<String> cat", rows[2][1]), ("<b>the cat</b>", rows[3][1])
    data = load_pairs(Dataset.from_dict({"title": [*(a for a, _ in rows), ""], "body": [*(b for _, b in rows), "x"]}))
    lengths = [len(model.tokenizer(text)["input_ids"]) for text in data["other"]]
    limit = lengths[5]  # of exactly this length, nothing is cut
    report = describe(data, model, max_length=limit)
    title, body = report.columns
    assert (report.rows, report.texts, report.faults["empty"], report.source_columns) == (11, 10, 1, ("title", "body"))
    assert (title.name, title.longer, title.oddities["hold HTML tags"]) == ("title", 0, 1)
    assert (body.name, body.longer, body.limit) == ("body", 4, limit)
    assert not any(body.oddities.values())
    assert body.cut == pytest.approx(sum(length - limit for length in lengths[6:]) / sum(lengths))
    assert report.examples == tuple((data[place]["sentence"], data[place]["other"]) for place in (0, 5, 9))
    lines = str(report).splitlines()
    assert len(lines) == 6
    assert "'title'" in lines[2]
    assert "'body': 4 of 10 texts" in lines[3]
    model.max_seq_length = limit
    again = describe(data, model)
    assert (again.columns, len(str(again).splitlines())) == (report.columns, 5)  # not only training cuts
    unread = describe(Dataset.from_dict({"title": ["a", "a", "", "b"], "body": ["b", "b", "c", "b"]}), model)
    assert (unread.rows, unread.faults, unread.is_filtered) == (4, {"empty": 1, "repeated": 1}, False)


def test_a_sample_is_called_one(build, monkeypatch):
    from st_contrastive.inputs import description

    model = build("bert")
    model.max_seq_length = 4
    texts = ["the cat sleeps", "rain"] * 50
    for name, most, sampled in (("_SAMPLE", 30, 25), ("_SAMPLE", 100, 100), ("_CHARACTERS", 300, 34)):
        with monkeypatch.context() as patched:
            patched.setattr(description, name, most)
            (column,) = describe(texts, model).columns
            assert (column.texts, column.sampled) == (100, sampled)
            assert ("sampled texts" in str(column)) == (sampled < 100)


GRADED = [("a cat", "a dog", 1.5), ("NA", "12", 4.0), ("x", "y", 0.0)]


@pytest.mark.parametrize("name", ["g.csv", "g.tsv", "g.jsonl", "g.parquet"])
def test_graded_pairs(tmp_path, name, monkeypatch):
    names = ("sentence1", "sentence2", "score")
    data = load_graded_pairs(table(tmp_path, name, GRADED, names))
    assert [tuple(row.values()) for row in data] == GRADED
    assert data.column_names == list(names)
    splits = {"validation": data, "test": data.select([0])}
    monkeypatch.setattr(tables, "load_dataset", lambda name, split, streaming: splits[split])
    assert len(load_graded_pairs("owner/stsb")) == 3
    assert len(load_graded_pairs("owner/stsb", split="test")) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sentence1,sentence2\na,b\n", "g.csv has the columns sentence1, sentence2, but no 'score'"),
        ("sentence1,sentence2,score\na,b,1\na,b,high\n", "g.csv, row 1: score must be .*'high'"),
        ("sentence1,sentence2,score\na,b,1\na,,2\n", "row 1: sentence2 must be a text, got ''"),
        ("sentence1,sentence2,score\na,\\N,2\n", "row 0: sentence2 must be a text"),
        ("sentence1,sentence2,score\na,b,1\na,c,\n", "row 1: score must be a number"),
        ("sentence1,sentence2,score\na,b,inf\n", "row 0: score must be .*'inf'"),
        ("sentence1;sentence2;score\na;b;1\na;c;3,5\n", r"g\.csv, row 1: score .*3\.5, got '3,5'\. Fix"),
    ],
)
def test_bad_graded_pairs_are_named(tmp_path, content, message):
    (tmp_path / "g.csv").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_graded_pairs(tmp_path / "g.csv")


def test_what_the_model_can_not_tell_apart(build):
    model = build("bert")
    model.max_seq_length = 8
    unknown = [f"\U0001f600\U0001f680 {chr(0x1F600 + n)}" for n in range(1, 5)]
    (column,) = describe([*unknown, "the cat", "the dog"], model).columns
    assert model.tokenizer.unk_token_id is not None
    ids = model.tokenizer([*unknown, "the cat", "the dog"])["input_ids"]
    counts = [each.count(model.tokenizer.unk_token_id) for each in ids]
    assert column.unknown == pytest.approx(sum(counts) / sum(len(each) - 2 for each in ids))
    assert column.unknown_text == unknown[0]
    assert (column.alike, column.alike_texts) == (3, (unknown[0], unknown[1]))
    assert "unknown to the tokenizer" in str(column)
    cut = ["the cat sleeps " * 4 + word for word in ("the", "cat")]
    (column,) = describe([*cut, "the cat"], model).columns
    assert (column.alike, column.unknown) == (1, 0)


def test_dates_inside_objects_stay_texts(tmp_path):
    rows = [{"doc": {"title": f"2020-01-0{day}", "body": f"diary {day}"}} for day in range(1, 9)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pairs = load_pairs(tmp_path / "d.jsonl", columns=("doc.title", "doc.body"))
    assert pairs[0] == {"sentence": "2020-01-01", "other": "diary 1"}


def test_graded_relevance_is_a_label():
    rows = {"query": list("abcdefgh"), "passage": list("ijklmnop"), "relevance": [0, 1, 2, 3] * 2}
    with pytest.raises(ValueError, match="column 'relevance' is '0' in row 0 and '1' in row 1"):
        load_pairs(Dataset.from_dict(rows), columns=("query", "passage"))


def test_titles_that_repeat_ids_and_bodies_that_begin_with_their_title(build):
    titles = ["the cat", "the cat", "the dog", "rain"]
    bodies = ["the cat sleeps", "cat 2", "the dog sleeps", "the rain"]
    title, body = describe(load_pairs(Dataset.from_dict({"title": titles, "body": bodies})), build()).columns
    assert [*title.oddities.values()] == [0, 0, 1, 0, 0]
    assert [*body.oddities.values()] == [0, 0, 0, 2, 0]
    assert "1 of 4 repeat another" in str(title)
    assert "2 of 4 begin with" in str(body)
    _, constructed = describe(conisi_dataset(titles, [*titles[:2], "not a dog", "no rain"]), build()).columns
    assert constructed.oddities["equal the first column's text"] == 2
    (ids,) = describe([f"A-{n}" for n in range(9)], build()).columns
    assert ids.oddities["look like ids, not texts"] == 9
