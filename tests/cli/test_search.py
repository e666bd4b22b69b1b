"""``st-contrastive search``."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from st_contrastive.cli import main
from st_contrastive.evaluation import BM25, mix

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning")]
BODIES = ["a cat sleeps in the sun", "rain falls on the garden", "the train is late", "bread and milk", "a dog barks",
          "the cat and the dog", "a book of the garden"]  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ST_CONTRASTIVE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vectors"


def write_table(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["title", "body"], *rows])
    return str(path)


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path / "table.csv", [(f"Title {n}", body) for n, body in enumerate(BODIES)])


@pytest.fixture
def model(build, tmp_path):
    build(pooling="mean").eval().save_pretrained(str(tmp_path / "first"))
    return str(tmp_path / "first")


@pytest.fixture
def other(build, tmp_path):
    build(pooling="cls").eval().save_pretrained(str(tmp_path / "second"))
    return str(tmp_path / "second")


@pytest.fixture
def search(capsys):
    """``search(*words)``: what the command prints as JSON."""

    def run(*words):
        assert main(["search", *words[:2], "--json", "--top", "100", *words[2:]]) == 0
        return json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def encoded(monkeypatch):
    """The number of documents in each call of ``encode_document``."""
    calls, encode = [], SentenceTransformer.encode_document
    monkeypatch.setattr(
        SentenceTransformer,
        "encode_document",
        lambda self, texts, **k: calls.append(len(texts)) or encode(self, texts, **k),
    )
    return calls


def test_results_of_two_models_side_by_side(search, table, model, other, capsys):
    found = search(table, model, other, "a cat", "late trains", "--column", "title,body")
    assert [each["query"] for each in found] == ["a cat", "late trains"]
    for each in found:
        assert [*each["models"]] == ["first", "second"]
        for name, documents in each["models"].items():
            assert [document["ranks"][name] for document in documents] == [*range(1, 8)]
            assert all(document["title"] == f"Title {document['row']}" for document in documents)
            assert all(document["text"] == BODIES[document["row"]] for document in documents)
        first, second = (
            {document["row"]: document["ranks"] for document in documents} for documents in each["models"].values()
        )
        assert first == second
    assert main(["search", table, model, other, "a cat", "--column", "title,body", "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [lines[0], lines[1], lines[2].split()] == ["a cat", "Ranked by cosine similarity", ["first", "second"]]
    row, other_row = (found[0]["models"][name][0]["row"] for name in ("first", "second"))
    score = f"{found[0]['models']['first'][0]['score']:.2f}"
    assert lines[3].split()[:6] == ["1.", score, "row", str(row), "Title", str(row)]
    assert lines[4].strip().startswith(BODIES[row])
    assert BODIES[other_row] in lines[4]
    assert len(lines) == 7
    assert "\033" not in "".join(lines)  # no colours in a pipe


def test_scores_are_those_of_an_exhaustive_search(search, table, model):
    loaded, query = SentenceTransformer(model), "a cat in the garden"
    similarities = loaded.similarity(loaded.encode_query([query]), loaded.encode_document(BODIES)).double().numpy()
    for options, expected, ranked_by in (
        ([], similarities, "cosine similarity"),
        (["--bm25"], mix(similarities, BM25(BODIES).scores([query])), "0.7 z(cosine) + 0.3 z(BM25)"),
    ):
        (found,) = search(table, model, query, "--column", "body", *options)
        assert found["ranked_by"] == ranked_by
        scores = {document["row"]: document["score"] for document in found["models"]["first"]}
        assert [*scores] == (-expected[0]).argsort(kind="stable").tolist()
        assert [scores[row] for row in range(7)] == pytest.approx(expected[0].tolist(), abs=1e-5)


def test_every_row_with_text_is_searched_under_its_number(search, tmp_path, model, capsys):
    """A collection is not training data: titles may be missing, or the same in all rows."""
    rows = [("Notice", "rain"), ("", "late trains"), ("N/A", "milk"), ("Notice", "rain"), ("bread", "bread"), ("", ""),
            ("N/A", " "), ("garden", "")]  # fmt: skip
    file = write_table(tmp_path / "gaps.csv", rows)
    (found,) = search(file, model, "late trains", "--column", "title,body")
    documents = found["models"]["first"]
    assert sorted(document["row"] for document in documents) == [0, 1, 2, 3, 4, 7]
    assert documents[0]["row"] == 1
    main(["search", file, model, "rain", "--column", "title,body"])
    assert "6 of 8 rows are documents" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "queries"),
    [
        (["milk"], ["milk"]),
        (["Öl"], ["Öl"]),
        ([".NET", "冷却", "x" * 97], [".NET", "冷却", "x" * 97]),
        (["TCP/IP", "late trains"], ["TCP/IP", "late trains"]),
        (["client/server", "and/or", "x"], ["client/server", "and/or", "x"]),
        (["--dry-run option"], ["--dry-run option"]),
        (["--min-size=5 of the list"], ["--min-size=5 of the list"]),
        (["--no-cache", "late"], ["late"]),
        (["--", "--dry-run"], ["--dry-run"]),
        (["--bm25", "--", "--dry-run option", "--top-k", "-v"], ["--dry-run option", "--top-k", "-v"]),
    ],
)
def test_queries_are_searched_as_they_were_typed(search, table, model, words, queries):
    found = search(table, model, "--column=body", *words)
    assert [each["query"] for each in found] == queries
    assert all([*each["models"]] == ["first"] for each in found)


@pytest.mark.parametrize(
    ("name", "folder"), [("tiny/second", "models--tiny--second"), ("second", "models--sentence-transformers--second")]
)
def test_a_second_model_from_the_hub_was_used_before(search, table, model, tmp_path, monkeypatch, name, folder):
    snapshots = tmp_path / "hub" / folder
    shutil.copytree(model, snapshots / "snapshots" / "abc")
    (snapshots / "refs").mkdir()
    (snapshots / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path / "hub"), raising=False)
    (found,) = search(table, model, name, "a cat", "--column", "body")
    assert [*found["models"]] == ["first", "second"]
    assert found["query"] == "a cat"


class TestCache:
    def test_the_second_search_encodes_nothing(self, search, table, model, other, encoded, cache):
        first = search(table, model, "a cat", "--column", "body")
        assert encoded == [7]
        assert search(table, model, "a cat", "--column", "body", "--bm25")[0]["query"] == "a cat"
        assert search(table, model, "a cat", "--column", "body") == first
        assert encoded == [7]
        assert [np.load(file).shape[0] for file in cache.iterdir()] == [7]
        search(table, model, other, "a cat", "--column", "body")
        assert encoded == [7, 7]

    def test_a_saved_copy_uses_the_same_vectors(self, search, table, model, encoded, tmp_path):
        """Its tokenizer was saved with the truncation and padding of its last call."""
        search(table, model, "a cat", "--column", "body")
        loaded = SentenceTransformer(model)
        loaded.tokenizer(["a cat"], truncation=True, max_length=5, padding="max_length")
        loaded.save_pretrained(str(tmp_path / "copy"))
        search(table, str(tmp_path / "copy"), "a cat", "--column", "body")
        assert encoded == [7]

    def test_other_weights_settings_or_texts_are_encoded(self, search, table, model, encoded, cache, tmp_path):
        def changed(change):
            loaded = SentenceTransformer(model)
            change(loaded)
            loaded.save_pretrained(str(tmp_path / "changed"))
            return str(tmp_path / "changed")

        def another_last_weight(loaded):
            *_, last = loaded.parameters()
            last.data.flatten()[-1] += 0.5

        search(table, model, "a cat", "--column", "body")
        for change in (
            another_last_weight,
            lambda loaded: loaded.prompts.update(document="rain "),
            lambda loaded: setattr(loaded, "max_seq_length", 4),
        ):
            search(table, changed(change), "a cat", "--column", "body")
        search(table, model, "a cat", "--column", "body", "--pooling", "cls")
        search(table, model, "a cat", "--column", "title,body")
        search(write_table(Path(table).with_name("b.csv"), [("", body) for body in reversed(BODIES)]), model, "a cat",
               "--column", "body")  # fmt: skip
        assert encoded == [7] * 7
        assert len([*cache.iterdir()]) == 7

    def test_no_cache(self, search, table, model, encoded, cache):
        for _ in range(2):
            search(table, model, "a cat", "--column", "body", "--no_cache")
        assert encoded == [7, 7]
        assert not cache.exists()

    def test_a_damaged_file_is_written_again(self, search, table, model, encoded, cache):
        first = search(table, model, "a cat", "--column", "body")
        (file,) = cache.iterdir()
        file.write_bytes(file.read_bytes()[:200])
        assert search(table, model, "a cat", "--column", "body") == first
        assert encoded == [7, 7]
        assert len(np.load(file)) == 7
        file.write_bytes(b"")
        assert search(table, model, "a cat", "--column", "body") == first
        assert encoded == [7, 7, 7]

    def test_the_oldest_files_go_first(self, search, table, model, cache, monkeypatch):
        cache.mkdir(parents=True)
        for age in (1, 2, 3):
            np.save(cache / f"{age}.npy", np.zeros(1000, dtype=np.float32))
            os.utime(cache / f"{age}.npy", (10**9 - age, 10**9 - age))
        monkeypatch.setattr("st_contrastive.cli.vector_cache.LIMIT", 8_000)
        search(table, model, "a cat", "--column", "body")
        assert {file.stem for file in cache.iterdir()} & {"1", "2", "3"} == {"1"}


def test_colour_in_a_terminal(search, table, model, other, capsys, monkeypatch):
    queries = ["late", "milk a train", "the sun", "a garden book", "dog", "rain barks", "bread in the sun"]
    found = search(table, model, other, *queries, "--column", "body")
    new = [rank > 1 for each in found for listed in each["models"].values() for rank in listed[0]["ranks"].values()]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    words = ["search", table, model, other, *queries, "--column", "body", "--top", "1"]
    assert main(words) == 0
    assert capsys.readouterr().out.count("\033[32m") == sum(new) > 0
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(words) == 0
    assert "\033" not in capsys.readouterr().out


def test_a_closed_pipe_ends_quietly(table, model, capsys, monkeypatch):
    """As after ``| head``."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr("sys.stdout", output)
        assert main(["search", table, model, "a cat", "--column", "body"]) == 141
        print("a rest that nobody reads")
        monkeypatch.undo()
    assert "rror" not in capsys.readouterr().err


