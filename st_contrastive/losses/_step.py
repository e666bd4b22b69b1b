"""One step of a loss: reading its columns, all that its terms depend on beside them, and the terms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from st_contrastive import distributed
from st_contrastive._random import fixed_draws
from st_contrastive.distributed import RowCounts
from st_contrastive.encoder.model import encoder_of, ignores_padding, is_compiled, is_replayed, run_precision
from st_contrastive.encoder.passes import Grouping
from st_contrastive.encoder.rows import Rows
from st_contrastive.losses._owned import owned_parameters
from st_contrastive.losses.terms import LossTerms

if TYPE_CHECKING:
    from st_contrastive.losses.base import TextLoss

#: So many batches of one sentence in a row may be the last ones of as many data sets.
_LAST_BATCHES = 3


def read_columns(loss: TextLoss, sentence_features: Iterable[dict[str, Any]]) -> list[Rows]:
    """The rows of each text column; the columns are those that the loss takes."""
    columns = [Rows.of(features) for features in sentence_features]
    if len(columns) not in loss.columns:
        takes = " or ".join(f"{count} ({what})" for count, what in loss.columns.items())
        raise ValueError(f"{type(loss).__name__} takes {takes} text column(s), got {len(columns)}. {loss.columns_hint}")
    return columns


@contextmanager
def step(loss: TextLoss, rows: Rows) -> Iterator[None]:
    """Everything that the terms depend on beside the batch: row counts, modes, precision and random numbers."""
    encoder, cut = encoder_of(loss.model), ignores_padding(loss.model)
    # A loaded SentenceTransformer is in training mode while the encoder in it is not.
    loss.is_learning = loss.model.training and encoder.training and torch.is_grad_enabled()
    by_length = loss.group_by_length and cut and rows.mask.device.type == "cpu" and not is_compiled(loss.model)
    loss.grouping = Grouping(by_length, cut, loss.mini_batch_size)
    gathered = loss.gather_across_devices and distributed.world_size() > 1
    loss.row_counts = RowCounts(len(rows), rows.mask.device if gathered else None)
    if loss.is_learning and not loss.has_begun:
        loss.has_begun = True
        distributed.broadcast(owned_parameters(loss))
    _check_step(loss, len(rows))
    single = len(rows) == 1 and not gathered  # whose variance is meaningless
    for part in loss.owned_modules():
        fixed = single and any(isinstance(module, nn.BatchNorm1d) for module in part.modules())
        mode = loss.is_learning and not fixed
        if part.training != mode:  # the call walks through all modules
            part.train(mode)
    # An evaluation draws the same masks and pairs each time, and training draws on as without it.
    draws = nullcontext() if encoder.training else fixed_draws()
    with draws, run_precision(loss.model):
        yield


def _check_step(loss: TextLoss, rows: int) -> None:
    name = type(loss).__name__
    if torch.is_grad_enabled() and not loss.is_learning:
        loss.warn_once(
            f"{name} was called with gradients and the encoder in evaluation mode, as it is after loading and "
            "after encode(): dropout is off, and the loss's queue and statistics do not change. Call model.train() "
            "before training; in an evaluation, call the loss under torch.no_grad()."
        )
    singles = 0 if loss.has_negatives(rows) else loss.singles.get(loss.is_learning, 0) + 1
    loss.singles[loss.is_learning] = singles
    if singles > _LAST_BATCHES:
        message = f"{name} was given a batch of one sentence, which has no other to be contrasted with: its loss is 0."
        if loss.is_learning:
            raise ValueError(
                f"{message} Give per_device_train_batch_size=2 or more; if that is so, the batch sampler makes "
                "batches of one, as no_duplicates does where most texts are equal: remove repeated texts."
            )
        loss.warn_once(f"{message} Give per_device_eval_batch_size=2 or more.")
    cut = is_replayed(loss.model) and (loss.owned_modules() or loss.mini_batch_size is not None)
    if cut or is_replayed(loss.model, layers=True):
        raise ValueError(
            f"A loss around {name} cuts the embeddings of one pass, or reads its layers, and {name} has a head, a "
            "queue or a network of one width, or mini-batches, or hands no layers on. Take MatryoshkaLoss around "
            "SimCSELoss(model, head=None)."
        )


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
