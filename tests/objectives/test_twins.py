from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from st_contrastive.objectives import twins_margin


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


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6))
def test_equals_the_loop(rows, width, input_width, seed):
    outputs = [draw(rows, width, seed + k) for k in range(3)]
    inputs = [draw(rows, input_width, seed + 3 + k) for k in range(3)]
    found = twins_margin(*outputs, *inputs)
    assert found.item() == pytest.approx(oracle(*(part.tolist() for part in (*outputs, *inputs))), rel=1e-9, abs=1e-12)
    assert 0 <= found.item() <= 2 * (math.e - 1 / math.e) + 1e-9
    order = torch.randperm(rows)
    permuted = twins_margin(*(part[order] for part in (*outputs, *inputs)))
    scaled = twins_margin(*(3 * part for part in (*outputs, *inputs)))
    assert permuted.item() == pytest.approx(found.item(), rel=1e-9, abs=1e-12)
    assert scaled.item() == pytest.approx(found.item(), rel=1e-9, abs=1e-12)


def test_by_hand():
    a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert twins_margin(a, a, b, a, a, a).item() == pytest.approx(math.e - 1)
    assert twins_margin(a, a, -a, a, a, b).item() == pytest.approx(abs(math.e - 1 / math.e - (math.e - 1)))
    assert twins_margin(a, b, b, a, b, b).item() == 0


def test_the_margin_carries_no_gradient():
    outputs = [draw(3, 4, k).requires_grad_() for k in range(3)]
    assert gradcheck(twins_margin, [*outputs, *(draw(3, 4, 3 + k) for k in range(3))])
    inputs = [draw(3, 4, 3 + k).requires_grad_() for k in range(3)]
    twins_margin(*outputs, *inputs).backward()
    assert all(part.grad.abs().sum() > 0 for part in outputs)
    assert all(part.grad is None for part in inputs)
