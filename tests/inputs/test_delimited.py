"""Rows of .csv and .tsv arrive whole, or the error names the line."""

from __future__ import annotations

import csv
import io

import pytest
from datasets import Dataset

from st_contrastive.inputs import load_graded_pairs, load_pairs, load_sentences, load_translations
from st_contrastive.inputs._delimited import open_delimited
from st_contrastive.inputs.row_filter import get_row_counts
from tests.inputs.files import write

TEXTS = [f"In the year {n} it rained." for n in range(20)]


def lines(heading, rows, separator):
    return "".join(separator.join(row) + "\n" for row in [heading, *rows])


@pytest.mark.parametrize(("separator", "ending"), [(",", "csv"), (";", "csv"), ("|", "csv"), ("\t", "tsv")])
@pytest.mark.parametrize("row", [0, 1, 1500])
def test_rows_with_too_many_fields(tmp_path, separator, ending, row):
    texts = [f"Text {n} here." for n in range(1600)]
    texts[row] = f"Text{separator} cut."
    tables = {
        load_sentences: (["id", "body"], [[str(n), text] for n, text in enumerate(texts)], {"column": "body"}),
        load_pairs: (["title", "body", "year"], [["T", text, "2001"] for text in texts], {}),
        load_translations: (["en", "de"], [[text, "x"] for text in texts], {}),
        load_graded_pairs: (["score", "sentence1", "sentence2"], [["1", "a", text] for text in texts], {}),
    }
    for load, (heading, rows, options) in tables.items():
        path = write(tmp_path / f"{load.__name__}.{ending}", lines(heading, rows, separator))
        for streaming in ({}, {"streaming": True}):
            if load in (load_translations, load_graded_pairs) and streaming:
                continue
            with pytest.raises(ValueError, match=f"line {row + 2}: the row has {len(heading) + 1} fields.*quoted"):
                list(load(path, **options, **streaming))


def test_rows_with_too_few_fields_and_empty_ones_beyond_the_heading(tmp_path):
    broken = "id,body\n1,first line\nsecond line\n2,b\n"
    with pytest.raises(ValueError, match="line 3: the row has 1 fields"):
        load_sentences(write(tmp_path / "a.csv", broken), column="body")
    padded = "id,body\n1,a,,\n\n2,b,\n   \n3,c\n\n"
    data = load_sentences(write(tmp_path / "b.csv", padded), column="body")
    assert data["sentence"][:] == ["a", "b", "c"]
    assert get_row_counts(data).rows == 3


@pytest.mark.parametrize(
    ("heading", "row", "names"),
    [("Nr;Maße (B, H, T);Text", "1;1 x 2;Schraube", ["Nr", "Maße (B, H, T)", "Text"]),
     ("name;text, lang", "Teil;Schraube, verzinkt", ["name", "text, lang"]),
     ("id,a;b", '1,"x;y"', ["id", "a;b"]), ("id, text", "1, a cat", ["id", "text"])],
)  # fmt: skip
def test_rows_decide_on_the_separator_too(tmp_path, heading, row, names):
    path = write(tmp_path / "a.csv", f"{heading}\n{row}\n{row}\n")
    assert open_delimited(path, ".csv").names == tuple(names)


def test_repeated_column_names(tmp_path):
    path = write(tmp_path / "a.csv", "a,a,a.1\nfirst,second,third\n")
    with pytest.raises(ValueError, match=r"a\.0.*a\.1\.1.*a\.1\.2"):
        load_sentences(path, column="b")
    assert load_sentences(path, column="a.1.1")["sentence"][:] == ["second"]


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_a_quote_that_is_not_closed(tmp_path, ending):
    quoted = [f'{n},"{text}"' for n, text in enumerate(TEXTS)]
    quoted[3] = quoted[3][:-1]
    for rows in (quoted, quoted[:4], [row.replace('",', '"",') for row in quoted]):
        path = write(tmp_path / "c.csv", "\n".join(["id,text", *rows]) + "\n")
        with pytest.raises(ValueError, match=r"line 5: a double quote is not closed"):
            load_sentences(path, column="text")


