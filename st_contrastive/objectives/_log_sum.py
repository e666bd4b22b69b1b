"""The negatives' share of InfoNCE's denominator, without holding as much as they are for the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from st_contrastive.objectives._numerics import without_autocast


class LogSumOfNegatives(torch.autograd.Function):
    """log of sum_m exp(a_n . k_m s_m + b_m), (N,), for anchors a (N, d), keys k (K, d), scales s and biases b (K,).

    Gradient reaches the anchors alone: it is the mean of the scaled keys under the softmax, (N, d), which is known as
    soon as the sum is. So neither the keys nor the scores (N, K) are held, and the keys may be written over before the
    backward pass, as a queue's are.
    """

    @staticmethod
    def forward(ctx: Any, anchors: Tensor, keys: Tensor, scales: Tensor, biases: Tensor) -> Tensor:
        """As the class says."""
        with without_autocast(anchors):
            scores = torch.addcmul(biases, anchors @ keys.T, scales)
            # Finite where every bias is -inf, so that the sum is 0 and its logarithm -inf.
            most = scores.amax(dim=1).clamp(min=torch.finfo(scores.dtype).min)
            shares = scores.sub_(most[:, None]).exp_()
            total = shares.sum(dim=1)
            if ctx.needs_input_grad[0]:
                mean = shares.mul_(scales) @ keys / total.clamp(min=torch.finfo(scores.dtype).tiny)[:, None]
                ctx.save_for_backward(mean)
        return most + total.log()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Of the anchors."""
        (mean,) = ctx.saved_tensors
        return gradients[0][:, None] * mean, None, None, None
