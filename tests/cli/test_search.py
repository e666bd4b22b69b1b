"""``st-contrastive search``."""

from __future__ import annotations

import csv
import json
import math
import shutil

import pytest
from sentence_transformers import SentenceTransformer

from st_contrastive.cli import main

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning")]
BODIES = ["a cat sleeps in the sun", "rain falls on the garden", "the train is late", "bread and milk", "a dog barks",
          "the cat and the dog", "a book of the garden"]  # fmt: skip


@pytest.fixture
def table(tmp_path):
    with (tmp_path / "table.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["title", "body"], *([f"Title {n}", body] for n, body in enumerate(BODIES))])
    return str(tmp_path / "table.csv")


@pytest.fixture
def model(build, tmp_path):
    build(pooling="mean").eval().save_pretrained(str(tmp_path / "first"))
    return str(tmp_path / "first")


@pytest.fixture
def other(build, tmp_path):
    build(pooling="cls").eval().save_pretrained(str(tmp_path / "second"))
    return str(tmp_path / "second")


def test_two_models_side_by_side(table, model, other, capsys):
    assert main(["search", table, model, other, "a cat", "late trains", "--column", "title,body", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["query"] for each in found] == ["a cat", "late trains"]
    for each in found:
        assert [*each["models"]] == ["first", "second"]
        for name, documents in each["models"].items():
            assert [document["ranks"][name] for document in documents] == [1, 2, 3, 4, 5]
            assert all(document["text"].startswith("Title") for document in documents)
        first, second = ({doc["text"]: doc["ranks"] for doc in own} for own in each["models"].values())
        assert all(first[text] == second[text] for text in first.keys() & second.keys())
    assert main(["search", table, model, other, "a cat", "--column", "title,body", "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [len(lines), lines[0], lines[1].split()] == [4, "a cat", ["first", "second"]]
    assert "\033" not in "".join(lines)  # no colour in a pipe


def test_one_model_and_words(table, model, capsys):
    """A query of one word, or with a slash, is no model; BM25 puts first what has the word."""
    assert main(["search", table, model, "bread/milk", "--column", "body"]) == 0
    assert capsys.readouterr().out.startswith("bread/milk\n")
    assert main(["search", table, model, "milk", "--column", "body", "--bm25", "--json", "--top", "1"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["models"] == {"first": [{"text": "bread and milk", "ranks": {"first": 1}}]}


def test_colour_in_a_terminal(table, model, other, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    queries = ["late", "milk a train", "the sun", "a garden book", "dog", "rain barks", "bread in the sun"]
    words = ["search", table, model, other, *queries, "--column", "body", "--top", "1"]
    assert main([*words, "--json"]) == 0
    new = [rank > 1 for each in json.loads(capsys.readouterr().out) for own in each["models"].values()
           for rank in own[0]["ranks"].values()]  # fmt: skip
    assert main(words) == 0
    assert capsys.readouterr().out.count("\033[32m") == sum(new) > 0
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(words) == 0
    assert "\033" not in capsys.readouterr().out


def test_bad_input(table, model, other, capsys, tmp_path):
    for words, message in (
        ([table, model, other], "query"),
        ([model, table, "a cat"], "is a model: name the file of documents first"),
        ([str(tmp_path / "none.csv"), model, "a cat"], "none.csv"),
        ([table, model, "a cat", "--column", "none"], "none"),
        ([table, model, "a cat", "--column", "body", "--bm25", "--language", "xx"], "code of a language"),
    ):
        assert main(["search", *words]) == 2
        assert message in capsys.readouterr().err
    broken = SentenceTransformer(other)
    next(broken.parameters()).data.fill_(math.nan)
    broken.save_pretrained(other)
    assert main(["search", table, model, other, "a cat", "--column", "body", "--bm25"]) == 2
    assert f"{other}: its vectors are not finite" in capsys.readouterr().err
    copy = shutil.copytree(model, tmp_path / "copy" / "first")
    assert main(["search", table, model, str(copy), "a cat", "--column", "body", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)[0]["models"]) == 2  # of one name
