from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from st_contrastive.evaluation import STSPairs, compare, evaluate_geometry
from st_contrastive.evaluation.analyses import uniformity
from tests.evaluation.encoders import Constant, Letters

PAIRS = STSPairs(("a", "ab", "a", "c"), ("aab", "ab", "c", "b"), (5.0, 4.5, 4.0, 0.0))


def test_uniformity_is_the_loop():
    vectors = torch.randn(7, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    pairs = [math.exp(-2 * float(((unit[i] - unit[j]) ** 2).sum())) for i in range(len(unit)) for j in range(i)]
    assert float(uniformity(vectors)) == pytest.approx(math.log(sum(pairs) / len(pairs)), rel=1e-12)


def test_uniformity_of_many_rows():
    """More than are compared at a time."""
    vectors = torch.randn(1100, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    distances = torch.pdist(vectors / vectors.norm(dim=1, keepdim=True))
    expected = (-2 * distances.square()).exp().mean().log()
    assert float(uniformity(vectors)) == pytest.approx(float(expected), rel=1e-12)


def test_geometry_by_hand():
    report = evaluate_geometry(Letters(), PAIRS)
    # The pairs above 4: a and aab (cosine 2 / sqrt(5)), ab and itself.
    assert report.value("stsb", "dev", "alignment") == pytest.approx((2 - 2 * 2 / math.sqrt(5)) / 2)
    vectors = torch.from_numpy(Letters().encode(["a", "ab", "c", "aab", "b"], batch_size=5, show_progress_bar=False))
    assert report.value("stsb", "dev", "uniformity") == pytest.approx(float(uniformity(vectors)))  # a loop, above
    assert [score.size for score in report.scores] == [2, 5]
    assert "0.106" in compare([report])  # as it is, not x 100


@pytest.mark.parametrize("scale", [1, 0.2, 2, 20])
def test_any_scale_of_the_scores(scale):
    """Positive pairs are above four fifths of the highest score, also if scores were stored in float32."""
    scaled = STSPairs(PAIRS.first, PAIRS.second, tuple(float(np.float32(score * scale)) for score in PAIRS.scores))
    report = evaluate_geometry(Letters(), scaled)
    assert report.scores == evaluate_geometry(Letters(), PAIRS).scores
    assert report.settings["min_score"] == pytest.approx(4 * scale, abs=1e-5)


def test_vectors_without_geometry_are_noted():
    for value in (math.nan, 1.0):
        assert len(evaluate_geometry(Constant(value), PAIRS).notes) == 1
