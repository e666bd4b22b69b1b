from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from st_contrastive.objectives import info_nce, info_nce_of_cosines
from st_contrastive.objectives.contrast import cosine_blocks


def oracle(anchors, positives, temperature, negatives=(), weights=(), offset=0):
    def cosine(a, b):
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))

    total = 0.0
    for i, anchor in enumerate(anchors):
        denominator = sum(math.exp(cosine(anchor, positive) / temperature) for positive in positives)
        denominator += sum(
            p * math.exp(cosine(anchor, negative) / temperature) for p, negative in zip(weights, negatives, strict=True)
        )
        total -= cosine(anchor, positives[offset + i]) / temperature - math.log(denominator)
    return total / len(anchors)


def rows(count, width, seed):
    return torch.randn(count, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


shapes = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(0, 4), st.integers(0, 10**6))


@given(shapes, st.sampled_from([0.05, 0.5, 1.0]))
def test_equals_the_loop(shape, temperature):
    count, width, extra, seed = shape
    h, plus, negatives = rows(count, width, seed), rows(count + 2, width, seed + 1), rows(extra, width, seed + 2)
    weights = torch.rand(extra, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = info_nce(h, plus, temperature=temperature, negatives=negatives, negative_weights=weights, offset=2)
    expected = oracle(h.tolist(), plus.tolist(), temperature, negatives.tolist(), weights.tolist(), offset=2)
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    to_plus, nothing, to_negatives = cosine_blocks(h, plus, None, negatives)
    assert nothing is None
    scores = torch.cat([to_plus, to_negatives], dim=1)
    found = info_nce_of_cosines(scores, temperature=temperature, weights=weights, offset=2)
    assert found.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(shapes)
def test_properties(shape):
    count, width, extra, seed = shape
    h, plus, negatives = rows(count, width, seed), rows(count, width, seed + 1), rows(extra, width, seed + 2)
    base = info_nce(h, plus, temperature=0.5, negatives=negatives)
    order = torch.randperm(count)
    permuted = info_nce(h[order], plus[order], temperature=0.5, negatives=negatives)
    scaled = info_nce(7 * h, 0.1 * plus, temperature=0.5, negatives=3 * negatives)
    assert base.item() == pytest.approx(permuted.item(), rel=1e-9, abs=1e-12)
    assert base.item() == pytest.approx(scaled.item(), rel=1e-9, abs=1e-12)
    # -log of a share: between 0 and what the worst cosines give.
    assert -1e-12 <= base.item() <= 4 + math.log(count + extra) + 1e-9
    # More weight on the negatives never lowers the loss.
    half = info_nce(h, plus, temperature=0.5, negatives=negatives, negative_weights=torch.full((extra,), 0.5))
    assert half.item() <= base.item() + 1e-12


def test_by_hand():
    h = torch.eye(2)
    assert info_nce(h, h, temperature=1.0).item() == pytest.approx(math.log(1 + math.exp(-1)))
    queue, p = torch.tensor([[1.0, 0.0]]), torch.tensor([0.5])
    by_hand = (math.log(1.5 + 1 / math.e) + math.log(1 + 1.5 / math.e)) / 2
    assert info_nce(h, h, temperature=1.0, negatives=queue, negative_weights=p).item() == pytest.approx(by_hand)


def test_a_negative_of_weight_0_has_no_effect_and_no_gradient():
    h, plus = rows(4, 3, 0).requires_grad_(), rows(4, 3, 1)
    negatives = torch.cat([rows(2, 3, 2), torch.zeros(1, 3, dtype=torch.float64)])
    plain = info_nce(h, plus, temperature=0.05, negatives=negatives[:2])
    plain_gradient = torch.autograd.grad(plain, h)[0]
    padded = info_nce(h, plus, temperature=0.05, negatives=negatives, negative_weights=torch.tensor([1.0, 1.0, 0.0]))
    assert padded.item() == pytest.approx(plain.item(), rel=1e-12)
    assert plain_gradient.abs().sum() > 0
    torch.testing.assert_close(torch.autograd.grad(padded, h)[0], plain_gradient)
    empty = info_nce(h, plus, temperature=0.05, negatives=negatives, negative_weights=torch.zeros(3))
    assert empty.item() == pytest.approx(info_nce(h, plus, temperature=0.05).item(), rel=1e-12)


def test_one_row_is_zero_with_zero_gradient():
    h = rows(1, 4, 0).requires_grad_()
    loss = info_nce(h, rows(1, 4, 1), temperature=0.05)
    assert loss.item() == 0
    assert torch.autograd.grad(loss, h)[0].abs().max() == 0


def test_gradcheck():
    inputs = [rows(3, 4, 0).requires_grad_(), rows(5, 4, 1).requires_grad_()]
    options = {"negatives": rows(2, 4, 2), "negative_weights": torch.tensor([0.5, 0.25], dtype=torch.float64)}
    assert gradcheck(lambda h, plus: info_nce(h, plus, temperature=0.3, offset=1, **options), inputs)


def test_half_precision_is_converted_to_float32():
    h, plus = rows(8, 16, 0).bfloat16(), rows(8, 16, 1).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = info_nce(h, plus, temperature=0.05)
    assert found.dtype == torch.float32
    expected = oracle(h.double().tolist(), plus.double().tolist(), 0.05)
    assert found.item() == pytest.approx(expected, rel=1e-5)
