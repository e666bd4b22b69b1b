"""What a loss owns in a run of several processes: equal at the start, and its gradients averaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.func import functional_call

from st_contrastive import distributed
from st_contrastive._checks import warn
from st_contrastive.encoder import Rows
from st_contrastive.losses._calling_trainer import Run
from st_contrastive.losses._state import owned_state

if TYPE_CHECKING:
    from st_contrastive.losses.base import TextLoss


def begin_run(loss: TextLoss, run: Run, *, restored: bool) -> None:
    """At the first step of a run without a trainer of ours: make what the loss owns equal on all ranks, and warn of
    what such a run lacks.

    Args:
        loss: the loss.
        run: the run that begins.
        restored: whether the loss's state was read from a checkpoint.

    Raises:
        ValueError: the ranks differ in their losses, or in what was restored.
    """
    owned, name = owned_state(loss), type(loss).__name__
    if not owned:
        return
    remedy = (
        "Train with st_contrastive.training.ContrastiveTrainer, or give the trainer "
        "callbacks=[st_contrastive.training.LossStateCallback(loss)]"
    )
    if run.resumed_at and not restored:
        warn(
            f"Training was resumed at step {run.resumed_at} without the state that {name} owns, which starts anew. "
            f"{remedy}; with fit, call load_loss_state(loss, checkpoint) before."
        )
    if distributed.world_size() > 1:
        if run.losses > 1:
            raise ValueError(
                "Each device may train on a different dataset in the same step, and so with a different loss: the "
                f"gradients of {name} can't be averaged. {remedy}."
            )
        if not distributed.alike(restored, loss.device):
            raise ValueError("load_loss_state was called on some of the devices only: call it on all.")
        if not restored:
            distributed.broadcast(owned.values())
        warn(
            f"What {name} owns (heads, queues, networks) is neither clipped nor saved in checkpoints. Its gradients "
            f"are averaged over the {distributed.world_size()} devices. {remedy}."
        )


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
