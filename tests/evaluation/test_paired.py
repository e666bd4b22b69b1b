"""Two encoders on the same questions."""

from __future__ import annotations

import numpy as np
import pytest

from st_contrastive.evaluation import CorpusEvaluator, Judgement, compare_paired
from st_contrastive.evaluation.paired import interval
from tests.evaluation.encoders import Same


def judgement(ranks, leads=None, owners=None):
    ranks = np.asarray(ranks, dtype=float)
    leads = np.zeros(len(ranks)) if leads is None else np.asarray(leads, dtype=float)
    return Judgement(np.arange(len(ranks)) if owners is None else np.asarray(owners), ranks, leads)


def test_by_hand():
    comparison = compare_paired(judgement([1, 3, 11, 2]), judgement([3, 1, 1, 2]))
    assert (comparison.questions, comparison.higher, comparison.lower) == (4, 2, 1)
    assert comparison.gain == pytest.approx((-0.5 + 0.5 + 1) / 4)
    assert comparison.low < comparison.gain < comparison.high
    assert judgement([1, 3, 11, 2]).ndcg == pytest.approx((1 + 0.5 + 1 / np.log2(3)) / 4)


@pytest.mark.parametrize("count", [20, 400])
def test_the_interval_is_that_of_the_mean(count):
    """Close to the normal one where each document has one question."""
    values = np.random.default_rng(1).normal(0.3, 1, count)
    mean, low, high = interval(values, np.arange(count))
    half = 1.96 * values.std() / np.sqrt(count)
    assert mean == values.mean()
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=0.12 * half)


def test_questions_of_one_document_are_no_more_than_one():
    """Twice the same question is not twice the evidence."""
    values = np.random.default_rng(1).normal(size=100)
    once, twice = (interval(np.tile(values, times), np.tile(np.arange(100), times)) for times in (1, 2))
    assert once == pytest.approx(twice)


@pytest.mark.parametrize(
    ("ranks", "leads", "decision"),
    [([1] * 40, [0.3] * 40, "better"), ([9] * 40, [-0.1] * 40, "worse"), ([1] * 40, [-0.1] * 40, "no difference"),
     ([2] * 40, [0.3] * 40, "no difference"), ([1, 3] * 20, [0.3] * 40, "better"),
     ([1, 3] * 20, [0.6, -0.15] * 20, "better"), ([1] * 40, [0.19] * 40, "no difference"),
     ([1, 9] * 20, [0.3] * 40, "no difference"),
     ([1, 12] * 20, [-0.1] * 40, "worse"), ([1, 12] * 20, [0.3] * 40, "no difference"),
     ([float("nan")] * 40, [float("nan")] * 40, "no difference")],
)  # fmt: skip
def test_the_decision(ranks, leads, decision):
    """Ranks of 1 and 9 are better than two of 2 by nDCG@10 (0.65 and 0.63), and worse by their logarithms."""
    assert compare_paired(judgement([2] * 40), judgement(ranks, leads)).decision == decision


def test_other_questions_are_refused():
    """Also where as many documents have as many questions."""
    words = [f"{kind} {word}" for kind in ("black", "white") for word in "cat dog rain man book sun bread milk".split()]
    words += "garden train bird lake chair".split()
    texts = [f"The {word} is old. I see a {word} now. We like {word} most." for word in words]
    evaluators = [CorpusEvaluator(texts), CorpusEvaluator(texts, seed=1), CorpusEvaluator([*map(str.upper, texts)])]
    first, *others = (evaluator.judge(Same()) for evaluator in evaluators)
    assert compare_paired(first, CorpusEvaluator(texts).judge(Same())).gain == 0
    for before, after in ((judgement([1, 2]), judgement([1, 2], owners=[0, 0])), *((first, other) for other in others)):
        with pytest.raises(ValueError, match="before and after"):
            compare_paired(before, after)
