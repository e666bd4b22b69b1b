"""Flat batches, which sentence-transformers makes for flash attention: all texts in one row, without padding.

The losses compose, mask and fuse padded rows. They put a flat batch into rows first, which costs little because it
holds only ids, and flatten again what goes through the encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Keys that mark where the texts of a flat batch begin and end, and keys with one entry a token.
_BOUNDS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx", "position_ids")
_PER_TOKEN = ("input_ids", "token_type_ids")


@dataclass(frozen=True)
class FlatForm:
    """The form of a flat batch: the position of a text's first token, and the keys that marked its bounds."""

    first_position: int
    bounds: tuple[str, ...]


def in_rows(features: dict[str, Any], pad_id: int, first_position: int) -> tuple[dict[str, Any], FlatForm]:
    """A flat batch as padded rows (N, L) with their mask, and the form that it had.

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
    return rows, FlatForm(first_position, tuple(key for key in _BOUNDS if key in features))


def flattened(rows: dict[str, Any], form: FlatForm) -> tuple[dict[str, Any], Tensor]:
    """Right-padded rows as a flat batch, and the places of its tokens in the flattened (N x L).

    This waits for the device: the flat tensors' shapes are the number of tokens and the longest row.
    """
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
    flat = {key: value for key, value in rows.items() if key != "attention_mask"}
    for key in (*_PER_TOKEN, "inputs_embeds"):
        if key in flat:
            flat[key] = flat[key].flatten(0, 1)[places][None]
    return {**flat, **{key: made[key] for key in form.bounds}}, places


def rows_of(flat: Tensor, places: Tensor, mask: Tensor) -> Tensor:
    """Token vectors (1, T, d) of a flat batch in rows (N, L, d), zeros where ``mask`` (N, L) is 0."""
    whole = flat.new_zeros(mask.numel(), flat.shape[-1])
    return whole.index_copy(0, places, flat[0]).view(*mask.shape, -1)