SAID = ['She said "go", and left.', '"Go", she said.', 'C:\\t is "full"', "A \\", "Two\nlines", "plain", 'a "b\\"']


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_quotes_that_a_backslash_escapes(tmp_path, separator):
    """As Spark writes them: a backslash before a quote, and before a backslash that stands before one."""

    def escaped(text):
        text = text[:-1] + "\\\\" if text.endswith("\\") else text
        return '"' + text.replace('\\"', '\\\\"').replace('"', '\\"') + '"'

    rows = [[str(n), escaped(text)] for n, text in enumerate(SAID)]
    data = load_sentences(write(tmp_path / "c.csv", lines(["id", "text"], rows, separator)), column="text")
    assert data["sentence"][:] == SAID
    rows[1][1] = '"a \\" b" c'
    with pytest.raises(ValueError, match="a double quote"):
        load_sentences(write(tmp_path / "d.csv", lines(["id", "text"], rows, separator)), column="text")


@pytest.mark.parametrize("delimiter", [",", ";", "|", "\t"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_what_a_writer_of_csv_writes_is_read(tmp_path, delimiter, quoting):
    file = io.StringIO()
    texts = [*SAID, "a\tb", "1,5; 2|3", "x" * 200_000, "12"]
    csv.writer(file, delimiter=delimiter, quoting=quoting).writerows([("id", "text"), *enumerate(texts)])
    names = ["c.csv", "c.tsv"] if delimiter == "\t" else ["c.csv"]
    for name in names:
        for start in ("", "\ufeff", f"sep={delimiter}\r\n"):
            path = write(tmp_path / name, start + file.getvalue())
            assert load_sentences(path, column="text")["sentence"][:] == texts


def test_a_tsv_as_excel_writes_it(tmp_path):
    for cell, bodies in (('"D, e"', ["b, c", "f"]), ("D, e", ['"b, c"', "f"])):  # the second is a quotation
        data = load_pairs(write(tmp_path / f"{len(cell)}.tsv", f'title\tbody\nA\t"b, c"\n{cell}\tf\n'))
        assert data.to_dict() == {"sentence": ["A", "D, e"], "other": bodies}


class CountedLines(io.TextIOWrapper):
    """A file that counts the lines that are read from it."""

    read_lines = 0

    def __next__(self):
        CountedLines.read_lines += 1
        return super().__next__()


@pytest.mark.parametrize(
    ("name", "separator", "cell"), [("c.tsv", "\t", "{}"), ("c.csv", ",", '"a ""{}"""'), ("d.csv", ",", '"C:\\{}"')]
)
def test_streaming_does_not_read_the_whole_file_first(tmp_path, monkeypatch, name, separator, cell):
    rows = [[cell.format(n), f"text {n}", ""] for n in range(100_000)]
    path = write(tmp_path / name, lines(["key", "text", "note"], rows, separator))
    monkeypatch.setattr(io, "TextIOWrapper", CountedLines)
    CountedLines.read_lines = 0
    stream = load_sentences(path, column="text", streaming=True)
    any_column = iter(load_pairs(path, columns="key,text", streaming=True))
    assert next(iter(stream))["sentence"] == "text 0"
    assert next(any_column)["other"] == "text 0"
    assert CountedLines.read_lines < 80_000


def test_quotes_of_a_tsv_that_quotes_nothing(tmp_path):
    texts = ['"Go," he said.', '5" wide', '"', '"All of it."', 'He said ""go"".', "\\N"]
    rows = [[str(n), text] for n, text in enumerate(texts)]
    data = load_sentences(write(tmp_path / "c.tsv", lines(["id", "text"], rows, "\t")), column="text")
    assert data["sentence"][:] == texts[:-1]
    assert get_row_counts(data).dropped["empty"] == 1


@pytest.mark.parametrize("heading", ["id\ttext", '"id"\t"text"'])
@pytest.mark.parametrize("quote", ['""', '\\"', "'"])
def test_a_tsv_whose_texts_all_stand_in_quotes(tmp_path, heading, quote):
    texts = [f"He said {quote}hi{quote}, then", "left", "a b"]
    rows = [heading, *(f'{n}\t"{text}"' for n, text in enumerate(texts))]
    data = load_sentences(write(tmp_path / "c.tsv", "\n".join(rows)), column="text")
    assert data["sentence"][:] == [texts[0].replace(quote, "'" if quote == "'" else '"'), *texts[1:]]


@pytest.mark.parametrize("ending", ["csv", "tsv"])
@pytest.mark.parametrize("with_id", [False, True])
def test_a_table_without_heading(tmp_path, ending, with_id):
    quote = '"' if ending == "csv" else ""
    separator = "," if ending == "csv" else "\t"
    for texts in (TEXTS, ["今天下雨。", "我们回家。"], ["Is it so?", "It is."]):
        rows = [[*([str(n)] if with_id else []), f"{quote}{text}{quote}"] for n, text in enumerate(texts)]
        path = write(tmp_path / f"c.{ending}", lines(rows[0], rows[1:], separator))
        for streaming in (False, True):
            with pytest.raises(ValueError, match=r"no heading.*above it"):
                load_sentences(path, streaming=streaming)
        assert len(load_sentences(path, column=texts[0])) == len(texts) - 1  # who names it knows it for the heading
    numbered = write(tmp_path / f"n.{ending}", separator.join("1a") + "\n" + separator.join("2b") + "\n")
    with pytest.raises(ValueError, match="no heading"):
        load_sentences(numbered)
    for heading in (["", "0"], ["country", "2001"], ["Ref.", "n"]):  # of pandas; of years
        path = write(tmp_path / f"h.{ending}", lines(heading, [["a b", "1"], ["c", "2"]], separator))
        assert load_sentences(path)["sentence"][:] == ["a b", "c"]


@pytest.mark.parametrize("name", ["label", "Labels", "score", "is_duplicate", "gold_label", "similarity"])
def test_pairs_with_labels_that_differ(tmp_path, name):
    rows = {"question1": ["a", "b", "c"], "question2": ["d", "e", "f"], name: [1, 1, 0]}
    data = Dataset.from_dict(rows)
    data.to_csv(tmp_path / "q.csv")
    data.to_json(tmp_path / "q.jsonl")
    for source in (data, tmp_path / "q.csv", tmp_path / "q.jsonl"):
        for streaming in (False, True):
            with pytest.raises(ValueError, match=rf"column '{name}' is '?1'? in row 0 and '?0'? in row 2"):
                list(load_pairs(source, columns="question1,question2", streaming=streaming))
        assert len(load_sentences(source, column="question1")) == 3
    same = data.select([0, 1])
    assert len(load_pairs(same, columns="question1,question2")) == 2
    with pytest.warns(UserWarning, match=f"column '{name}' holds '0', and"):
        load_pairs(data.select([2]), columns="question1,question2")


@pytest.mark.parametrize("values", [[1, 0, 1, 1, 0], ["entailment", "neutral", "contradiction", "neutral"] * 2])
def test_a_column_that_may_be_a_label_under_any_name(tmp_path, values):
    texts = {f"q{side}": [f"{side}{n}" for n in range(len(values))] for side in "ab"}
    data = Dataset.from_dict({**texts, "Quality": values, "year": [2000 + n for n in range(len(values))]})
    data.to_csv(tmp_path / "q.csv")
    data.to_json(tmp_path / "q.jsonl")
    for source in (data, tmp_path / "q.csv", tmp_path / "q.jsonl"):
        with pytest.warns(UserWarning, match=f"column 'Quality' holds '{values[0]}' and '{values[1]}'.*, and"):
            assert len(load_pairs(source, columns="qa,qb")) == len(values)
    data = data.remove_columns("Quality").add_column("section", ["news"] * len(data))
    assert len(load_pairs(data, columns="qa,qb")) == len(values)  # a warning is an error here


@pytest.mark.parametrize(("heading", "doubtful"), [("cats sleep", True), ("how to knot a tie", True), ("text", False)])
def test_a_heading_that_may_be_a_text(tmp_path, recwarn, heading, doubtful):
    path = write(tmp_path / "phrases.csv", f"{heading}\ndogs run\nbirds sing\n")
    assert load_sentences(path)["sentence"][:] == ["dogs run", "birds sing"]
    assert [repr(heading) in str(each.message) for each in recwarn] == [True] * doubtful
    load_sentences(path, column=heading)
    assert len(recwarn) == doubtful


def test_a_column_whose_texts_begin_late(tmp_path):
    path = write(tmp_path / "late.csv", "title,body,unused\n" + "a,,\n" * 300 + "b,text,\n")
    with pytest.raises(ValueError, match="holds title, body"):
        load_sentences(path)
