"""Load encoders and documents for the commands."""

from __future__ import annotations

from typing import Literal

from sentence_transformers import SentenceTransformer

from st_contrastive import recipes
from st_contrastive._checks import first_line, warn
from st_contrastive.cli._arguments import UserError
from st_contrastive.encoder.checkpoint import foreign_kind, random_weights
from st_contrastive.methods import PoolingName


def read_documents(file: str, column: str | None) -> list[str]:
    """The texts of each row of a file as one document, such as a title and a body."""
    return ["\n\n".join(row.values()) for row in recipes.read_texts(file, column)]


def load_model(
    name: str, *, pooling: PoolingName | Literal["keep"] = "keep", max_length: int | None = None
) -> SentenceTransformer:
    """A model by folder or hub name, under its own pooling ("keep") or another, reading up to ``max_length`` tokens."""
    try:
        model = recipes.load_model(name, None if pooling == "keep" else pooling, method=None)
    except (OSError, ValueError) as error:
        raise UserError(first_line(error)) from error
    if kind := foreign_kind(model):
        warn(f"{name} is {kind}, no sentence encoder: it is scored with a pooling that it was never trained with.")
    if random := random_weights(model):
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
