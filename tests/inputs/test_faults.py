"""Faults of texts: hand-made columns, and the same fault found by the reader, by describe and before training."""

from __future__ import annotations

import random

import pytest
from datasets import Dataset

import st_contrastive as stc
from st_contrastive.inputs import describe, faults, load_pairs
from st_contrastive.inputs.faults import Fault
from st_contrastive.training import ContrastiveTrainer
from tests.cases import arguments_of


def test_each_fault_is_counted_with_its_first_example():
    assert faults.find_empty([("a", "b"), ("a", " N/A "), ("\ufeff ", "b"), (None, "b")]) == Fault(
        "empty", "", 3, ("a", " N/A "), faults.find_empty([("", "b")]).remedy
    )
    found = faults.find_repeats("t", ["a", "b", "a", "a", "b"])
    assert (found.count, found.example) == (3, ("a",))
    found = faults.find_shared_text("t", ["nan", "a", "nan", "", "", ""])
    assert (found.count, found.example) == (2, ("nan",))
    found = faults.find_ids("t", ["a text", "A-12", "https://example.org", "two words 3", "naïve7"])
    assert (found.count, found.example) == (2, ("A-12",))
    found = faults.find_same_tokens("t", ["a", "b", "a", "c"], [(1,), (1,), (1,), (2,)])
    assert (found.count, found.example) == (1, ("a", "b"))
    assert faults.find_mixed_labels("label", ["1", "0"]).example == ("1", "0")
    for values, rows, count in ((["1", "0"], 9, 1), (["1", "2"], 9, 0), (["no", "yes"], 2, 0), ([*"0123"], 9, 0)):
        found = faults.find_negative_labels("quality", values, rows)
        assert (found.count if found else 0) == count


def test_columns_without_a_fault():
    texts = ["a cat", "a dog"]
    assert faults.find_empty([texts]) is None
    assert faults.find_repeats("t", texts) is None
    assert faults.find_shared_text("t", texts) is None
    assert faults.find_shared_text("t", []) is None
    assert faults.find_ids("t", texts) is None
    assert faults.find_same_tokens("t", texts, [(1,), (2,)]) is None
    assert faults.find_mixed_labels("quality", ["1", "0"]) is None
    assert faults.find_mixed_labels("label", ["1"]) is None


NOUNS = [f"{a}{b}" for a in ("cat", "rain", "train", "river", "book", "stone", "bread", "star") for b in "abcdefgh"]


def articles(count, seed=0):
    """Titles of two nouns; bodies with these nouns, others and words that all of them have."""
    draw = random.Random(seed)
    titles = [draw.sample(NOUNS, 2) for _ in range(count)]
    bodies = [f"the {a} and the {b} of {' '.join(draw.sample(NOUNS, 3))}" for a, b in titles]
    return [" ".join(title) for title in titles], bodies


@pytest.mark.parametrize("form", ["words", "Chinese"])
def test_titles_in_another_order_than_their_bodies(build, form):
    titles, bodies = articles(200)
    if form == "Chinese":
        titles, bodies = (
            ["".join(chr(0x4E00 + NOUNS.index(word)) for word in text.split() if word in NOUNS) for text in texts]
            for texts in (titles, bodies)
        )
    assert faults.related_share(titles, bodies) > 0.9
    assert faults.find_unrelated_columns("title", titles, bodies) is None
    for order in (random.Random(1).sample(titles, 200), sorted(titles), titles[-1:] + titles[:-1]):
        assert faults.find_unrelated_columns("title", order, bodies).count == 200
    report = describe(load_pairs(Dataset.from_dict({"title": sorted(titles), "body": bodies})), build())
    assert report.unrelated.kind == "unrelated"
    assert "no more words" in str(report)
    report = describe(load_pairs(Dataset.from_dict({"title": titles, "body": bodies})), build())
    assert report.unrelated is None
    assert "no more words" not in str(report)


def test_columns_that_share_no_words_are_not_judged():
    titles, bodies = articles(200)
    german = ["".join(reversed(body)) for body in bodies]
    assert faults.related_share(titles, german) is None
    assert faults.find_unrelated_columns("title", titles, german) is None
    assert faults.related_share(titles[:20], bodies[:20]) is None  # too few


def test_a_fault_of_a_reader_is_found_by_describe_and_before_training(build, tmp_path):
    rows = {"sentence": [f"the cat {n}" for n in range(96)] + ["NULL", "", "the cat 1", "the cat 2"]}
    data = Dataset.from_dict(rows)
    read = describe(stc.inputs.load_sentences(data), build())
    raw = describe(data, build())
    assert read.faults == raw.faults == {"empty": 2, "repeated": 2}
    loss = stc.SimCSELoss(build())
    with pytest.warns(UserWarning, match=r"first 100 rows .* 2\.0% .* 2\.0%"):
        ContrastiveTrainer(loss.model, arguments_of(tmp_path), data, loss=loss)
