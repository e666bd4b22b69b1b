from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from st_contrastive.objectives import alignment, geometry, mutual_information, uniformity


def rows(seed, count=7, width=5):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_alignment_is_the_loop():
    first, second = rows(0), rows(1)
    expected = 0.0
    for one, other in zip(first, second, strict=True):
        expected += float(((one / one.norm() - other / other.norm()) ** 2).sum()) / len(first)
    assert float(alignment(first, second)) == pytest.approx(expected, rel=1e-12)
    assert float(alignment(torch.eye(2), torch.eye(2).flip(0), power=1.0)) == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("at_once", [2, 3, 1024])
def test_uniformity_is_the_loop(monkeypatch, at_once):
    monkeypatch.setattr(geometry, "_ROWS_AT_ONCE", at_once)
    vectors = rows(2)
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    pairs = [math.exp(-2 * float(((unit[i] - unit[j]) ** 2).sum())) for i in range(len(unit)) for j in range(i)]
    assert float(uniformity(vectors)) == pytest.approx(math.log(sum(pairs) / len(pairs)), rel=1e-12)
    assert float(uniformity(torch.eye(2), scale=3.0)) == pytest.approx(-6.0)


@given(st.integers(0, 1000), st.integers(2, 9))
@settings(max_examples=25, deadline=None)
def test_bounds(seed, count):
    first, second = rows(seed, count), rows(seed + 1, count)
    assert 0 <= float(alignment(first, second)) <= 4 + 1e-9
    assert -8 - 1e-9 <= float(uniformity(first)) <= 1e-9
    assert float(mutual_information(first, second)) <= math.log(count) + 1e-9
    assert float(mutual_information(first, first)) >= float(mutual_information(first, second)) - 1e-6


def test_information_is_the_tightest_of_the_bounds():
    first, second = rows(3), rows(3) + 0.3 * rows(4)
    each = [float(mutual_information(first, second, temperatures=[t])) for t in (0.05, 0.2, 1.0)]
    assert float(mutual_information(first, second, temperatures=(0.05, 0.2, 1.0))) == pytest.approx(max(each))
    assert len(set(each)) == 3
    # Views that know nothing of each other: next to nothing, once there are many.
    assert float(mutual_information(rows(5, 400, 40), rows(6, 400, 40))) < 0.05
