from __future__ import annotations

import gzip
import json
import math
import random
import shutil
from typing import ClassVar

import numpy as np
import pytest
import torch
from sentence_transformers import SimilarityFunction

from st_contrastive.evaluation import (
    EvaluationDataError,
    RetrievalSet,
    STSPairs,
    evaluate_in_domain_retrieval,
    evaluate_retrieval,
    read_retrieval,
    retrieval,
)
from st_contrastive.evaluation.retrieval import ndcg, ranked, recall
from tests.evaluation.encoders import Letters, write


def made(folder, documents=40, queries=12, seed=0):
    """A set whose queries are documents' letters in another order, with graded judgements."""
    draw = random.Random(seed)
    texts = ["".join(draw.choices("abc", k=draw.randrange(4, 12))) for _ in range(documents)]
    corpus = [{"_id": f"d{row}", "title": text[:2], "text": text[2:]} for row, text in enumerate(texts)]
    asked = [{"_id": f"q{row}", "text": "".join(draw.sample(texts[row], 3))} for row in range(queries)]
    judged = [
        {"query_id": f"q{row}", "corpus_id": f"d{document}", "score": draw.choice([0, 1, 1, 2])}
        for row in range(queries)
        for document in draw.sample(range(documents), 5)
    ]
    judged += [{"query_id": f"q{row}", "corpus_id": f"d{row}", "score": 2} for row in range(queries)]
    write(folder / "corpus.jsonl.gz", corpus)
    write(folder / "queries_test.jsonl", asked)
    write(folder / "qrels_test.jsonl.gz", judged)
    return folder


def test_ndcg_by_hand():
    gains = {"a": 2.0, "b": 1.0, "x": 0.0}
    # 1/log2(2) + 2/log2(4) over 2/log2(2) + 1/log2(3)
    assert ndcg(["b", "x", "a"], gains) == pytest.approx((1 + 2 / 2) / (2 + 1 / np.log2(3)))
    assert ndcg(["x", "y"], gains) == 0
    assert ndcg(["a", "b"], gains) == pytest.approx(1)
    assert ndcg(["x", "a"], gains, cut=1) == 0
    assert recall(["b", "x", "a"], gains, 1) == 0.5
    assert recall(["b", "x", "a"], gains, 3) == 1


def test_the_measures_are_trec_evals(tmp_path):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    data = read_retrieval(made(tmp_path))
    rankings = ranked(Letters(), data, 40)
    runs = {query: {d: float(-place) for place, d in enumerate(found)} for query, found in rankings.items()}
    qrels = {query: {d: int(gain) for d, gain in gains.items()} for query, gains in data.relevant.items()}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.5"}).evaluate(runs)
    assert len(theirs) == 12
    for query, gains in data.relevant.items():
        assert ndcg(rankings[query], gains) == pytest.approx(theirs[query]["ndcg_cut_10"], abs=1e-6)
        assert recall(rankings[query], gains, 5) == pytest.approx(theirs[query]["recall_5"], abs=1e-6)


def test_vectors_of_whole_numbers_are_ranked_too(tmp_path):
    class Counts(Letters):
        def encode(self, sentences, *, batch_size, show_progress_bar):
            counted = super().encode(sentences, batch_size=batch_size, show_progress_bar=show_progress_bar)
            return counted.astype(np.int64)

    data = read_retrieval(made(tmp_path))
    assert ranked(Counts(), data, 40) == ranked(Letters(), data, 40)


def test_documents_are_ranked_by_cosine_without_a_similarity(tmp_path, monkeypatch):
    data = read_retrieval(made(tmp_path))
    monkeypatch.setattr(retrieval, "_QUERIES_AT_ONCE", 5)
    found = ranked(Letters(), data, 7)

    def vector(text):
        counts = np.array([text.count(letter) for letter in "abc"], dtype=float)
        return counts / np.linalg.norm(counts)

    for query, text in data.queries.items():
        cosines = {identity: vector(text) @ vector(document) for identity, document in data.documents.items()}
        best = sorted(cosines.values(), reverse=True)[:7]
        assert [cosines[identity] for identity in found[query]] == pytest.approx(best, abs=1e-6)


def test_title_and_text_are_one_document(tmp_path):
    write(tmp_path / "corpus.jsonl", [{"_id": 1, "title": "T", "text": "x"}, {"_id": 2, "text": "y"}])
    write(tmp_path / "queries.jsonl", [{"_id": "q", "text": "a"}, {"_id": "unjudged", "text": "b"}])
    write(tmp_path / "qrels_dev.jsonl", [{"query_id": "q", "corpus_id": 2, "score": 1}])
    data = read_retrieval(tmp_path, "dev")
    assert data.documents == {"1": "T x", "2": "y"}
    assert data.queries == {"q": "a"}
    assert data.relevant == {"q": {"2": 1.0}}


