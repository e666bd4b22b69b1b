"""Two encoders on the same questions."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import RESULTS
from st_contrastive.evaluation import Comparison, CorpusEvaluator, Judgement, compare_paired
from st_contrastive.evaluation.paired import Change, interval
from tests.evaluation.encoders import Same


def judgement(ranks, leads=None, owners=None):
    ranks = np.asarray(ranks, dtype=float)
    leads = np.zeros(len(ranks)) if leads is None else np.asarray(leads, dtype=float)
    return Judgement(np.arange(len(ranks)) if owners is None else np.asarray(owners), ranks, leads)


def test_by_hand():
    comparison = compare_paired(judgement([1, 3, 11, 2]), judgement([3, 1, 1, 2]))
    assert (comparison.questions, comparison.higher, comparison.lower) == (4, 2, 1)
    assert comparison.gain.mean == pytest.approx((-0.5 + 0.5 + 1) / 4)
    assert comparison.gain.low < comparison.gain.mean < comparison.gain.high
    assert comparison.gain_with_bm25 is None
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
    ("ranks", "leads", "decision", "figures"),
    [([1] * 40, [0.3] * 40, "better", ["+36.91", "+0.30"]), ([9] * 40, [-0.1] * 40, "worse", ["-32.99", "-0.10"]),
     ([1] * 40, [-0.1] * 40, "no difference", ["-0.100"]), ([2] * 40, [0.3] * 40, "no difference", ["+0.00"]),
     ([1, 3] * 20, [0.3] * 40, "better", ["+11.91", "+0.30"]),
     ([1, 3] * 20, [0.6, -0.12] * 20, "better", ["+11.91", "+0.24"]),
     ([1] * 40, [0.196] * 40, "no difference", ["+0.196"]), ([1, 12] * 20, [-0.1] * 40, "worse", ["-13.09", "-0.10"]),
     ([1, 12] * 20, [0.3] * 40, "no difference", ["-13.09"]),
     ([3] * 40, [0.1] * 40, "no difference", ["-13.09", "+0.100"]),
     ([float("nan")] * 40, [float("nan")] * 40, "no difference", ["+nan", "+nan"])],
)  # fmt: skip
def test_the_decision_and_its_reason(ranks, leads, decision, figures):
    """The reason has the figure of each condition that decided, and no other."""
    comparison = compare_paired(judgement([2] * 40), judgement(ranks, leads))
    assert comparison.decision == decision
    assert re.findall(r"\(([-+][\d.nan]+)\)", comparison.reason) == figures


def test_with_bm25_too():
    before = replace(judgement([2] * 4), ranks_with_bm25=np.array([1, 2, 3, 11]))
    after = replace(judgement([1] * 4), ranks_with_bm25=np.ones(4))
    gain = compare_paired(before, after).gain_with_bm25
    assert gain.mean == pytest.approx((0 + 1 - 1 / np.log2(3) + 0.5 + 1) / 4)
    assert gain.low <= gain.mean <= gain.high


def test_the_recorded_changes():
    """Of the judged changes, none that lost more than 0.75 is better, and 12 of the 19 that gained 1 or more are."""
    rows = [json.loads(line) for line in (RESULTS / "judge.jsonl").read_text(encoding="utf-8").splitlines()]
    better = [row for row in rows if decide(row["gain"] / 100, row["lead"]) == "better"]
    assert min(row["judged"] for row in better) > -0.75
    assert sum(row["judged"] >= 1 for row in better) == 12
    assert sum(row["judged"] >= 1 for row in rows) == 19
    runs = [json.loads(line) for line in (RESULTS / "own_text.jsonl").read_text(encoding="utf-8").splitlines()]
    for kind, prefix in (("trained", ""), ("mixed", "mixed ")):
        for run in runs:
            if f"{kind} interval" in run and f"{prefix}lead" in run:
                decision = decide((run[f"corpus {kind}"] - run["corpus start"]) / 100, run[f"{prefix}lead"])
                assert decision != "better" or run[kind] - run["start"] > -run[f"{kind} interval"]
                assert decision != "better" or "shuffled" not in run["row"]
                assert run[f"{prefix}decision"] != "better" or decision == "better"


def decide(gain, lead):
    return Comparison(1, 1, 0, Change(gain, gain, gain), Change(lead, lead, lead)).decision


def test_other_questions_are_refused():
    """Also where as many documents have as many questions."""
    words = [f"{kind} {word}" for kind in ("black", "white") for word in "cat dog rain man book sun bread milk".split()]
    words += "garden train bird lake chair".split()
    texts = [f"The {word} is old. I see a {word} now. We like {word} most." for word in words]
    evaluators = [CorpusEvaluator(texts), CorpusEvaluator(texts, seed=1), CorpusEvaluator([*map(str.upper, texts)])]
    first, *others = (evaluator.judge(Same()) for evaluator in evaluators)
    assert compare_paired(first, CorpusEvaluator(texts).judge(Same())).gain.mean == 0
    for before, after in ((judgement([1, 2]), judgement([1, 2], owners=[0, 0])), *((first, other) for other in others)):
        with pytest.raises(ValueError, match="before and after"):
            compare_paired(before, after)
