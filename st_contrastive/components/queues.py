"""Queues of past vectors that serve as further negatives: the "hippocampus" of Twins, and MoCo's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from st_contrastive._checks import require_count, require_number


def _finite(vectors: Tensor) -> Tensor:
    """The vectors, with zeros, which have the cosine 0 with everything, in place of those that are not finite.

    Under float16 a pass may overflow. The trainer skips that step, but in a queue the vectors would spoil later ones.
    """
    return torch.where(vectors.isfinite().all(dim=1, keepdim=True), vectors, 0)


class NegativeQueue(nn.Module):
    r"""The "hippocampus" of Twins: the last k batches of anchors, detached, whose weight falls with their age (eq. 4).

    .. math:: p = 1 - \text{forgetting\_rate} \cdot a, \qquad a = 1 \text{ (newest batch)} \dots k \text{ (oldest)}

    Each batch has one slot, as large as the largest batch so far; a smaller batch fills a part of its slot. The queue
    starts empty.

    Args:
        width: d of the anchors.
        batches: k, how many batches are kept.
        forgetting_rate: what p loses with each batch; less than 1 / k, so that the oldest weight is positive.

    Raises:
        ValueError: the forgetting rate is negative or at least 1 / k.

    Example:
        >>> import torch
        >>> queue = NegativeQueue(width=2, batches=2, forgetting_rate=0.25)
        >>> queue.push(torch.ones(3, 2)); queue.push(torch.zeros(1, 2))
        >>> keys, weights = queue.entries()
        >>> keys.shape, len(queue), sorted(weights.tolist())
        (torch.Size([6, 2]), 4, [0.0, 0.0, 0.5, 0.5, 0.5, 0.75])
    """

    keys: Tensor  # (k, slot size, d)
    sizes: Tensor  # (k,), how many rows of each slot are in use
    head: Tensor  # 0-d, the slot of the next batch

    def __init__(self, width: int, batches: int, forgetting_rate: float) -> None:
        super().__init__()
        require_count("width", width)
        require_count("queue_batches", batches)
        require_number("forgetting_rate", forgetting_rate)
        if forgetting_rate >= 1 / batches:
            raise ValueError(
                f"forgetting_rate must be at least 0 and less than 1 / queue_batches = {1 / batches:.4g}, so that the "
                f"oldest batch keeps a positive weight; got {forgetting_rate!r}. Give both, such as "
                f"forgetting_rate={0.75 / batches:.2g} (on the command line: --loss-arg forgetting_rate=...)."
            )
        self.batches = batches
        self.forgetting_rate = forgetting_rate
        self.register_buffer("keys", torch.zeros(batches, 0, width))
        self.register_buffer("sizes", torch.zeros(batches, dtype=torch.long))
        self.register_buffer("head", torch.zeros((), dtype=torch.long))

    def capacity(self, rows: int) -> int:
        """How many sentences a full queue holds, if every batch has that many rows."""
        return self.batches * rows

    def __len__(self) -> int:
        return int(self.sizes.sum())

    @torch.no_grad()
    def push(self, anchors: Tensor) -> None:
        """Replace the oldest batch with the anchors (n, d)."""
        if anchors.ndim != 2 or anchors.shape[1] != self.keys.shape[2]:
            raise ValueError(f"anchors must have shape (rows, {self.keys.shape[2]}), got {tuple(anchors.shape)}.")
        missing = anchors.shape[0] - self.keys.shape[1]
        if missing > 0:
            self.keys = nn.functional.pad(self.keys, (0, 0, 0, missing))
        slot = self.head.reshape(1)
        row = self.keys.new_zeros(1, *self.keys.shape[1:])
        row[0, : anchors.shape[0]] = _finite(anchors).to(row)
        # Indexed with tensors: a Python index would synchronise with the GPU at every step.
        self.keys.index_copy_(0, slot, row)
        self.sizes.index_copy_(0, slot, self.sizes.new_full((1,), anchors.shape[0]))
        self.head.copy_((self.head + 1) % self.batches)

    def entries(self) -> tuple[Tensor, Tensor]:
        """Keys (k * slot size, d) and weights (k * slot size,): p, or 0 for an empty place."""
        places = self.keys.shape[1]
        ages = (self.head - 1 - torch.arange(self.batches, device=self.head.device)) % self.batches + 1
        used = torch.arange(places, device=self.sizes.device) < self.sizes[:, None]
        weights = (1 - self.forgetting_rate * ages.to(self.keys.dtype))[:, None] * used
        return self.keys.flatten(0, 1), weights.flatten()

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Take the slot size from the saved state, because a new queue has seen no batch."""
        saved = state_dict.get(f"{prefix}keys")
        if saved is not None and saved.ndim == 3 and saved.shape[::2] == self.keys.shape[::2]:
            self.keys = self.keys.new_zeros(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class KeyQueue(nn.Module):
    """MoCo's queue: the most recent keys, first in, first out, all of weight 1. It starts empty.

    Args:
        width: d of the keys.
        size: how many keys are kept.

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
        """How many sentences a full queue holds, whatever the rows of a batch."""
        return len(self.keys)

    def __len__(self) -> int:
        return min(int(self.count), self.keys.shape[0])

    @torch.no_grad()
    def push(self, keys: Tensor) -> None:
        """Replace the n oldest keys with the keys (n, d). If n exceeds the size, only the last of them are kept."""
        size, width = self.keys.shape
        if keys.ndim != 2 or keys.shape[1] != width:
            raise ValueError(f"keys must have shape (rows, {width}), got {tuple(keys.shape)}.")
        skipped = max(keys.shape[0] - size, 0)
        # Computed on the device: a Python index would synchronise with the GPU at every step.
        places = (self.count + torch.arange(skipped, keys.shape[0], device=self.keys.device)) % size
        self.keys.index_copy_(0, places, _finite(keys[skipped:]).to(self.keys))
        self.count += keys.shape[0]

    def entries(self) -> tuple[Tensor, Tensor]:
        """Keys (size, d) and weights (size,): 1, or 0 for an empty place."""
        used = torch.arange(self.keys.shape[0], device=self.keys.device) < self.count
        return self.keys, used.to(self.keys.dtype)