def test_beirs_own_files(tmp_path):
    write(tmp_path / "corpus.jsonl", [{"_id": "1", "title": "", "text": "ab"}, {"_id": "2", "title": "", "text": "c"}])
    write(tmp_path / "queries.jsonl", [{"_id": "q", "text": "a", "metadata": {}}])
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t1\t1\n")
    report = evaluate_retrieval(Letters(), tmp_path, name="letters")
    assert report.value(tmp_path.name, "test", "ndcg@10") == 1
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t1\n")
    with pytest.raises(EvaluationDataError, match="line 2 must be query id"):
        evaluate_retrieval(Letters(), tmp_path)


def test_a_folder_of_sets(tmp_path):
    made(tmp_path / "one")
    made(tmp_path / "two", seed=1)
    report = evaluate_retrieval(Letters(), tmp_path)
    assert [(score.task, score.metric) for score in report.scores] == [
        (task, metric)
        for task in ("one", "two")
        for metric in ("ndcg@10", "recall@1", "recall@5", "recall@10", "recall@100")
    ]
    assert report.value("one", "test", "recall@100") == 1
    assert 0 < report.value("one", "test", "ndcg@10") < 1


def test_queries_that_are_documents(tmp_path):
    """Arguana's and Quora's queries lie in the corpus under their own id: MTEB does not let them be found there."""
    letters = ["aab", "aac", "bbc", "ccb"]
    for name in ("beir-ArguAna", "all", "others"):
        write(tmp_path / name / "corpus.jsonl", [{"_id": f"t{row}", "text": text} for row, text in enumerate(letters)])
        asked = [{"_id": "t0", "text": "aab"}, {"_id": "t2", "text": "bbc"}]
        other = [] if name == "all" else [{"_id": "q", "text": "c"}]
        write(tmp_path / name / "queries.jsonl", asked + other)
        judged = [{"query_id": "t0", "corpus_id": "t1", "score": 1}, {"query_id": "t2", "corpus_id": "t3", "score": 1}]
        judged += [{"query_id": "q", "corpus_id": "t3", "score": 1}] if other else []
        write(tmp_path / name / "qrels_test.jsonl", judged)
    found = {(one.task, one.metric): one.value for one in evaluate_retrieval(Letters(), tmp_path).scores}
    assert found["beir-ArguAna", "recall@1"] == found["all", "recall@1"] == 1
    assert found["others", "recall@1"] == pytest.approx(1 / 3)
    assert found["others", "recall@5"] == 1
    assert len(evaluate_retrieval(Letters(), tmp_path / "all").notes) == 1
    # Ids that are the same by chance, of other texts, are answers as any others.
    write(tmp_path / "mine" / "corpus.jsonl", [{"_id": f"{row}", "text": text} for row, text in enumerate(letters)])
    write(tmp_path / "mine" / "queries.jsonl", [{"_id": "0", "text": "aaaaab"}, {"_id": "2", "text": "bbcb"}])
    write(tmp_path / "mine" / "qrels_test.jsonl", [{"query_id": q, "corpus_id": q, "score": 1} for q in ("0", "2")])
    report = evaluate_retrieval(Letters(), tmp_path / "mine")
    assert report.value("mine", "test", "recall@1") == 1
    assert report.notes == ()
    # Under a name that has a set's as a part of a word, or where that document is judged to be an answer, they count.
    for name, like, notes in (("hayfever", "others", 0), ("fever", "others", 1), ("beir-fever", "mine", 0)):
        shutil.copytree(tmp_path / like, tmp_path / name)
        assert len(evaluate_retrieval(Letters(), tmp_path / name).notes) == notes
    kept = evaluate_retrieval(Letters(), tmp_path / "all", ignore_identical_ids=False)
    assert next(one.value for one in kept.scores if one.metric == "recall@1") == 0
    data = read_retrieval(tmp_path / "all")
    assert ranked(Letters(), data, 4, ignore_identical_ids=True)["t0"][0] == "t1"
    assert len(ranked(Letters(), data, 2, ignore_identical_ids=True)["t0"]) == 2


