"""The terms of a loss: as one value, and with the gradients of what the loss owns averaged over the processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from st_contrastive import distributed
from st_contrastive.encoder.rows import Rows

if TYPE_CHECKING:
    from st_contrastive.losses.base import TextLoss


class LossTerms(dict[str, Tensor]):
    """Weighted terms of a loss, each 0-d; their sum is the loss.

    The Trainer, and so ``fit``, takes a dict: it adds the terms up and logs each under its name. For loops that expect
    a tensor (``old_fit``, ``accelerator.backward``, your own), ``backward``, ``detach``, ``float()``, ``+``, ``*`` and
    ``/`` are those of the sum. A ``GradScaler`` needs the tensor itself: give the loss ``log_terms=False``.

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


def averaged_terms(loss: TextLoss, columns: list[Rows], labels: Tensor | None) -> LossTerms:
    """The loss's terms. In training, the gradients of its own parameters are averaged over the processes."""
    parameters: dict[str, Tensor] = {}
    if loss.is_learning and distributed.world_size() > 1:
        parameters = {
            f"loss.{name}": parameter
            for name, parameter in loss.named_parameters()
            if parameter.requires_grad and not name.startswith("model.")
        }
    if not parameters:
        return LossTerms(loss.compute_terms(columns, labels))
    zero, stand_ins = distributed.averaging(parameters)
    terms = LossTerms(functional_call(_Terms(loss), stand_ins, (columns, labels)))
    first = next(iter(terms))
    terms[first] = terms[first] + zero.to(terms[first])
    return terms


class _Terms(nn.Module):
    """A loss's terms as a module's forward pass, for ``functional_call``."""

    def __init__(self, loss: TextLoss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, columns: list[Rows], labels: Tensor | None) -> dict[str, Tensor]:
        return self.loss.compute_terms(columns, labels)
