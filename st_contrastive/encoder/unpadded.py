"""Batches without padding, as sentence-transformers makes them for flash attention: all texts in one row, end to end.

The losses compose, mask and fuse padded rows. A flat batch is put into rows for that, which costs ids alone, and what
goes through the encoder is flattened again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Key under which padded rows tell that they were flat.
FORM = "flat_form"

#: What marks the texts' bounds in a flat batch, beside what has one entry a token.
_BOUNDS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx", "position_ids")
_PER_TOKEN = ("input_ids", "token_type_ids")


@dataclass(frozen=True)
class FlatForm:
    """How a batch was flat: the position of a text's first token, and which of the bounds it had."""

    first_position: int
    bounds: tuple[str, ...]


def is_flat(features: dict[str, Any]) -> bool:
    """Whether the batch is one row, with the bounds of its texts beside."""
    return "cu_seq_lens_q" in features


def in_rows(features: dict[str, Any], pad_id: int, first_position: int) -> dict[str, Any]:
    """A flat batch as padded rows (N, L), with their mask.

    Args:
        features: ids (1, T) and bounds (N + 1,).
        pad_id: what stands behind a row's end.
        first_position: position of a text's first token.
    """
    bounds: Tensor = features["cu_seq_lens_q"].long()
    starts, lengths = bounds[:-1, None], (bounds[1:] - bounds[:-1])[:, None]
    column = torch.arange(int(features["max_length_q"]), device=bounds.device)
    mask = column < lengths
    places = torch.where(mask, starts + column, 0)
    rows = {key: value for key, value in features.items() if key not in (*_BOUNDS, *_PER_TOKEN)}
    for key, fill in (("input_ids", pad_id), ("token_type_ids", 0)):
        if key in features:
            rows[key] = torch.where(mask, features[key][0][places], fill)
    rows["attention_mask"] = mask.long()
    rows[FORM] = FlatForm(first_position, tuple(key for key in _BOUNDS if key in features))
    return rows


def flattened(rows: dict[str, Any]) -> tuple[dict[str, Any], Tensor]:
    """Right-padded rows as a flat batch, and where its tokens lay in the flattened (N x L).

    How many tokens there are, and the longest row, are waited for: the flat tensors have these shapes.
    """
    form: FlatForm = rows[FORM]
    mask = rows["attention_mask"] != 0
    lengths = mask.sum(dim=1)
    total, longest = (int(number) for number in torch.stack([lengths.sum(), lengths.max()]).tolist())
    places = mask.flatten().to(torch.uint8).argsort(descending=True, stable=True)[:total]
    bounds = torch.nn.functional.pad(lengths.cumsum(dim=0), (1, 0)).to(torch.int32)
    row, column = places // mask.shape[1], places % mask.shape[1]
    made: dict[str, Any] = {
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": longest,
        "max_length_k": longest,
        "seq_idx": row[None].to(torch.int32),
        "position_ids": column[None] + form.first_position,
    }
    flat = {key: value for key, value in rows.items() if key not in ("attention_mask", FORM)}
    for key in (*_PER_TOKEN, "inputs_embeds"):
        if key in flat:
            flat[key] = flat[key].flatten(0, 1)[places][None]
    return {**flat, **{key: made[key] for key in form.bounds}}, places


def rows_of(flat: Tensor, places: Tensor, mask: Tensor) -> Tensor:
    """Token vectors (1, T, d) of a flat batch in rows (N, L, d), zeros where ``mask`` (N, L) is 0."""
    whole = flat.new_zeros(mask.numel(), flat.shape[-1])
    return whole.index_copy(0, places, flat[0]).view(*mask.shape, -1)
