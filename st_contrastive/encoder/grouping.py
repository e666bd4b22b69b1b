"""How the rows of a batch go through the encoder: all at once, in groups of similar length, or in mini-batches."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from st_contrastive.encoder.passes import recomputed
from st_contrastive.encoder.token_batch import CorruptedTokens, TokenBatch

#: What a function of rows is given: rows, their corrupted tokens behind them, or tensors with an entry for each row.
RowInput = TokenBatch | CorruptedTokens | Tensor
RowFunction = Callable[..., tuple[Any, ...]]

#: What a pass through an encoder costs beside its tokens, as a number of tokens.
_PASS_COST = 64
_GROUP_COUNTS = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True)
class GroupedResults:
    """What a function gave for each group of rows, and the groups' row numbers; None for all rows in their order."""

    results: list[tuple[Any, ...]]
    numbers: list[Tensor] | None = None

    def in_order(self) -> tuple[Any, ...]:
        """The tensors, which have an entry for each row, put together in the batch's order. None stays None."""
        if self.numbers is None:
            return self.results[0]
        order = torch.cat(self.numbers).argsort()
        columns = zip(*self.results, strict=True)
        return tuple(None if part[0] is None else torch.cat(part).index_select(0, order) for part in columns)

    def sums(self) -> list[Tensor]:
        """The sums of the tensors, 0-d each, over the groups."""
        return [functools.reduce(torch.add, column) for column in zip(*self.results, strict=True)]


@dataclass(frozen=True)
class Grouping:
    """How the rows of a batch go through the encoder.

    Args:
        by_length: put rows of similar length together, each group padded to its own longest row, where that costs less.
        may_cut: whether rows may be cut to their group's longest.
        mini_batch_size: rows at a time, recomputed in the backward pass; None takes all.
    """

    by_length: bool = False
    may_cut: bool = False
    mini_batch_size: int | None = None

    def run(self, function: RowFunction, inputs: Sequence[RowInput]) -> GroupedResults:
        """The results of ``function(*inputs)`` for each group of rows."""
        batches = [part for part in inputs if isinstance(part, TokenBatch)]
        recompute = self.mini_batch_size is not None and len(batches[0]) > self.mini_batch_size
        if not (recompute or self.by_length):
            return GroupedResults([function(*inputs)])
        lengths = np.array([part.lengths for part in batches])
        widths = np.array([part.width for part in batches])
        longest = lengths.max(axis=0).tolist()
        groups = _chunks(longest, self.mini_batch_size or 1) if recompute else cheapest_groups(longest)
        if len(groups) < 2 and (lengths.max(axis=1) == widths).all():
            return GroupedResults([function(*inputs)])
        results, numbers = [], [torch.tensor(group, device=batches[0].mask.device) for group in groups]
        for group, rows in zip(groups, numbers, strict=True):
            part = _selected(inputs, rows, lengths[:, group].max(axis=1) if self.may_cut else widths)
            run_twice = recompute and torch.is_grad_enabled()
            results.append(recomputed(function, part) if run_twice else function(*part))
        return GroupedResults(results, numbers)


def cheapest_groups(lengths: Sequence[int], pass_cost: int = _PASS_COST) -> list[list[int]]:
    """The rows in one to eight equal groups, shortest first; their number costs least in padded tokens and passes."""
    shortest_first, rows = np.sort(lengths), len(lengths)
    sizes = [math.ceil(rows / count) for count in _GROUP_COUNTS]
    costs = []
    for size in sizes:
        ends = np.minimum(np.arange(size, rows + size, size), rows)
        costs.append(pass_cost * len(ends) + (np.diff(ends, prepend=0) * shortest_first[ends - 1]).sum())
    return _chunks(lengths, sizes[int(np.argmin(costs))])


def _chunks(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Row numbers in chunks of ``size``, shortest rows first; the last chunk may be smaller."""
    order = np.argsort(lengths, kind="stable").tolist()
    return [order[start : start + size] for start in range(0, len(order), size)]


def _selected(inputs: Sequence[RowInput], rows: Tensor, widths: Iterable[int]) -> list[RowInput]:
    """Some rows of each input; the ``widths`` are those of the batches, and corrupted tokens are as wide."""
    selected: list[RowInput] = []
    remaining, width = iter(widths), 0
    for part in inputs:
        if isinstance(part, Tensor):
            selected.append(part.index_select(0, rows))
            continue
        width = int(next(remaining)) if isinstance(part, TokenBatch) else width
        selected.append(part.take(rows, width))
    return selected
