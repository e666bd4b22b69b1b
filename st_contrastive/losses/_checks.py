"""Argument checks of the losses' constructors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from st_contrastive import _host


def require_weight(name: str, value: float, *, most: float | None = None) -> None:
    """Refuse anything but a number from 0 on, up to ``most`` where one is given."""
    in_range = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
    if not in_range or (most is not None and value > most) or value == float("inf"):
        span = "at least 0" if most is None else f"from 0 to {most:g}"
        raise ValueError(f"{name} must be a number {span}, got {value!r}.")


def require_flag(name: str, value: bool) -> None:
    """Refuse anything but True and False: a string would count as True, whatever it says."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}.")


def require_choice(name: str, value: str | None, choices: Sequence[str | None]) -> None:
    """Refuse what is not among the choices, and list them."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")


def check_encoder(model: SentenceTransformer) -> None:
    """Refuse weights that training destroys; warn of a first token that sees no other, and of weights that hardly move.

    Raises:
        ValueError: weights that are trained are float16, or the model has no limit to cut texts at.
    """
    if model.max_seq_length is None:
        limit = _host.most_positions(model)
        raise ValueError(
            "model.max_seq_length is None, and the tokenizer needs a number to cut texts at: set model.max_seq_length"
            + (f", at most {limit}, the positions that the encoder has." if limit else ".")
        )
    kinds = {weight.dtype for weight in model.parameters() if weight.requires_grad}
    if torch.float16 in kinds:
        raise ValueError(
            "model has float16 weights: an optimizer's squared gradients underflow in them, and its steps become "
            "arbitrary. Load it with model_kwargs={'dtype': torch.float32}, or take model.float(); to save time, give "
            "the trainer fp16=True or bf16=True."
        )
    if torch.bfloat16 in kinds:
        warnings.warn(
            "model has bfloat16 weights, in which most small updates round away. Load it with model_kwargs={'dtype': "
            "torch.float32}, and give the trainer bf16=True to save time.",
            stacklevel=5,
        )
    if _host.embeds_first_token(model) and _host.is_causal(model):
        warnings.warn(
            "model is a decoder that is read at its first token, which sees no other: sentences that begin alike get "
            "one vector. End it with Pooling(width, 'lasttoken') or 'mean'.",
            stacklevel=5,
        )


def require_positions(columns: Sequence[dict[str, Any]], limit: int | None) -> None:
    """Refuse texts that are longer than the encoder's table of positions.

    They are not cut here: the model that is trained would still fail on such a text when it encodes.

    Args:
        columns: text tensors, ``input_ids`` and ``attention_mask`` (N, L) each.
        limit: rows of the table; None where there is none.

    Raises:
        ValueError: a text is longer.
    """
    for place, column in enumerate(columns, start=1):
        if limit is None or column["input_ids"].shape[1] <= limit:
            continue
        longest = int((column["attention_mask"] != 0).sum(dim=1).max())  # the rest may be padding
        if longest > limit:
            raise ValueError(
                f"Text column {place} has a text of {longest} tokens, and the encoder has positions for {limit}. Set "
                f"model.max_seq_length = {limit}, or less, so that longer texts are cut when they are tokenised."
            )
