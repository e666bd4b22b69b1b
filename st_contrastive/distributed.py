"""Communication between the processes of a training run. A single process does not communicate."""

from __future__ import annotations

import gc
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
    """The number of this process, starting at 0."""
    return dist.get_rank() if world_size() > 1 else 0


def row_counts(rows: int, device: torch.device) -> tuple[int, ...]:
    """The number of rows of each process in one batch. The processes may differ in an epoch's last batch."""
    count = torch.full((1,), rows, device=device)
    counts = [torch.zeros_like(count) for _ in range(world_size())]
    dist.all_gather(counts, count)
    return tuple(torch.cat(counts).tolist())


def gather_rows(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """The rows of all ranks with their gradient.

    The backward pass sums the gradients of all ranks' losses. If the loss of each rank is a mean over its own rows,
    DDP's mean over the ranks is the gradient that one process with all rows would compute.

    Args:
        tensor: (n, ...), this rank's rows.
        rows: n of each rank.
    """
    most = max(rows)
    if tensor.shape[0] < most:
        tensor = F.pad(tensor, (0, 0) * (tensor.ndim - 1) + (0, most - tensor.shape[0]))
    parts = all_gather(tensor.contiguous())  # type: ignore[no-untyped-call]
    return torch.cat([part[:count] for part, count in zip(parts, rows, strict=True)])


def mean_count(count: Tensor) -> Tensor:
    """The mean of all ranks' counts, the denominator of a mean over all ranks.

    If each rank divides its sum by this number, the mean of the ranks' results is the mean over all counted items.
    """
    total = count.detach().to(torch.float32).clone()
    dist.all_reduce(total)
    return total.clamp(min=1) / world_size()


@torch.no_grad()
def average(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its mean over the ranks."""
    for tensor in tensors if world_size() > 1 else ():
        dist.all_reduce(tensor)
        tensor /= world_size()


@torch.no_grad()
def broadcast(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by rank 0's tensor of the same shape."""
    for tensor in tensors if world_size() > 1 else ():
        dist.broadcast(tensor.data, src=0)


def shut_down() -> None:
    """End the process group and its threads, if there is one.

    A Trainer's reference cycles keep the threads alive, and a process that exits with running threads sometimes aborts.
    """
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()


class _Averaged(torch.autograd.Function):
    """The identity on parameters. Its backward pass averages all their gradients over the ranks at once."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(True)
        return (parameters[0].new_zeros(()), *(parameter.view_as(parameter) for parameter in parameters))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        # A gradient may be an expanded zero or used elsewhere, so it is copied.
        averaged = tuple(gradient.clone(memory_format=torch.contiguous_format) for gradient in gradients[1:])
        average(averaged)
        return averaged


def averaging(parameters: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """A zero, and tensors with the parameters' values that average their gradients over the ranks.

    The backward pass averages all gradients at once, so the order is the same on all ranks. Every rank must take part.
    Add the zero to the loss for batches that use none of the parameters.
    """
    zero, *replacements = _Averaged.apply(*parameters.values())  # type: ignore[no-untyped-call]
    return zero, dict(zip(parameters, replacements, strict=True))