def test_prompts_of_queries_and_documents(tmp_path):
    class Prompted(Letters):
        def encode_query(self, texts, **options):
            self.asked = texts
            return self.encode(texts, **options)

        def encode_document(self, texts, **options):
            self.output = texts
            return self.encode(texts, **options)

    model = Prompted()
    evaluate_retrieval(model, made(tmp_path))
    assert len(model.asked) == len(set(model.asked))
    assert len(model.output) > len(model.asked) > 1


@pytest.mark.parametrize("at_once", [5, 53, 100])
def test_a_corpus_is_encoded_and_ranked_in_parts(monkeypatch, at_once):
    draw = torch.Generator().manual_seed(0)
    keys, vectors = (torch.randn(size, 2, generator=draw) for size in (53, 7))

    def texts(values, letter):
        return {f"{letter}{row}": f"{letter}{row} {x} {y}" for row, (x, y) in enumerate(values.double().tolist())}

    class Counted(Angles):
        sizes: ClassVar[list[int]] = []

        def encode_document(self, texts, **options):
            self.sizes.append(len(texts))
            return self.encode(texts, **options)

    monkeypatch.setattr(retrieval, "_DOCUMENTS_AT_ONCE", at_once)
    found = ranked(Counted(), RetrievalSet(texts(keys, "d"), texts(vectors, "q"), {}), 9)
    expected = torch.nn.functional.cosine_similarity(vectors[:, None], keys[None], dim=2).topk(9, dim=1).indices
    assert found == {f"q{query}": [f"d{row}" for row in rows] for query, rows in enumerate(expected.tolist())}
    assert sum(Counted.sizes) == 53
    assert max(Counted.sizes) <= at_once


@pytest.mark.parametrize(
    ("name", "nearest"), [("cosine", "c"), ("dot", "long"), ("euclidean", "e"), ("manhattan", "m"), (None, "c")]
)
def test_documents_are_ranked_by_the_models_own_similarity(tmp_path, name, nearest):
    class Own(Angles):
        similarity_fn_name = name

        def __init__(self):
            if name:
                self.similarity = SimilarityFunction.to_similarity_fn(name)

    rows = {"c": "c 2 2", "long": "l 9 0", "e": "e 0.5 0.55", "m": "m 1 0.1"}
    write(tmp_path / "corpus.jsonl", [{"_id": key, "text": text} for key, text in rows.items()])
    write(tmp_path / "queries.jsonl", [{"_id": "q", "text": "q 1 1"}])
    write(tmp_path / "qrels_test.jsonl", [{"query_id": "q", "corpus_id": nearest, "score": 1}])
    report = evaluate_retrieval(Own(), tmp_path)
    assert report.value(tmp_path.name, "test", "recall@1") == 1
    assert report.settings["similarity"] == (name or "cosine")


class Angles:
    """A text "k x y" becomes (x, y)."""

    def encode(self, texts, **_):
        return np.array([[float(value) for value in text.split()[1:]] for text in texts], dtype=np.float32)


def test_ties_are_broken_as_in_trec_eval_and_what_is_not_finite_is_last():
    documents = {f"d{k}": f"d{k} 1 0" for k in (3, 1, 2)} | {"near": "n 1 0.5", "none": "n nan nan", "far": "f -1 0"}
    pytrec_eval = pytest.importorskip("pytrec_eval")
    data = RetrievalSet(documents, {"q": "q 1 0", "lost": "q nan 1"}, {"q": {"d1": 1.0}, "lost": {"d1": 1.0}})
    found = retrieval.ranked(Angles(), data, 10)
    assert found == {"q": ["d3", "d2", "d1", "near", "far", "none"], "lost": []}
    run = {"q": dict.fromkeys(("d1", "d2", "d3"), 1.0)}
    (theirs,) = pytrec_eval.RelevanceEvaluator({"q": {"d1": 1}}, {"ndcg_cut.10"}).evaluate(run).values()
    assert retrieval.ndcg(found["q"], {"d1": 1.0}) == pytest.approx(theirs["ndcg_cut_10"])


