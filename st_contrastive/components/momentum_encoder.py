"""MoCo's momentum encoder: a copy of an encoder that follows it slowly and computes the keys of a queue."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.swa_utils import get_ema_multi_avg_fn

from st_contrastive.encoder.copies import plain_copy


class _OptimizerSteps:
    """Counts the steps of all optimizers of this process."""

    count = 0

    def add(self, *_: object) -> None:
        self.count += 1


_steps = _OptimizerSteps()
register_optimizer_step_post_hook(_steps.add)


class MomentumEncoder(nn.Module):
    r"""Copies of modules, whose weights are a moving average of the modules' (eq. 2 of MoCo, He et al., 2020).

    .. math:: \theta_k \leftarrow m\,\theta_k + (1 - m)\,\theta_q

    They are never trained, and always in evaluation mode, without dropout, as in ESimCSE. They take one step per
    optimizer step, also under gradient accumulation. Copies of weights in half precision are in float32, because half
    precision would round small steps away.
    """

    def __init__(self, followed: Sequence[nn.Module], momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        #: In the order of the modules that they follow.
        self.copies = nn.ModuleList(plain_copy(module) for module in followed).requires_grad_(False)
        for module in self.copies:
            if any(parameter.dtype.itemsize < 4 for parameter in module.parameters()):
                module.float()
        self._seen_steps = -1
        self.train(False)

    @torch.no_grad()
    def update(self, followed: Sequence[nn.Module]) -> None:
        """Move the copies' weights towards those of the modules, and copy the modules' buffers.

        Does nothing if no optimizer has taken a step since the last call.
        """
        if self._seen_steps == _steps.count:
            return
        self._seen_steps = _steps.count
        modules = nn.ModuleList(followed)
        averages, weights = dict(self.copies.named_parameters()), dict(modules.named_parameters())
        if different := sorted(averages.keys() ^ weights.keys()):
            raise ValueError(
                f"The encoder's weights are not those that were copied: {different[0]!r} is in one of the two alone. "
                "Build the loss after adapters or layers were added or removed."
            )
        followed_weights = [weights[name].to(average.dtype) for name, average in averages.items()]
        get_ema_multi_avg_fn(self.momentum)(list(averages.values()), followed_weights, 0)  # type: ignore[no-untyped-call]
        for copy, buffer in zip(self.copies.buffers(), modules.buffers(), strict=True):
            copy.copy_(buffer)

    def train(self, mode: bool = True) -> MomentumEncoder:
        """Keep evaluation mode, whatever ``mode`` is."""
        return super().train(False) if self.training else self
