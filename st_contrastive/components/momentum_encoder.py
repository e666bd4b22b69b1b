"""The momentum encoder of MoCo: a slowly moving copy of the encoder, which computes the keys of a queue."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.swa_utils import get_ema_multi_avg_fn

from st_contrastive.encoder.copies import copy_module
from st_contrastive.encoder.passes import Encoded
from st_contrastive.encoder.token_batch import TokenBatch

#: The number of each optimizer's last step. Steps are numbered across all optimizers. They are counted because a fused
#: AdamW, the Trainer's default, does not raise the version counters of the tensors that it updates.
_last_steps: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()


@functools.cache
def _count_optimizer_steps() -> None:
    """Record each step of any optimizer. The hook is only installed once."""
    numbers = itertools.count(1)

    def note(optimizer: Optimizer, *_: object) -> None:
        _last_steps[optimizer] = next(numbers)

    register_optimizer_step_post_hook(note)


class MomentumEncoder(nn.Module):
    r"""Copies of modules whose weights are moving averages (eq. 2 of MoCo, He et al., 2020).

    .. math:: \theta_k \leftarrow m\,\theta_k + (1 - m)\,\theta_q

    The copies are not trained. As in ESimCSE they are always in evaluation mode, without dropout. They only move if the
    trained weights have changed since the last move, so batches with accumulated gradients share one move. Steps of
    optimizers and in-place operations are detected, changes through ``.data`` are not. Small moves would be lost to
    rounding in half precision, so the copies stay in float32 or higher even if the loss is cast.

    Args:
        model: the modules of the trained model.
        momentum: m.
        head: a head to copy too, or None.
    """

    def __init__(self, model: Sequence[nn.Module], momentum: float, head: nn.Module | None = None) -> None:
        super().__init__()
        _count_optimizer_steps()
        self.momentum = momentum
        self.copies = nn.ModuleList(copy_module(module) for module in model).requires_grad_(False)
        self.head = None if head is None else copy_module(head).requires_grad_(False)
        self._apply(lambda tensor: tensor)  # converts half precision to float32
        self._seen: tuple[int, ...] | None = None
        self.train(False)

    @torch.no_grad()
    def update(self, model: Sequence[nn.Module], head: nn.Module | None = None) -> None:
        """Move the copies' weights towards the modules' weights, and copy the modules' buffers.

        Does nothing if the modules' weights have not changed since the last call. Weights with other names or shapes
        than the copies' are refused.
        """
        copies = self.copies if self.head is None else nn.ModuleList([*self.copies, self.head])
        modules = nn.ModuleList([*model, *([] if self.head is None or head is None else [head])])
        averages, weights = dict(copies.named_parameters()), dict(modules.named_parameters())
        changes = _changes(list(weights.values()))
        if changes == self._seen:
            return
        shapes = ({(name, tuple(p.shape)) for name, p in part.items()} for part in (averages, weights))
        if different := sorted(set.symmetric_difference(*shapes)):
            name, shape = different[0]
            raise ValueError(
                f"The encoder's weights have changed since they were copied: only one of the two has {name!r} of shape "
                f"{shape}. Build the loss after you add or remove adapters, layers or tokens."
            )
        self._seen = changes
        current = [weights[name].to(average.dtype) for name, average in averages.items()]
        get_ema_multi_avg_fn(self.momentum)(list(averages.values()), current, 0)  # type: ignore[no-untyped-call]
        for copy, buffer in zip(copies.buffers(), modules.buffers(), strict=True):
            copy.copy_(buffer)

    @torch.no_grad()
    def forward(self, rows: TokenBatch) -> Encoded:
        """Encode rows with the copies, without gradient."""
        features = rows.features()
        for module in self.copies:
            features = module(features)
        return Encoded.of(features)

    def train(self, mode: bool = True) -> MomentumEncoder:
        """Stay in evaluation mode and ignore ``mode``."""
        return super().train(False) if self.training else self

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> MomentumEncoder:
        """Move and cast as in PyTorch, but to float32 in place of half precision."""

        def move_and_widen(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            is_half = result.is_floating_point() and result.dtype.itemsize < 4
            return tensor.to(result.device, torch.float32) if is_half else result

        super()._apply(move_and_widen, *args, **kwargs)  # type: ignore[no-untyped-call]
        return self


def _changes(weights: Sequence[Tensor]) -> tuple[int, ...]:
    """The number of the last step by an optimizer of these weights, and the weights' versions."""
    ids = {id(weight) for weight in weights}
    steps = (
        step
        for optimizer, step in _last_steps.items()
        if any(id(weight) in ids for group in optimizer.param_groups for weight in group["params"])
    )
    return (max(steps, default=0), *(weight._version for weight in weights))
