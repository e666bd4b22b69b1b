"""The "hippocampus" of the Twins paper: past anchors as further negatives, slowly forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from st_contrastive._checks import require_count


class NegativeQueue(nn.Module):
    r"""The anchors of the last k batches, detached, with a weight that falls with their age (eq. 4 of Twins).

    .. math:: p = 1 - \text{forgetting\_rate} \cdot a, \qquad a = 1 \text{ (newest batch)} \dots k \text{ (oldest)}

    Everything is a buffer, so that checkpoints, devices and ranks carry it. Storage is one slot a batch, as large as
    the largest batch seen; a smaller batch fills a part of its slot. The queue starts empty.

    Args:
        width: d of the anchors.
        batches: k, how many batches are kept.
        forgetting_rate: p lost with each batch. The oldest weight must stay positive: less than 1 / k.

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

    keys: Tensor  # (k, slot, d)
    sizes: Tensor  # (k,), rows in use of each slot
    head: Tensor  # 0-d, the slot that the next batch takes

    def __init__(self, width: int, batches: int, forgetting_rate: float) -> None:
        super().__init__()
        require_count("width", width)
        require_count("queue_batches", batches)
        if not 0 <= forgetting_rate < 1 / batches:
            raise ValueError(
                f"forgetting_rate must be at least 0 and less than 1 / queue_batches = {1 / batches:.4g}, so that the "
                f"oldest batch keeps a positive weight; got {forgetting_rate!r}."
            )
        self.batches = batches
        self.forgetting_rate = forgetting_rate
        self.register_buffer("keys", torch.zeros(batches, 0, width))
        self.register_buffer("sizes", torch.zeros(batches, dtype=torch.long))
        self.register_buffer("head", torch.zeros((), dtype=torch.long))

    def capacity(self, rows: int) -> int:
        """How many sentences it holds when it is full of batches of so many rows."""
        return self.batches * rows

    def __len__(self) -> int:
        return int(self.sizes.sum())

    @torch.no_grad()
    def push(self, anchors: Tensor) -> None:
        """Let the anchors (n, d) of one batch take the place of the oldest batch."""
        if anchors.ndim != 2 or anchors.shape[1] != self.keys.shape[2]:
            raise ValueError(f"anchors must have shape (rows, {self.keys.shape[2]}), got {tuple(anchors.shape)}.")
        missing = anchors.shape[0] - self.keys.shape[1]
        if missing > 0:
            self.keys = torch.cat([self.keys, self.keys.new_zeros(self.batches, missing, self.keys.shape[2])], dim=1)
        slot = self.head.reshape(1)
        row = self.keys.new_zeros(1, *self.keys.shape[1:])
        row[0, : anchors.shape[0]] = anchors.to(row)
        # Indexed with tensors on the device: a Python index would wait for the GPU at every step.
        self.keys.index_copy_(0, slot, row)
        self.sizes.index_copy_(0, slot, self.sizes.new_full((1,), anchors.shape[0]))
        self.head.copy_((self.head + 1) % self.batches)

    def entries(self) -> tuple[Tensor, Tensor]:
        """All places of the queue: keys (k * slot, d), and weights (k * slot,) that are 0 where a place is empty."""
        places = self.keys.shape[1]
        ages = (self.head - 1 - torch.arange(self.batches, device=self.head.device)) % self.batches + 1
        used = torch.arange(places, device=self.sizes.device) < self.sizes[:, None]
        weights = (1 - self.forgetting_rate * ages.to(self.keys.dtype))[:, None] * used
        return self.keys.flatten(0, 1), weights.flatten()

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Take the saved slot size: how many rows a batch has is not known to a new queue."""
        saved = state_dict.get(f"{prefix}keys")
        if (
            saved is not None
            and saved.ndim == 3
            and (saved.shape[0], saved.shape[2])
            == (
                self.keys.shape[0],
                self.keys.shape[2],
            )
        ):
            self.keys = self.keys.new_zeros(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
