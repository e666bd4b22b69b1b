"""A collection keeps every row that has text, in its order, with its row number."""

from __future__ import annotations

import csv

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from st_contrastive.inputs import load_documents

CELLS = ["", " \n", "\ufeff", "\\N", "N/A", "NULL", " A cat sleeps. ", "Notice", "a", "日本"]
#: Cells without text, by their reasons.
EMPTY, PLACEHOLDERS = {"", " \n", "\ufeff", "\\N"}, {"N/A", "NULL"}


def write_csv(path, rows, heading):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([heading, *rows])
    return path


@given(st.lists(st.tuples(*[st.sampled_from(CELLS)] * 2), min_size=1))
@settings(max_examples=25, deadline=None)
def test_every_row_is_a_document_or_counted(rows):
    """Against the rule written out for each row."""
    rows = [*rows, ("", "last")]
    documents = load_documents(Dataset.from_dict({"title": [a for a, _ in rows], "body": [b for _, b in rows]}),
                               columns="title,body")  # fmt: skip
    texts, numbers, empty = [], [], 0
    for number, row in enumerate(rows):
        parts = [cell.strip() for cell in row if cell not in EMPTY | PLACEHOLDERS]
        if parts:
            texts.append(parts[0] if len(set(parts)) == 1 else "\n\n".join(parts))
            numbers.append(number)
        empty += {*row} <= EMPTY
    assert (documents.texts, documents.rows) == (texts, numbers)
    assert documents.unused == {"empty": empty, "placeholder": len(rows) - len(texts) - empty}
    assert documents.total == len(rows) == len(documents) + sum(documents.unused.values())
    assert bool(documents.note) == any(documents.unused.values())


@pytest.mark.parametrize("name", ["c.csv", "c.jsonl", "c.parquet", "hub stream"])
def test_untitled_equal_and_repeated_rows(tmp_path, name):
    rows = [("Notice", "It rains."), ("", "It rains."), ("N/A", "It rains."), ("It rains.", "It rains."),
            ("Notice", ""), ("Notice", "It rains."), ("null", " ")]  # fmt: skip
    data = Dataset.from_list([{"n": n, "title": a, "body": b} for n, (a, b) in enumerate(rows)])
    source = tmp_path / name
    if name == "hub stream":
        source = data.to_iterable_dataset()
    else:
        getattr(data, {".csv": "to_csv", ".jsonl": "to_json", ".parquet": "to_parquet"}[source.suffix])(source)
    documents = load_documents(source, columns=("title", "body"), keep="n")
    assert [*map(int, documents.kept["n"])] == [0, 1, 2, 3, 4, 5] == documents.rows
    whole, alone = "Notice\n\nIt rains.", "It rains."
    assert documents.texts == [whole, alone, alone, alone, "Notice", whole]
    assert documents.titles == ["Notice", "", "", "It rains.", "Notice", "Notice"]
    assert documents.bodies == [alone, alone, alone, alone, "", alone]
    assert documents.unused == {"empty": 0, "placeholder": 1}
    one = load_documents(source, columns="body")
    assert (one.rows, one.titles, one.texts) == ([0, 1, 2, 3, 5], [""] * 5, [alone] * 5)
    assert "5 of 7 rows are documents" in one.note


def test_row_numbers_behind_rows_without_text(tmp_path):
    lines = ["", "one", " ", *["two"] * 1500, "NaN", "three"]
    path = tmp_path / "c.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    documents = load_documents(path)
    assert documents.rows == [n for n, line in enumerate(lines) if line.strip() and line != "NaN"]
    assert [lines[row] for row in documents.rows] == documents.texts
    nested = Dataset.from_dict({"doc": [{"title": "", "body": "a"}, {"title": "b", "body": ""}]})
    assert load_documents(nested, columns="doc.title,doc.body").texts == ["a", "b"]


def test_collections_that_are_refused(tmp_path):
    path = write_csv(tmp_path / "c.csv", [("", "x"), ("N/A", "y")], ("title", "body"))
    for options, message in (
        ({}, "title, body"),
        ({"columns": "title"}, "none of 2 rows has text in 'title'"),
        ({"columns": "head"}, "column='head'"),
        ({"columns": "title,title"}, "two different"),
        ({"columns": "a,b,c"}, "columns must be"),
        ({"columns": "body", "split": "test"}, "split='test'"),
    ):
        with pytest.raises(ValueError, match=message):
            load_documents(path, **options)
