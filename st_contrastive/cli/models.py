"""Load the encoders that a command names."""

from __future__ import annotations

from typing import Literal

from sentence_transformers import SentenceTransformer

from st_contrastive import recipes
from st_contrastive._checks import warn
from st_contrastive.cli._user_errors import UserError, user_error
from st_contrastive.encoder.checkpoint import foreign_kind, random_weights
from st_contrastive.poolings import PoolingName


def load_model(
    name: str, *, pooling: PoolingName | Literal["keep"] = "keep", max_length: int | None = None
) -> SentenceTransformer:
    """The model from a folder or the hub, with a warning if its scores would be misleading.

    Args:
        name: folder or hub name.
        pooling: "keep" for the model's own pooling.
        max_length: truncate texts to this many tokens; None for the model's own limit.
    """
    with user_error(OSError, ValueError):
        model = recipes.load_model(name, None if pooling == "keep" else pooling, method=None)
    if kind := foreign_kind(model):
        warn(f"{name} is {kind}, not a sentence encoder: it was not trained with the pooling that is used here.")
    if random := random_weights(model):
        warn(
            f"{name} lacks {len(random)} of its encoder's weights, such as {random[0]}, and random ones replace them: "
            "the checkpoint is incomplete, or was saved by another model's class."
        )
    if max_length is not None:
        longest = model.max_seq_length
        if longest is not None and max_length > longest:
            raise UserError(f"--max_length {max_length}: the limit of {name} is {longest} tokens.")
        model.max_seq_length = max_length
    return model


def default_batch_size(model: SentenceTransformer) -> int:
    """Texts per batch when encoding: 64, or 16 on a CPU, where smaller batches are as fast and take less memory."""
    return 16 if model.device.type == "cpu" else 64
