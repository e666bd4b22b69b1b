from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from st_contrastive.objectives import masked_lm


def draw(rows, vocabulary, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, vocabulary, dtype=torch.float64, generator=generator)
    return logits, torch.randint(vocabulary, (rows,), generator=generator)


@given(st.integers(0, 8), st.integers(2, 6), st.integers(0, 10**6))
def test_equals_the_loop(rows, vocabulary, seed):
    logits, targets = draw(rows, vocabulary, seed)
    losses = [
        math.log(sum(math.exp(v) for v in row)) - row[target]
        for row, target in zip(logits.tolist(), targets.tolist(), strict=True)
    ]
    expected = sum(losses) / len(losses) if losses else 0.0
    value = masked_lm(logits, targets).item()
    assert value == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert masked_lm(logits, targets, reduction="sum").item() == pytest.approx(sum(losses), rel=1e-9, abs=1e-12)
    assert masked_lm(logits + 9, targets).item() == pytest.approx(value, rel=1e-9, abs=1e-12)


def test_by_hand():
    assert masked_lm(torch.zeros(2, 8), torch.tensor([0, 7])).item() == pytest.approx(math.log(8))
    assert masked_lm(torch.tensor([[0.0, math.log(3)]]), torch.tensor([1])).item() == pytest.approx(math.log(4 / 3))


def test_gradcheck_and_half_precision():
    logits, targets = draw(4, 5, 0)
    assert gradcheck(lambda x: masked_lm(x, targets), [logits.requires_grad_()])
    masked_lm(logits[:0], targets[:0]).backward()  # nothing is masked
    half = masked_lm(logits.bfloat16(), targets)
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(masked_lm(logits.bfloat16().double(), targets).item(), rel=1e-5)
