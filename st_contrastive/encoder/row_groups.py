"""Batches in chunks of rows of like length: fewer padded tokens, or less memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from st_contrastive.encoder.features import TEXT_KEYS, CorruptedTokens

#: What a pass through an encoder costs beside its tokens, as a number of tokens.
PASS_COST = 64
_CHUNK_COUNTS = (1, 2, 3, 4, 6, 8)


def chunks(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Row numbers in chunks of ``most``, shortest rows first; the last chunk may be smaller.

    Example:
        >>> chunks([3, 9, 3, 9, 1], most=2)
        [[4, 0], [2, 1], [3]]
    """
    order = np.argsort(lengths, kind="stable").tolist()
    return [order[start : start + most] for start in range(0, len(order), most)]


def cheapest_chunks(lengths: Sequence[int], pass_cost: int = PASS_COST) -> list[list[int]]:
    """The rows in one to eight equal chunks, as many as cost the least: padded tokens, and one pass for each chunk.

    Args:
        lengths: tokens of each row.
        pass_cost: what one more pass costs, in tokens.

    Example:
        >>> cheapest_chunks([3, 9, 3, 9], pass_cost=4)
        [[0, 2], [1, 3]]
        >>> cheapest_chunks([3, 9, 3, 9], pass_cost=20)
        [[0, 2, 1, 3]]
    """

    def cost(groups: list[list[int]]) -> int:
        return sum(pass_cost + len(rows) * lengths[rows[-1]] for rows in groups)

    return min((chunks(lengths, math.ceil(len(lengths) / count)) for count in _CHUNK_COUNTS), key=cost)


def row_lengths(batch: dict[str, Any]) -> list[int]:
    """Tokens of each row of a right-padded batch, up to the last that is attended to."""
    mask = batch["attention_mask"] != 0
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    found: list[int] = (mask * places).amax(dim=1).tolist()
    return found


def taken(batch: dict[str, Any], rows: Tensor, width: int) -> dict[str, Any]:
    """Some rows of a batch, by index, without the columns behind ``width``."""
    count = batch["attention_mask"].shape[0]
    width = max(width, 1)
    part = {}
    for name, value in batch.items():
        if isinstance(value, CorruptedTokens):
            part[name] = value.of(rows, width)
            continue
        # The prompt's length is one number a batch, in a tensor of whatever shape.
        if isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == count and name != "prompt_length":
            value = value.index_select(0, rows)
            if name in TEXT_KEYS:
                value = value[:, :width]
        part[name] = value
    return part


def in_order(parts: list[tuple[Tensor, ...]], order: Tensor) -> tuple[Tensor, ...]:
    """The groups' row-first tensors put together, in the order of the batch; ``order`` are the groups' rows."""
    back = order.argsort()
    return tuple(torch.cat(column).index_select(0, back) for column in zip(*parts, strict=True))
