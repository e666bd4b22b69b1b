"""The queue of past vectors that serve as negatives: the "hippocampus" of Twins, and MoCo's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from st_contrastive.objectives import forgetting_weights


class NegativeQueue(nn.Module):
    """Past vectors, newest first, whose weight may fall with their age in batches (eq. 4 of Twins).

    It starts empty. It keeps the last ``batches`` batches (Twins) or, without ``batches``, the last ``size`` vectors
    (MoCo).

    Args:
        width: d of the vectors.
        batches: k, how many batches are kept.
        size: how many vectors are kept, each with the weight 1, where ``batches`` is None.
        forgetting_rate: what p loses with each of the batches; less than 1 / k.
    """

    keys: Tensor  # (n, d)
    ages: Tensor  # (n,), in batches: 1 for the newest. With a size in place of batches, 1 for all

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
        self._rows: list[int] = []  # of each batch that is kept, newest first; of all together where size limits them
        self._weigh()

    def __len__(self) -> int:
        return len(self.keys)

    @torch.no_grad()
    def enqueue(self, vectors: Tensor) -> None:
        """Put a batch (n, d) before the others, and drop what is beyond the limits."""
        # Under float16 a pass may overflow. The trainer skips that step, and the queue must stay finite.
        newest_first = vectors.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).flip(0)
        rows = [len(vectors), *self._rows][: self.batches]
        if self.batches is None and self.size is not None:
            rows = [min(sum(rows), self.size)]
        self.keys = torch.cat([newest_first.to(self.keys), self.keys])[: sum(rows)]
        if rows != self._rows:  # after the first batches they stay the same
            self._rows = rows
            self.ages = torch.cat([self.ages.new_full((count,), age) for age, count in enumerate(rows, start=1)])
            self._weigh()

    def keys_and_weights(self) -> tuple[Tensor, Tensor]:
        """Keys (n, d) and their weights p (n,)."""
        return self.keys, self.weights

    def _weigh(self) -> None:
        rate = 0.0 if self.batches is None else self.forgetting_rate
        self.weights = forgetting_weights(self.ages.to(self.keys.dtype), rate)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> NegativeQueue:
        """As in PyTorch, which moves and casts by it; but weights that were in half precision are exact again."""
        super()._apply(fn, *args, **kwargs)  # type: ignore[no-untyped-call]
        self._weigh()
        return self

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Take the number of rows from the saved state."""
        for name in ("keys", "ages"):
            if (saved := state_dict.get(prefix + name)) is not None:
                setattr(self, name, getattr(self, name).new_zeros(len(saved), *getattr(self, name).shape[1:]))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self._rows = torch.unique(self.ages, return_counts=True)[1].tolist()
        self._weigh()
