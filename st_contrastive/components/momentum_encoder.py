"""MoCo's momentum encoder: a copy of an encoder that follows it slowly and computes the keys of a queue."""

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

#: The last step of each optimizer among those of all. Tensors have versions, but a fused AdamW, the Trainer's default,
#: does not raise them.
_last_steps: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()


@functools.cache
def _count_optimizer_steps() -> None:
    """From the first momentum encoder on, note each step of any optimizer."""
    numbers = itertools.count(1)

    def note(optimizer: Optimizer, *_: object) -> None:
        _last_steps[optimizer] = next(numbers)

    register_optimizer_step_post_hook(note)


class MomentumEncoder(nn.Module):
    r"""Copies of modules, whose weights are a moving average of the modules' (eq. 2 of MoCo, He et al., 2020).

    .. math:: \theta_k \leftarrow m\,\theta_k + (1 - m)\,\theta_q

    They are never trained, and always in evaluation mode, without dropout, as in ESimCSE. They move once for each
    change of the followed weights, by an optimizer's step or in place (not through ``.data``), so that batches whose
    gradients are accumulated share one step. Half precision would round small steps away: the copies are in float32 at
    least, and stay so when the loss is cast.

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
        self._apply(lambda tensor: tensor)  # widens them
        self._seen: tuple[int, ...] | None = None
        self.train(False)

    @torch.no_grad()
    def update(self, model: Sequence[nn.Module], head: nn.Module | None = None) -> None:
        """Move the copies' weights towards those of the modules, and copy the modules' buffers.

        Does nothing if the modules' weights have not changed since the last call. Other weights, or weights of other
        shapes, than those that were copied are refused.
        """
        copies = self.copies if self.head is None else nn.ModuleList([*self.copies, self.head])
        modules = nn.ModuleList([*model, *([] if self.head is None or head is None else [head])])
        averages, weights = dict(copies.named_parameters()), dict(modules.named_parameters())
        changes = _changes(list(weights.values()))
        if changes == self._seen:
            return
        shapes = ({(name, tuple(p.shape)) for name, p in own.items()} for own in (averages, weights))
        if different := sorted(set.symmetric_difference(*shapes)):
            name, shape = different[0]
            raise ValueError(
                f"The encoder's weights are not those that were copied: {name!r} of shape {shape} is in one of the two "
                "alone. Build the loss after adapters, layers or tokens were added or removed."
            )
        self._seen = changes
        current = [weights[name].to(average.dtype) for name, average in averages.items()]
        get_ema_multi_avg_fn(self.momentum)(list(averages.values()), current, 0)  # type: ignore[no-untyped-call]
        for copy, buffer in zip(copies.buffers(), modules.buffers(), strict=True):
            copy.copy_(buffer)

    @torch.no_grad()
    def forward(self, rows: TokenBatch) -> Encoded:
        """The rows after the copies of the model, without gradient."""
        features = rows.features()
        for module in self.copies:
            features = module(features)
        return Encoded.of(features)

    def train(self, mode: bool = True) -> MomentumEncoder:
        """Keep evaluation mode, whatever ``mode`` is."""
        return super().train(False) if self.training else self

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> MomentumEncoder:
        """As in PyTorch, which moves and casts by it; but what would be in half precision is float32."""

        def widened(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            narrow = result.is_floating_point() and result.dtype.itemsize < 4
            return tensor.to(result.device, torch.float32) if narrow else result

        super()._apply(widened, *args, **kwargs)  # type: ignore[no-untyped-call]
        return self


def _changes(weights: Sequence[Tensor]) -> tuple[int, ...]:
    """The last step of an optimizer that holds one of the weights, and the weights' versions."""
    ids = {id(weight) for weight in weights}
    held = (
        step for each, step in _last_steps.items() if any(id(p) in ids for g in each.param_groups for p in g["params"])
    )
    return (max(held, default=0), *(weight._version for weight in weights))
