from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from st_contrastive.objectives import forgetting_weights, fused_embeddings, twins_margin
from st_contrastive.objectives.contrast import pairwise_cos_sim


def draw(rows, width, seed):
    return torch.randn(rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def oracle(h, plus, minus, x, x_plus, x_minus):
    def cosine(a, b):
        dot = sum(p * q for p, q in zip(a, b, strict=True))
        return dot / math.sqrt(sum(p * p for p in a) * sum(q * q for q in b))

    total = 0.0
    for i in range(len(h)):
        margin = math.exp(cosine(x[i], x_plus[i])) - math.exp(cosine(x[i], x_minus[i]))
        total += abs(math.exp(cosine(h[i], plus[i])) - math.exp(cosine(h[i], minus[i])) - margin)
    return total / len(h)


def margin_of(h, plus, minus, x, x_plus, x_minus):
    """Equation 8 from vectors."""
    return twins_margin(*(pairwise_cos_sim(*pair) for pair in ((h, plus), (h, minus), (x, x_plus), (x, x_minus))))


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6))
def test_equals_the_loop(rows, width, input_width, seed):
    outputs = [draw(rows, width, seed + k) for k in range(3)]
    inputs = [draw(rows, input_width, seed + 3 + k) for k in range(3)]
    found = margin_of(*outputs, *inputs)
    assert found.item() == pytest.approx(oracle(*(part.tolist() for part in (*outputs, *inputs))), rel=1e-9, abs=1e-12)
    assert 0 <= found.item() <= 2 * (math.e - 1 / math.e) + 1e-9
    order = torch.randperm(rows)
    permuted = margin_of(*(part[order] for part in (*outputs, *inputs)))
    scaled = margin_of(*(3 * part for part in (*outputs, *inputs)))
    assert permuted.item() == pytest.approx(found.item(), rel=1e-9, abs=1e-12)
    assert scaled.item() == pytest.approx(found.item(), rel=1e-9, abs=1e-12)


def test_one_number_instead_of_equal_cosines():
    sims = [2 * torch.rand(5, dtype=torch.float64) - 1 for _ in range(3)]
    expected = twins_margin(*sims[:2], torch.ones(5, dtype=torch.float64), sims[2])
    assert twins_margin(*sims[:2], 1.0, sims[2]).item() == pytest.approx(expected.item(), rel=1e-12)


@given(st.integers(1, 4), st.integers(1, 6), st.sampled_from([0, 0.3, 0.8, 1]), st.booleans(), st.integers(0, 10**6))
def test_fusion_equals_a_loop(count, width, epsilon, full, seed):
    """Equation 3, position by position; a language whose share is 0 has no token."""
    y, y_f = draw(count * width, 3, seed).view(count, width, 3), draw(count * width, 3, seed + 1).view(count, width, 3)
    masks = (torch.rand(2, count, width, generator=torch.Generator().manual_seed(seed)) < 0.6).long()
    fused, mask = fused_embeddings(y, masks[0], y_f, masks[1], epsilon=epsilon, full_where_unpaired=full)
    assert mask.dtype == masks.dtype
    for row in range(count):
        for place in range(width):
            mine = bool(masks[0, row, place]) and epsilon > 0
            theirs = bool(masks[1, row, place]) and epsilon < 1
            assert mask[row, place] == (mine or theirs)
            own, other = y[row, place], y_f[row, place]
            if mine and theirs:
                expected = epsilon * own + (1 - epsilon) * other
            elif mine:
                expected = own if full else epsilon * own
            elif theirs:
                expected = other if full else (1 - epsilon) * other
            else:
                continue
            torch.testing.assert_close(fused[row, place], expected, rtol=1e-12, atol=1e-14)


def test_fused_embeddings_carry_gradients_and_half_precision():
    parts = [draw(6, 3, seed).view(2, 3, 3).requires_grad_() for seed in (0, 1)]
    masks = torch.tensor([[1, 1, 0], [1, 0, 0]]), torch.tensor([[1, 0, 0], [1, 1, 0]])

    def fuse(y, y_f):
        return fused_embeddings(y, masks[0], y_f, masks[1], epsilon=0.7, full_where_unpaired=False)[0]

    assert gradcheck(fuse, parts)
    assert fuse(*(part.bfloat16() for part in parts)).dtype == torch.bfloat16


def test_forgetting_by_hand():
    """Equation 4: 1, 2 and 4 batches ago."""
    assert forgetting_weights(torch.tensor([1.0, 2.0, 4.0]), 0.2).tolist() == pytest.approx([0.8, 0.6, 0.2])
    assert forgetting_weights(torch.tensor([3.0]), 0.0).tolist() == [1.0]


def test_by_hand():
    a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert margin_of(a, a, b, a, a, a).item() == pytest.approx(math.e - 1)
    assert margin_of(a, a, -a, a, a, b).item() == pytest.approx(abs(math.e - 1 / math.e - (math.e - 1)))
    assert margin_of(a, b, b, a, b, b).item() == 0


def test_gradients():
    outputs = [draw(3, 4, k).requires_grad_() for k in range(3)]
    assert gradcheck(margin_of, [*outputs, *(draw(3, 4, 3 + k) for k in range(3))])
