from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from st_contrastive.objectives import IGNORED, masked_lm, masked_lm_in_chunks


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
    # The masked positions only, or all positions with labels that mark them, give the same.
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


@pytest.mark.parametrize("most_logits", [1, 16, 40, 63])
def test_chunks_give_the_whole_in_value_and_gradient_and_hold_less(most_logits):
    head = torch.nn.Linear(6, 8).double()
    hidden = torch.randn(9, 6, dtype=torch.float64)
    labels = torch.tensor([0, 7, IGNORED, 3, 3, 1, IGNORED, IGNORED, 2])
    found, sizes = [], []

    def project(part):
        sizes.append(len(part) * 8)
        return head(part)

    for limit in (72, most_logits):
        sizes.clear()
        head.zero_grad()
        given = hidden.clone().requires_grad_()
        loss = masked_lm_in_chunks(given, labels, project, vocabulary=8, most_logits=limit)
        loss.backward()
        found.append((loss.detach(), given.grad, head.weight.grad.clone(), head.bias.grad.clone()))
        assert max(sizes) == (72 if limit == 72 else 8 * max(1, most_logits // 8))
    assert found[0][0] == pytest.approx(masked_lm(head(hidden), labels).item(), rel=1e-12)
    assert found[0][1].abs().sum() > 0
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(whole, parts)


def test_chunks_of_nothing_and_of_half_precision():
    head = torch.nn.Linear(6, 8)
    hidden = torch.randn(0, 6, requires_grad=True)
    nothing = masked_lm_in_chunks(hidden, torch.zeros(0, dtype=torch.long), head, vocabulary=8, most_logits=8)
    assert nothing.item() == 0
    nothing.backward()
    half = torch.randn(5, 6).bfloat16()
    loss = masked_lm_in_chunks(half, torch.arange(5), head.bfloat16(), vocabulary=8, most_logits=16)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(masked_lm(head(half), torch.arange(5)).item(), rel=1e-3)