def test_judgements_under_other_names(tmp_path):
    """Beside the others or in qrels, a table or rows, BEIR's spelling of the columns or another: the same set."""
    made(tmp_path)
    with gzip.open(tmp_path / "qrels_test.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    wanted = read_retrieval(tmp_path)
    (tmp_path / "qrels_test.jsonl.gz").unlink()
    (tmp_path / "qrels").mkdir()
    table = "".join(f"{row['query_id']}\t{row['corpus_id']}\t{row['score']}\n" for row in rows)
    spelled = [{key.replace("_", "-"): value for key, value in row.items()} for row in rows]
    lines = "".join(json.dumps(row) + "\n" for row in spelled)
    for name, text in (("qrels_test.tsv", table), ("qrels/test.jsonl", lines), ("qrels_test.jsonl", lines)):
        (tmp_path / name).write_text(text)
        assert read_retrieval(tmp_path) == wanted
        (tmp_path / name).unlink()


def test_sets_of_sets_and_what_is_left_out(tmp_path):
    made(tmp_path / "real" / "a1")
    for name in ("cqadupstack/android", "cqadupstack/tex", "nothing"):
        made(tmp_path / "data" / name)
    (tmp_path / "data" / "nothing" / "qrels_test.jsonl.gz").rename(tmp_path / "data" / "nothing" / "qrels_dev.jsonl.gz")
    (tmp_path / "data" / "arguana").symlink_to(tmp_path / "real" / "a1")
    with gzip.open(tmp_path / "data" / "cqadupstack" / "tex" / "qrels_test.jsonl.gz", "at") as file:
        file.write(json.dumps({"query_id": "q0", "corpus_id": "gone", "score": 1}) + "\n")
    report = evaluate_retrieval(Letters(), tmp_path / "data")
    tasks = ["arguana", "cqadupstack/android", "cqadupstack/tex", "cqadupstack"]
    assert [score.task for score in report.scores[::5]] == tasks
    assert any(note.startswith("arguana: the document with a query's own id") for note in report.notes)
    assert "nothing: no judgements of split 'test'; left out." in report.notes
    assert any("cqadupstack/tex: 1 of " in note and "not in the corpus" in note for note in report.notes)
    with pytest.raises(EvaluationDataError, match=r"no set has judgements of split 'train'"):
        evaluate_retrieval(Letters(), tmp_path / "data", split="train")
    lonely = tmp_path / "data" / "cqadupstack" / "android"
    (lonely / "qrels_test.jsonl.gz").unlink()
    (lonely / "qrels_test.tsv").write_text("q0\tdoc-77\t1\n")
    with pytest.raises(EvaluationDataError, match=r"no document that split 'test' judges is in .*, for example doc-77"):
        read_retrieval(lonely)


def found_or_not(folder, found):
    """Two documents and one query, whose relevant document is the nearer one or the other."""
    write(folder / "corpus.jsonl", [{"_id": "1", "text": "ab"}, {"_id": "2", "text": "c"}])
    write(folder / "queries.jsonl", [{"_id": "q", "text": "a"}])
    write(folder / "qrels_test.jsonl", [{"query_id": "q", "corpus_id": "1" if found else "2", "score": 1}])


def test_the_parts_of_a_set_count_as_one_set_in_the_mean(tmp_path):
    found_or_not(tmp_path / "scifact", found=True)
    parts = [f"cqadupstack/part{number:02d}" for number in range(12)]
    for number, part in enumerate(parts):
        found_or_not(tmp_path / part, found=number % 4 == 0)
    report = evaluate_retrieval(Letters(), tmp_path)
    assert [s.task for s in report.scores if s.metric == "recall@1"] == [*parts, "cqadupstack", "scifact"]
    # 3 of the 12 parts find their document: 1/4. The mean is that of the two sets, not (3 + 1) / 13.
    assert report.value("cqadupstack", "test", "recall@1") == 0.25
    assert report.mean("test", "recall@1") == 0.625
    # The document is then second: 1 / log2(3).
    whole = (3 + 9 / math.log2(3)) / 12
    assert report.value("cqadupstack", "test", "ndcg@10") == pytest.approx(whole)
    assert report.mean("test", "ndcg@10") == pytest.approx((1 + whole) / 2)
    (row,) = [line.split() for line in report.table().splitlines() if line.startswith("mean") and "recall@1 " in line]
    assert row == ["mean", "test", "recall@1", "13", "62.50"]  # every query once
    # cqadupstack by itself: its parts are the sets.
    alone = evaluate_retrieval(Letters(), tmp_path / "cqadupstack")
    assert alone.mean("test", "recall@1") == 0.25
    assert len(alone.scores) == 12 * 5


def test_judgements_as_a_table(tmp_path):
    """With a head or without, blank lines, Windows' line ends, .gz; what is none is named."""
    made(tmp_path)
    (tmp_path / "qrels_test.jsonl.gz").unlink()
    table = tmp_path / "qrels" / "test.tsv"
    table.parent.mkdir()
    table.write_bytes(b"query-id\tcorpus-id\tscore\r\nq0\td0\t1\r\n\r\nq1\td1\t2\r\n")
    with_head = read_retrieval(tmp_path).relevant
    assert with_head == {"q0": {"d0": 1.0}, "q1": {"d1": 2.0}}
    table.write_bytes(b"q0\td0\t1\nq1\td1\t2\n\n")
    assert read_retrieval(tmp_path).relevant == with_head
    table.with_name("test.tsv.gz").write_bytes(gzip.compress(table.read_bytes()))
    table.unlink()
    assert read_retrieval(tmp_path).relevant == with_head
    table.write_bytes(b"q0\td0\t1\n\xff\td1\t2\n")
    with pytest.raises(EvaluationDataError, match="damaged or cut short"):
        read_retrieval(tmp_path)
    table.write_bytes(b"q0\td0\t1\nq1\td1\tmuch\n")
    with pytest.raises(EvaluationDataError, match="line 2: score must be a finite number, got 'much'"):
        read_retrieval(tmp_path)


def recalls(model, pairs, **options):
    report = evaluate_in_domain_retrieval(model, pairs, **options)
    return {score.metric: score.value for score in report.scores}


def test_in_domain_retrieval_by_hand():
    pairs = STSPairs(
        ("a", "ab", "b", "c"),
        ("aa", "abb", "c", "c"),
        (5.0, 5.0, 1.0, 5.0),
    )
    # a: aa is as near as can be. ab: abb (0.949) is nearer than a and aa (0.707), and b. c: another c is the copy, and
    # its own partner has the same text.
    assert recalls(Letters(), pairs) == {"recall@1": 1.0, "recall@5": 1.0, "recall@10": 1.0}
    # aab: its partner abb has cosine 0.8; aa and a (0.894), ab and ba (0.949) come before it.
    far = STSPairs(("aab", "aa", "ab"), ("abb", "a", "ba"), (5.0, 1.0, 1.0))
    assert recalls(Letters(), far) == {"recall@1": 0.0, "recall@5": 1.0, "recall@10": 1.0}
    report = evaluate_in_domain_retrieval(Letters(), pairs, min_score=4)
    assert {score.size for score in report.scores} == {3}
    with pytest.raises(EvaluationDataError, match="scale the scores to 0 to 5"):
        recalls(Letters(), pairs, min_score=6)


@pytest.mark.parametrize("value", [math.nan, 0.0, 1.0])
def test_an_encoder_that_collapsed_finds_nothing_in_its_domain(value):
    class Collapsed:
        def encode(self, texts, **options):
            return np.full((len(texts), 3), value)

    first = tuple(f"a sentence {number}" for number in range(20))
    pairs = STSPairs(first, tuple(f"the {one}" for one in first), (5.0,) * 20)
    assert set(recalls(Collapsed(), pairs).values()) == {0.0}
    assert bool(evaluate_in_domain_retrieval(Collapsed(), pairs).notes) == math.isnan(value)
    # Copies of the wanted sentence do not count.
    pairs = STSPairs(("a", "b"), ("aa", "aa"), (5.0, 0.0))
    assert recalls(Letters(), pairs)["recall@1"] == 1.0


def test_missing_things(tmp_path):
    with pytest.raises(EvaluationDataError, match="not a folder"):
        evaluate_retrieval(Letters(), tmp_path / "none")
    with pytest.raises(EvaluationDataError, match=r"no corpus\.jsonl"):
        evaluate_retrieval(Letters(), tmp_path)
    made(tmp_path)
    (tmp_path / "qrels_test.jsonl.gz").unlink()
    with pytest.raises(EvaluationDataError, match=r"no qrels/test\.tsv"):
        evaluate_retrieval(Letters(), tmp_path)
    unknown = json.dumps({"query_id": "q99", "corpus_id": "d1", "score": 1}) + "\n"
    (tmp_path / "qrels_test.jsonl.gz").write_bytes(gzip.compress(unknown.encode()))
    with pytest.raises(EvaluationDataError, match="query q99 is not in"):
        evaluate_retrieval(Letters(), tmp_path)
    write(tmp_path / "qrels_test.jsonl.gz", [{"query_id": "q1", "corpus_id": "d1", "score": 0}])
    with pytest.raises(EvaluationDataError, match="no judgement"):
        evaluate_retrieval(Letters(), tmp_path)


@pytest.mark.long
def test_the_known_97_pairs(data_folder):
    from st_contrastive.evaluation import read_sts

    path = data_folder / "sts" / "stsb" / "test.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    pairs = read_sts(path)
    assert sum(score >= 5 for score in pairs.scores) == 97
    assert 2 * len(pairs) == 2758
