"""The queue of past vectors that serve as negatives: the "hippocampus" of Twins, and the queue of MoCo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from st_contrastive.objectives import forgetting_weights


class NegativeQueue(nn.Module):
    """Past vectors, newest first, whose weights may decrease with their age in batches (eq. 4 of Twins).

    The queue starts empty. It keeps the last ``batches`` batches (Twins) or, if ``batches`` is None, the last ``size``
    vectors (MoCo).

    Args:
        width: d, the width of the vectors.
        batches: k, the number of batches in the queue.
        size: the number of vectors in a queue without ``batches``. Each has the weight 1.
        forgetting_rate: decrease of the weight p per batch, less than 1 / k.
    """

    keys: Tensor  # (n, d)
    ages: Tensor  # (n,), age in batches, 1 for the newest. All ages are 1 in a queue without batches

    def __init__(
        self,
        width: int,
        *,
        batches: int | None = None,
        size: int | None = None,
        forgetting_rate: float = 0.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.batches, self.size, self.forgetting_rate = batches, size, forgetting_rate
        self.register_buffer("keys", torch.zeros(0, width, dtype=dtype))
        self.register_buffer("ages", torch.zeros(0, dtype=torch.long))
        self._rows: list[int] = []  # rows of each batch, newest first; one sum in a queue without batches
        self._weigh()

    def __len__(self) -> int:
        return len(self.keys)

    @torch.no_grad()
    def enqueue(self, vectors: Tensor) -> None:
        """Add a batch (n, d), and drop the oldest vectors beyond the limits."""
        # A pass may overflow in float16. The trainer skips that step, but the queue must stay finite.
        newest_first = vectors.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).flip(0)
        rows = [len(vectors), *self._rows][: self.batches]
        if self.batches is None and self.size is not None:
            rows = [min(sum(rows), self.size)]
        self.keys = torch.cat([newest_first.to(self.keys), self.keys])[: sum(rows)]
        if rows != self._rows:  # they no longer change when the queue is full
            self._rows = rows
            self.ages = torch.cat([self.ages.new_full((count,), age) for age, count in enumerate(rows, start=1)])
            self._weigh()

    def keys_and_weights(self) -> tuple[Tensor, Tensor]:
        """The vectors (n, d) and their weights p (n,)."""
        return self.keys, self.weights

    def _weigh(self) -> None:
        rate = 0.0 if self.batches is None else self.forgetting_rate
        self.weights = forgetting_weights(self.ages.to(self.keys.dtype), rate)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> NegativeQueue:
        """Move and cast as in PyTorch, then compute the weights again, because half precision rounded them."""
        super()._apply(fn, *args, **kwargs)  # type: ignore[no-untyped-call]
        self._weigh()
        return self

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Load a saved state, which may have another number of vectors."""
        for name in ("keys", "ages"):
            if (saved := state_dict.get(prefix + name)) is not None:
                setattr(self, name, getattr(self, name).new_zeros(len(saved), *getattr(self, name).shape[1:]))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._rows = torch.unique(self.ages, return_counts=True)[1].tolist()
        self._weigh()
