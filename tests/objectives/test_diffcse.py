from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck

from st_contrastive.objectives import replaced_tokens


def slow(logits, replaced, attended):
    losses = []
    for place in map(tuple, attended.nonzero()):
        kept, edited = logits[place].tolist()
        losses.append(math.log(math.exp(kept) + math.exp(edited)) - (edited if replaced[place] else kept))
    return sum(losses) / len(losses)


def test_a_loop_gives_the_same():
    logits = torch.randn(3, 5, 2, dtype=torch.float64)
    replaced, attended = torch.rand(3, 5) < 0.4, torch.rand(3, 5) < 0.8
    found = replaced_tokens(logits, replaced, attended)
    assert found.item() == pytest.approx(slow(logits, replaced, attended), rel=1e-12)
    total = replaced_tokens(logits, replaced, attended, reduction="sum")
    assert total.item() == pytest.approx(slow(logits, replaced, attended) * int(attended.sum()), rel=1e-12)
    assert gradcheck(lambda x: replaced_tokens(x, replaced, attended), [logits.requires_grad_()])


def test_by_hand():
    logits, replaced = torch.tensor([[[0.0, math.log(3)], [0.0, 0.0]]]), torch.tensor([[True, True]])
    assert replaced_tokens(logits, replaced, torch.tensor([[1, 0]])).item() == pytest.approx(math.log(4 / 3))
    assert replaced_tokens(logits, replaced, torch.tensor([[0, 1]])).item() == pytest.approx(math.log(2))


def test_nothing_attended_and_half_precision():
    logits = torch.randn(2, 3, 2).bfloat16().requires_grad_()
    loss = replaced_tokens(logits, torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2, 3))
    assert loss.dtype == torch.float32
    assert loss.item() == 0
    assert replaced_tokens(logits, torch.zeros(2, 3), torch.zeros(2, 3), reduction="sum").item() == 0
    loss.backward()
    assert logits.grad.abs().sum() == 0
