from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from st_contrastive.objectives import interaction


def draw(rows, width, seed, scale=3.0):
    return scale * torch.randn(rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def oracle(positive, negative, valid):
    counted = [i for i, flag in enumerate(valid) if flag]
    total = 0.0
    for i in counted:
        for y, z in zip(positive[i], negative[i], strict=True):
            total -= math.log(math.exp(y) / (math.exp(y) + math.exp(z))) / len(positive[i])
    return total / len(counted) if counted else 0.0


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 10**6), st.data())
def test_equals_the_loop_and_is_symmetric_in_the_rows(rows, width, seed, data):
    y, z = draw(rows, width, seed), draw(rows, width, seed + 1)
    valid = data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    found = interaction(y, z, valid=torch.tensor(valid))
    assert found.item() == pytest.approx(oracle(y.tolist(), z.tolist(), valid), rel=1e-9, abs=1e-12)
    assert found.item() >= 0
    order = torch.randperm(rows)
    permuted = interaction(y[order], z[order], valid=torch.tensor(valid)[order])
    assert permuted.item() == pytest.approx(found.item(), rel=1e-9, abs=1e-12)
    # Only the difference of the scores counts.
    assert interaction(y + 5, z + 5, valid=torch.tensor(valid)).item() == pytest.approx(found.item(), rel=1e-9)


def test_by_hand():
    y, z = torch.tensor([[2.0]]), torch.tensor([[0.0]])
    assert interaction(y, z).item() == pytest.approx(math.log(1 + math.exp(-2)))
    assert interaction(z, z).item() == pytest.approx(math.log(2))
    assert interaction(y - 1000, z).item() == pytest.approx(998)  # no overflow


def test_gradients():
    assert gradcheck(interaction, [draw(3, 2, 0).requires_grad_(), draw(3, 2, 1).requires_grad_()])
    y = draw(3, 2, 0).requires_grad_()
    interaction(y, draw(3, 2, 1), valid=torch.tensor([True, False, True])).backward()
    assert y.grad[1].abs().sum() == 0
    assert (y.grad[[0, 2]] != 0).all()
