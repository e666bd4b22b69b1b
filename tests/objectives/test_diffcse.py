from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck

from st_contrastive.objectives import replaced_tokens


def slow(logits, replaced, attended):
    losses = []
    for row in range(logits.shape[0]):
        for place in range(logits.shape[1]):
            if attended[row, place]:
                kept, edited = logits[row, place].tolist()
                wanted = edited if replaced[row, place] else kept
                losses.append(math.log(math.exp(kept) + math.exp(edited)) - wanted)
    return sum(losses) / len(losses)


def test_a_loop_gives_the_same():
    logits = torch.randn(3, 5, 2, dtype=torch.float64)
    replaced, attended = torch.rand(3, 5) < 0.4, torch.rand(3, 5) < 0.8
    found = replaced_tokens(logits, replaced, attended)
    assert found.item() == pytest.approx(slow(logits, replaced, attended), rel=1e-12)
    assert gradcheck(lambda x: replaced_tokens(x, replaced, attended), [logits.requires_grad_()])


def test_by_hand():
    even = torch.zeros(1, 2, 2)
    assert replaced_tokens(even, torch.tensor([[True, False]]), torch.ones(1, 2)).item() == pytest.approx(math.log(2))
    sure = replaced_tokens(
        torch.tensor([[[0.0, math.log(3)], [50.0, 0.0]]]), torch.tensor([[True, True]]), torch.tensor([[1, 0]])
    )
    assert sure.item() == pytest.approx(math.log(4 / 3))


def test_nothing_attended_and_half_precision():
    logits = torch.randn(2, 3, 2).bfloat16().requires_grad_()
    loss = replaced_tokens(logits, torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2, 3))
    assert loss.dtype == torch.float32
    assert loss.item() == 0
    loss.backward()
    assert logits.grad.abs().sum() == 0
