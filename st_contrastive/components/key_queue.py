"""MoCo's queue: the newest keys, all of equal weight."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from st_contrastive._checks import require_count


class KeyQueue(nn.Module):
    """The last keys, first in, first out, whatever batches they came in.

    Everything is a buffer, so that checkpoints, devices and ranks carry it. The queue starts empty.

    Args:
        width: d of the keys.
        size: how many are kept.

    Example:
        >>> import torch
        >>> queue = KeyQueue(width=2, size=3)
        >>> queue.push(torch.zeros(2, 2)); queue.push(torch.ones(2, 2))
        >>> keys, weights = queue.entries()
        >>> sorted(keys[:, 0].tolist()), weights.tolist(), len(queue)
        ([0.0, 1.0, 1.0], [1.0, 1.0, 1.0], 3)
    """

    keys: Tensor  # (size, d)
    count: Tensor  # 0-d, how many were ever pushed

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        require_count("width", width)
        require_count("queue_size", size)
        self.register_buffer("keys", torch.zeros(size, width))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def capacity(self, rows: int) -> int:
        """How many sentences it holds when it is full, whatever the rows of a batch."""
        return len(self.keys)

    def __len__(self) -> int:
        return min(int(self.count), self.keys.shape[0])

    @torch.no_grad()
    def push(self, keys: Tensor) -> None:
        """Let the keys (n, d) take the places of the n oldest; of more than the queue holds, the last count."""
        size, width = self.keys.shape
        if keys.ndim != 2 or keys.shape[1] != width:
            raise ValueError(f"keys must have shape (rows, {width}), got {tuple(keys.shape)}.")
        skipped = max(keys.shape[0] - size, 0)
        # Computed on the device: a Python index would wait for the GPU at every step.
        places = (self.count + torch.arange(skipped, keys.shape[0], device=self.keys.device)) % size
        self.keys.index_copy_(0, places, keys[skipped:].to(self.keys))
        self.count += keys.shape[0]

    def entries(self) -> tuple[Tensor, Tensor]:
        """All places of the queue: keys (size, d), and weights (size,): 1, or 0 where a place is empty."""
        used = torch.arange(self.keys.shape[0], device=self.keys.device) < self.count
        return self.keys, used.to(self.keys.dtype)
