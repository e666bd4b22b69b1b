from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from st_contrastive.evaluation import EvaluationDataError, STSPairs, compare, evaluate_geometry, geometry
from st_contrastive.evaluation.geometry import alignment, uniformity
from tests.evaluation.encoders import Constant, Letters

PAIRS = STSPairs(("a", "ab", "a", "c"), ("aab", "ab", "c", "b"), (5.0, 4.5, 4.0, 0.0))


def rows(seed, count=7, width=5):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_alignment_is_the_loop():
    first, second = rows(0), rows(1)
    expected = 0.0
    for one, other in zip(first, second, strict=True):
        expected += float(((one / one.norm() - other / other.norm()) ** 2).sum()) / len(first)
    assert float(alignment(first, second)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("at_once", [2, 3, 1024])
def test_uniformity_is_the_loop(monkeypatch, at_once):
    monkeypatch.setattr(geometry, "_ROWS_AT_ONCE", at_once)
    vectors = rows(2)
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    pairs = [math.exp(-2 * float(((unit[i] - unit[j]) ** 2).sum())) for i in range(len(unit)) for j in range(i)]
    assert float(uniformity(vectors)) == pytest.approx(math.log(sum(pairs) / len(pairs)), rel=1e-12)


@given(st.integers(0, 1000), st.integers(2, 9))
@settings(max_examples=25, deadline=None)
def test_bounds(seed, count):
    first, second = rows(seed, count), rows(seed + 1, count)
    assert 0 <= float(alignment(first, second)) <= 4 + 1e-9
    assert -8 - 1e-9 <= float(uniformity(first)) <= 1e-9


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


@pytest.mark.parametrize("scale", [1, 0.2, 2, 20])
def test_any_scale_of_the_scores(scale):
    """Four fifths of the highest score, also where they are stored in float32."""
    scaled = STSPairs(PAIRS.first, PAIRS.second, tuple(float(np.float32(score * scale)) for score in PAIRS.scores))
    report = evaluate_geometry(Letters(), scaled)
    assert report.scores == evaluate_geometry(Letters(), PAIRS).scores
    assert report.settings["above_score"] == pytest.approx(4 * scale)


def test_what_can_not_be_measured():
    with pytest.raises(EvaluationDataError, match="above_score=5"):
        evaluate_geometry(Letters(), PAIRS, above_score=5)
    for value in (math.nan, 1.0):
        assert len(evaluate_geometry(Constant(value), PAIRS).notes) == 1
