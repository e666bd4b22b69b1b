from __future__ import annotations

import math

import numpy as np
import pytest

from st_contrastive.evaluation import EvaluationDataError, STSPairs, compare, evaluate_geometry
from tests.evaluation.encoders import Constant, Letters

PAIRS = STSPairs(("a", "ab", "a", "c"), ("aab", "ab", "c", "b"), (5.0, 4.5, 4.0, 0.0))


def test_geometry_by_hand():
    report = evaluate_geometry(Letters(), PAIRS)
    # The pairs above 4: a and aab (cosine 2 / sqrt(5)), ab and itself.
    assert report.value("stsb", "dev", "alignment") == pytest.approx((2 - 2 * 2 / math.sqrt(5)) / 2)
    sentences = ["a", "ab", "c", "aab", "b"]
    vectors = np.array([[text.count(letter) for letter in "abc"] for text in sentences], dtype=float)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    kernel = [
        math.exp(-2 * ((x - y) ** 2).sum()) for i, x in enumerate(vectors) for j, y in enumerate(vectors) if i != j
    ]
    assert report.value("stsb", "dev", "uniformity") == pytest.approx(math.log(np.mean(kernel)))
    assert [score.size for score in report.scores] == [2, 5]
    assert "0.106" in compare([report])  # as it is, not x 100


def test_what_can_not_be_measured():
    with pytest.raises(EvaluationDataError, match="above_score=5"):
        evaluate_geometry(Letters(), PAIRS, above_score=5)
    for value in (math.nan, 1.0):
        assert len(evaluate_geometry(Constant(value), PAIRS).notes) == 1
