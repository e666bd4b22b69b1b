"""What a loss returns: its terms by name, which behave like their sum."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class LossTerms(dict[str, Tensor]):
    """Weighted terms of a loss, each 0-d; their sum is the loss.

    The Trainer, and so ``fit``, takes a dict: it adds the terms up and logs each under its name. For what expects a
    tensor (``old_fit``, ``accelerator.backward``, ``MatryoshkaLoss``, a loop of your own), ``backward``, ``detach``,
    ``float()``, ``+``, ``*`` and ``/`` are those of the sum. A ``GradScaler`` needs the tensor itself: ``terms.total``.

    Example:
        >>> import torch
        >>> terms = LossTerms(contrastive=torch.tensor(2.0), mlm=torch.tensor(0.5))
        >>> terms.total.item()
        2.5
    """

    @property
    def total(self) -> Tensor:
        """The loss: the sum of the terms, 0-d."""
        return torch.stack(list(self.values())).sum()

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """``total.backward``."""
        self.total.backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def item(self) -> float:
        """The loss as a number."""
        return float(self.total.item())

    __float__ = item

    def detach(self) -> Tensor:
        """``total.detach()``."""
        return self.total.detach()

    def __add__(self, other: float | Tensor | LossTerms) -> Tensor:
        return self.total + (other.total if isinstance(other, LossTerms) else other)

    __radd__ = __add__

    def __mul__(self, factor: float | Tensor) -> Tensor:
        return self.total * factor

    __rmul__ = __mul__

    def __truediv__(self, divisor: float | Tensor) -> Tensor:
        return self.total / divisor
