"""How strongly each term of InfoCSE pulls at the encoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from st_contrastive.encoder.passes import pool_as_model
from st_contrastive.losses._step import read_columns, step

if TYPE_CHECKING:
    from st_contrastive.losses.infocse import InfoCSELoss


def gradient_norms(loss: InfoCSELoss, features: dict[str, Any]) -> dict[str, float]:
    """See :meth:`~st_contrastive.InfoCSELoss.gradient_norms`."""
    if loss.auxiliary is None or loss.contrastive_weight == 0:
        raise ValueError(
            f"gradient_norms compares two terms: it needs mlm_weight ({loss.mlm_weight:g}) and contrastive_weight "
            f"({loss.contrastive_weight:g}) above 0."
        )
    moved = {key: value.to(loss.device) if isinstance(value, Tensor) else value for key, value in features.items()}
    rows = read_columns(loss, [moved])[0]
    with _training_for_a_moment(loss), step(loss, rows):
        masked, edited = loss.corrupted(rows)
        # A pass for each view, so that its tokens are in the graph of all terms.
        encoded = [loss.forward_views(rows)[0] for _ in range(2)]
        states = [view.tokens for view in encoded]
        if not all(state.requires_grad for state in states):
            raise ValueError("No weight of the encoder is trained: there is no gradient to measure.")
        views = loss.project(*(view.sentences for view in encoded))
        vectors = views if loss.vector == "head" else tuple(pool_as_model(loss.model, view) for view in encoded)
        assert masked is not None
        terms = {"contrastive": loss.info_nce(*views), "mlm": loss.masked_lm(rows, masked, vectors, 1.0)}
        if edited is not None:
            terms["rtd"] = loss.detection(rows, edited, vectors, 1.0)
        return {name: _norm(term, states) for name, term in terms.items()}


def _norm(term: Tensor, states: list[Tensor]) -> float:
    """Norm of the term's gradient at these states together."""
    gradients = torch.autograd.grad(term, states, retain_graph=True, materialize_grads=True)
    return float(torch.stack([gradient.norm() for gradient in gradients]).norm())


@contextmanager
def _training_for_a_moment(loss: InfoCSELoss) -> Iterator[None]:
    """While open, the encoder is in training mode; afterwards everything is as it was, since nothing was trained."""
    modes = {part: part.training for part in loss.modules()}
    buffers = {name: value.clone() for name, value in loss.named_buffers()}
    begun, singles = loss.has_begun, dict(loss.singles)
    try:
        loss.model.train()
        with torch.enable_grad():
            yield
    finally:
        for part, mode in modes.items():
            part.training = mode
        for name, value in loss.named_buffers():
            value.copy_(buffers[name])
        loss.has_begun, loss.singles = begun, singles
