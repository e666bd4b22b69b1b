from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from st_contrastive.objectives import IGNORED, masked_lm


def draw(rows, vocabulary, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, vocabulary, dtype=torch.float64, generator=generator)
    return logits, torch.randint(vocabulary, (rows,), generator=generator)


@given(st.integers(1, 8), st.integers(2, 6), st.integers(0, 10**6), st.data())
def test_equals_the_loop(rows, vocabulary, seed, data):
    logits, labels = draw(rows, vocabulary, seed)
    kept = data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    labels = torch.where(torch.tensor(kept), labels, IGNORED)
    losses = [
        math.log(sum(math.exp(v) for v in row)) - row[label]
        for row, label in zip(logits.tolist(), labels.tolist(), strict=True)
        if label != IGNORED
    ]
    expected = sum(losses) / len(losses) if losses else 0.0
    found = masked_lm(logits, labels)
    assert found.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    # The positions alone, or all of them with labels that say which: the same.
    assert masked_lm(logits[labels != IGNORED], labels[labels != IGNORED]).item() == pytest.approx(
        found.item(), rel=1e-12, abs=1e-15
    )
    assert masked_lm(logits + 9, labels).item() == pytest.approx(found.item(), rel=1e-9, abs=1e-12)


def test_by_hand():
    assert masked_lm(torch.zeros(2, 8), torch.tensor([0, 7])).item() == pytest.approx(math.log(8))
    assert masked_lm(torch.tensor([[0.0, math.log(3)]]), torch.tensor([1])).item() == pytest.approx(math.log(4 / 3))


def test_nothing_masked_is_zero_and_has_a_gradient_of_zero():
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = masked_lm(logits, torch.full((2, 3), IGNORED))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.abs().sum() == 0


def test_gradcheck():
    logits, labels = draw(4, 5, 0)
    labels[1] = IGNORED
    assert gradcheck(lambda x: masked_lm(x, labels), [logits.requires_grad_()])


def test_bad_shapes():
    with pytest.raises(ValueError, match="labels"):
        masked_lm(torch.zeros(2, 8), torch.zeros(3, dtype=torch.long))
