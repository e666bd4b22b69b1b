"""Encoder and loss are clipped in one norm, before the optimizer's step."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import TrainerCallback

from st_contrastive.training import ContrastiveTrainer


class Gradients(TrainerCallback):
    """Those that each step is made with."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        groups = optimizer.param_groups
        self.seen.append([p.grad.clone() for g in groups for p in g["params"] if p.grad is not None])


def norm(gradients):
    return math.sqrt(sum((gradient.double() ** 2).sum().item() for gradient in gradients))


def steps(made, arguments, **options):
    loss, data = made("conisi")
    seen = Gradients()
    options = arguments(**{"max_steps": 2, "save_strategy": "no", **options})
    trainer = ContrastiveTrainer(loss.model, options, data, loss=loss, callbacks=[seen])
    trainer.train()
    logged = [log["grad_norm"] for log in trainer.state.log_history if "grad_norm" in log]
    return seen.seen, logged


@pytest.mark.parametrize("accumulated", [1, 2])
def test_by_hand(made, arguments, accumulated):
    plain, logged = steps(made, arguments, max_grad_norm=0, gradient_accumulation_steps=accumulated)
    assert [norm(gradients) for gradients in plain] == pytest.approx(logged)
    whole = norm(plain[0])
    clipped, again = steps(made, arguments, max_grad_norm=whole / 4, gradient_accumulation_steps=accumulated)
    assert again[0] == logged[0]  # the norm before clipping, of both
    assert len(clipped[0]) > 70
    for before, after in zip(plain[0], clipped[0], strict=True):
        torch.testing.assert_close(after, before / 4, rtol=1e-4, atol=1e-9)
    unclipped, _ = steps(made, arguments, max_grad_norm=whole * 2, gradient_accumulation_steps=accumulated)
    assert all(torch.equal(after, before) for before, after in zip(plain[0], unclipped[0], strict=True))
