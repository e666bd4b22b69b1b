from __future__ import annotations

import math

import pytest

from st_contrastive.evaluation import STSPairs, evaluate_in_domain_retrieval
from tests.evaluation.encoders import Constant, Letters


def recalls(model, pairs):
    report = evaluate_in_domain_retrieval(model, pairs)
    return {score.metric: score.value for score in report.scores}


def test_in_domain_retrieval_by_hand():
    pairs = STSPairs(("a", "ab", "b", "c"), ("aa", "abb", "c", "c"), (5.0, 5.0, 1.0, 5.0))
    # a: aa is as near as can be. ab: abb (0.949) is nearer than a and aa (0.707), and b. c: another c is the copy, and
    # its own partner has the same text.
    assert recalls(Letters(), pairs) == {"recall@1": 1.0, "recall@5": 1.0, "recall@10": 1.0}
    # aab: its partner abb has cosine 0.8; aa and a (0.894), ab and ba (0.949) come before it.
    far = STSPairs(("aab", "aa", "ab"), ("abb", "a", "ba"), (5.0, 1.0, 1.0))
    assert recalls(Letters(), far) == {"recall@1": 0.0, "recall@5": 1.0, "recall@10": 1.0}
    # Copies of the wanted sentence do not count.
    assert recalls(Letters(), STSPairs(("a", "b"), ("aa", "aa"), (5.0, 0.0)))["recall@1"] == 1.0


@pytest.mark.parametrize("scale", [0.2, 1, 20])
def test_the_scale_of_scores_does_not_matter(scale):
    scores = tuple(scale * score for score in (5.0, 5.0, 1.0, 5.0))
    pairs = STSPairs(("a", "ab", "b", "c"), ("aa", "abb", "c", "c"), scores)
    report = evaluate_in_domain_retrieval(Letters(), pairs, task="mine", split="dev")
    assert {(score.task, score.split, score.size) for score in report.scores} == {("mine", "dev", 3)}
    assert report.settings["min_score"] == 5 * scale


@pytest.mark.parametrize("value", [math.nan, 0.0, 1.0])
def test_a_collapsed_encoder_finds_nothing(value):
    first = tuple(f"a sentence {number}" for number in range(20))
    pairs = STSPairs(first, tuple(f"the {one}" for one in first), (5.0,) * 20)
    report = evaluate_in_domain_retrieval(Constant(value), pairs)
    assert {score.value for score in report.scores} == {0.0}
    assert len(report.notes) == 1