def test_bad_input(table, model, other, capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    for words, message in (
        ([table, model, other], "add a query"),
        ([table, model, str(tmp_path / "empty"), "a cat"], "without a model"),
        ([model, table, "a cat"], "is a model: name the file of documents first"),
        ([str(tmp_path / "none.csv"), model, "a cat"], "none.csv"),
        ([table, model, "a cat", "--column", "none"], "none"),
        ([table, model, "a cat", "--column", "bodi"], "title, body. Did you mean --column body?"),
        ([table, model, "a cat", "--column", "titel,body"], "Did you mean --column title?"),
        ([table, model, "a cat", "--column", "body", "--bm25", "--language", "xx"], "code of a language"),
    ):
        assert main(["search", *words]) == 2
        assert message in capsys.readouterr().err
    for words, message in (
        (["a cat", "--bm52"], "Did you mean --bm25?"),
        (["a cat", "--no-cahce"], "Did you mean --no_cache?"),
        (["--dry-run"], "after a bare --"),
        (["a cat", "--bm25", "late"], "'late' is not expected here"),
        ([" "], "the query is empty"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["search", table, model, *words])
        assert message in capsys.readouterr().err
    broken = SentenceTransformer(other)
    next(broken.parameters()).data.fill_(math.nan)
    broken.save_pretrained(other)
    assert main(["search", table, model, other, "a cat", "--column", "body", "--bm25"]) == 2
    assert f"{other}: its vectors are not finite" in capsys.readouterr().err
    copy = shutil.copytree(model, tmp_path / "copy" / "first")
    assert main(["search", table, model, str(copy), "a cat", "--column", "body", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)[0]["models"]) == 2  # of the same name


def test_other_columns_are_shown_with_each_result(search, tmp_path, model, capsys):
    path = tmp_path / "kept.csv"
    rows = [(f"ID-{number}", number, body) for number, body in enumerate(BODIES)]
    path.write_text("".join(f'{one},{two},"{three}"\n' for one, two, three in [("id", "year", "body"), *rows]))
    (found,) = search(str(path), model, "a cat", "--column", "body", "--keep", "id,year")
    documents = found["models"]["first"]
    assert len(documents) == len(BODIES)
    assert [each["kept"] for each in documents] == [
        {"id": f"ID-{each['row']}", "year": str(each["row"])} for each in documents
    ]
    assert main(["search", str(path), model, "a cat", "--column", "body", "--keep", "id", "--top", "1"]) == 0
    assert f"[ID-{documents[0]['row']}]" in capsys.readouterr().out
    assert main(["search", str(path), model, "a cat", "--column", "body", "--keep", "yaer"]) == 2
    assert "has no column 'yaer', only id, year, body. Did you mean 'year'?" in capsys.readouterr().err
