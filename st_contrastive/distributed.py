"""Communication between the processes of a training run. With one process nothing is communicated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather


def world_size() -> int:
    """The number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


class RowCounts:
    """The number of rows that each process has of one batch, which may differ in the last batch.

    Args:
        rows: this process's; also the attribute ``here``.
        device: the device to exchange the counts on, if the rows of all processes are one batch; None if not.
    """

    def __init__(self, rows: int, device: torch.device | None = None) -> None:
        self.here, self.each = rows, [rows]
        if device is not None and world_size() > 1:
            count = torch.full((1,), rows, device=device)
            counts = [torch.zeros_like(count) for _ in range(world_size())]
            dist.all_gather(counts, count)
            self.each = torch.cat(counts).tolist()

    @property
    def share(self) -> float:
        """This process's rows divided by the mean of all processes' rows: 1 except in a smaller last batch.

        A mean over this process's rows, times this, averages over the processes to the mean over all rows.
        """
        return self.here * len(self.each) / sum(self.each)


def gather(tensor: Tensor, rows: Sequence[int]) -> tuple[Tensor, int]:
    """The rows of all ranks, with their gradient, and the index of this rank's first row among them.

    The backward pass sums the gradients of all ranks' losses. If each rank's loss is over its own rows, the mean over
    the ranks, which DDP takes, is the gradient of one process with all rows.

    Args:
        tensor: (n, ...), of this rank.
        rows: n of each rank.
    """
    if len(rows) == 1:
        return tensor, 0
    most = max(rows)
    if tensor.shape[0] < most:
        tensor = F.pad(tensor, (0, 0) * (tensor.ndim - 1) + (0, most - tensor.shape[0]))
    parts = all_gather(tensor.contiguous())  # type: ignore[no-untyped-call]
    whole = torch.cat([part[:count] for part, count in zip(parts, rows, strict=True)])
    return whole, sum(rows[: rank()])


def share(count: Tensor) -> Tensor:
    """``count`` divided by the mean of all ranks' counts: :attr:`RowCounts.share` for counts on the device."""
    total = count.detach().to(torch.float32).clone()
    dist.all_reduce(total)
    return count * world_size() / total.clamp(min=1)


@torch.no_grad()
def average(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its mean over the ranks."""
    for tensor in tensors if world_size() > 1 else ():
        dist.all_reduce(tensor)
        tensor /= world_size()


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by rank 0's, of the same shape."""
    for tensor in tensors if world_size() > 1 else ():
        dist.broadcast(tensor.data, src=0)


class _Averaged(torch.autograd.Function):
    """Returns parameters unchanged, and averages their gradients over the ranks when all are there."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(True)
        return (parameters[0].new_zeros(()), *(parameter.view_as(parameter) for parameter in parameters))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        # Copies, since a gradient may be an expanded zero, or in use elsewhere.
        averaged = tuple(gradient.clone(memory_format=torch.contiguous_format) for gradient in gradients[1:])
        average(averaged)
        return averaged


def averaging(parameters: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Stand-ins for parameters, which pass on their gradients averaged over the ranks.

    The backward pass averages all of them at once, so that the order is the same on all ranks. Every rank must do so:
    add the first value, a zero, to the loss, for batches that use none of the parameters.
    """
    zero, *stand_ins = _Averaged.apply(*parameters.values())  # type: ignore[no-untyped-call]
    return zero, dict(zip(parameters, stand_ins, strict=True))
