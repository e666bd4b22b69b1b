"""Averages the gradients of what a loss owns over the processes, in the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.func import functional_call

from st_contrastive import distributed
from st_contrastive.encoder import Rows

if TYPE_CHECKING:
    from st_contrastive.losses.base import TextLoss


def with_averaged_gradients(loss: TextLoss, columns: list[Rows], labels: Tensor | None) -> dict[str, Tensor]:
    """The loss's terms. The gradients of what it owns are averaged over the processes in the backward pass."""
    # At every step: names tell what the loss owns faster than a look at the encoder's state.
    own: dict[str, Tensor] = {
        f"loss.{name}": parameter
        for name, parameter in loss.named_parameters()
        if parameter.requires_grad and not name.startswith("model.")
    }
    if not own:
        return loss.compute_terms(columns, labels)
    zero, stand_ins = distributed.averaging(own)
    terms: dict[str, Tensor] = functional_call(_Terms(loss), stand_ins, (columns, labels))
    first = next(iter(terms))
    return {**terms, first: terms[first] + zero.to(terms[first])}


class _Terms(nn.Module):
    """A loss's terms as a module's forward pass, for ``functional_call``."""

    def __init__(self, loss: TextLoss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, columns: list[Rows], labels: Tensor | None) -> dict[str, Tensor]:
        return self.loss.compute_terms(columns, labels)
