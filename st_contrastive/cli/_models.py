"""Load encoders for the commands."""

from __future__ import annotations

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer

from st_contrastive import recipes
from st_contrastive._checks import first_line, warn
from st_contrastive.cli._arguments import UserError


def load_model(name: str, *, pooling: str = "keep", max_length: int | None = None) -> SentenceTransformer:
    """A model by folder or hub name, under its own pooling ("keep") or another, reading at most ``max_length`` tokens.

    Raises:
        UserError: it can't be loaded, or is not a text encoder.
    """
    try:
        model = recipes.load_model(name, None if pooling == "keep" else pooling, method=None)
    except (OSError, ValueError) as error:
        raise UserError(first_line(error)) from error
    if isinstance(model[0], Transformer):
        # transformers marks what it read of a checkpoint, and draws the rest at random. A pooler is not used.
        weights = model[0].model.named_parameters()
        random = [key for key, own in weights if not hasattr(own, "_is_hf_initialized") and "pooler" not in key]
        if random:
            warn(
                f"{name} lacks {len(random)} of its encoder's weights, such as {random[0]}, which are now random: the "
                "checkpoint is incomplete, or was saved by another model's class."
            )
    if max_length is not None:
        longest = model.max_seq_length
        if longest is not None and max_length > longest:
            raise UserError(f"--max_length {max_length}: {name} reads at most {longest} tokens.")
        model.max_seq_length = max_length
    return model
