"""How a loss runs the encoder: nothing that is padding, or that nobody reads, where it can be left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_contrastive import _host
from st_contrastive.components.layer_stack import layers_of
from st_contrastive.components.narrowing import gives_first_states, narrowed
from st_contrastive.losses._row_groups import by_length, by_number, in_order, row_lengths, taken

Rows = dict[str, Any]
Function = Callable[..., tuple[Tensor, ...]]
Reads = Literal["sentences", "first token", "tokens"]


@dataclass(frozen=True)
class _Groups:
    """The rows of a batch in groups: their numbers one after the other, how many are in each, and the group's width in
    each of the batches."""

    order: Tensor
    sizes: list[int]
    widths: list[list[int]]


class EncoderPasses(nn.Module):
    """The passes through an encoder that a loss makes. None of the ways to save changes a number, but for rounding.

    With dropout, other random numbers are drawn for the same batch.
    """

    model: SentenceTransformer
    #: Rows that go through the encoder at a time, nothing of which is held for the backward pass; None takes all.
    mini_batch_size: int | None = None
    #: Encode rows of like length together, each group padded to its own longest row, where that costs less. None does
    #: so on a CPU: on a GPU it would wait for the lengths, and small passes leave much of it idle.
    saves_padding: bool | None = None
    #: Compute the last layer for the first token of each row alone, where nothing else of it is read.
    narrows_last_layer: bool = True

    def __init__(self) -> None:
        super().__init__()
        self._narrowable: tuple[tuple[Any, ...], bool] | None = None
        self._is_plain = self._is_compiled = self._is_replayed = False

    def encode(
        self, views: Sequence[Rows], *, observed: bool = False, reads: Reads = "sentences"
    ) -> list[_host.Encoded]:
        """One pass, or one a view where they differ in form.

        Args:
            views: features of each.
            observed: hooks on the encoder's layers must see the pass.
            reads: what of the result has a meaning: the sentence vectors, with the token vectors that they are made of,
                the first token's vectors, or all.
        """
        first_alone = reads == "first token" or (reads == "sentences" and _host.embeds_first_token(self.model))
        narrow = first_alone and self._can_narrow(views[0])
        with narrowed(layers_of(_host.encoder_of(self.model))[-1]) if narrow else nullcontext():
            return _host.encode(self.model, views, observed=observed)

    def by_rows(self, function: Function, *batches: Rows) -> tuple[Tensor, ...]:
        """``function(*batches)``, whose results have one entry a row: in groups of rows, where that saves something.

        Args:
            function: takes one dict for each batch, and treats each row by itself. It may be run again in the backward
                pass.
            batches: row-first tensors, an ``attention_mask`` (N, L) among them, all of as many rows.
        """
        groups = self._groups(batches)
        if groups is None:
            return function(*batches)
        return in_order(self._each(function, batches, groups), groups.order)

    def by_groups(self, function: Function, *batches: Rows) -> list[tuple[Tensor, ...]]:
        """As :meth:`by_rows`, for results that are not one entry a row: those of each group."""
        groups = self._groups(batches)
        return [function(*batches)] if groups is None else self._each(function, batches, groups)

    def _each(self, function: Function, batches: Sequence[Rows], groups: _Groups) -> list[tuple[Tensor, ...]]:
        again = self._is_cut(batches[0]) and torch.is_grad_enabled()
        found = []
        for rows, widths in zip(torch.split(groups.order, groups.sizes), groups.widths, strict=True):
            parts = [taken(batch, rows, width) for batch, width in zip(batches, widths, strict=True)]
            found.append(_host.recomputed(function, *parts) if again else function(*parts))
        return found

    def _groups(self, batches: Sequence[Rows]) -> _Groups | None:
        """None where there is one group, the whole."""
        cut = self._is_cut(batches[0])
        if cut and self._is_replayed:
            raise ValueError(
                f"mini_batch_size={self.mini_batch_size} encodes each row twice, which a loss around "
                f"{type(self).__name__}, such as MatryoshkaLoss, does not allow for. Take mini_batch_size=None."
            )
        if not cut and not self._saves_padding():
            return None
        lengths = [row_lengths(batch) for batch in batches]
        longest = [max(row) for row in zip(*lengths, strict=True)]
        groups = by_number(longest, self.mini_batch_size or 1) if cut else by_length(longest)
        if len(groups) < 2 and all(max(own) == _width(batch) for own, batch in zip(lengths, batches, strict=True)):
            return None
        return _Groups(
            order=torch.tensor([row for rows in groups for row in rows], device=batches[0]["attention_mask"].device),
            sizes=[len(rows) for rows in groups],
            widths=[[max(own[row] for row in rows) for own in lengths] for rows in groups],
        )

    def _is_cut(self, batch: Rows) -> bool:
        return self.mini_batch_size is not None and batch["attention_mask"].shape[0] > self.mini_batch_size

    def _saves_padding(self) -> bool:
        if self.saves_padding is None:
            # Compiled code would be compiled again for every width.
            return self.model.device.type == "cpu" and not self._is_compiled and not self._is_replayed
        return self.saves_padding

    def _look_at_encoder(self) -> None:
        """See what can be saved: at every step, for the encoder may be another, compiled or checkpointed since."""
        self._is_compiled = _host.is_compiled(self.model)
        self._is_replayed = _host.replays_outputs(self.model)
        # Checkpointing would run the layer again without its hooks.
        self._is_plain = not (self._is_compiled or self._is_replayed or _host.is_checkpointed(self.model))
        encoder = _host.encoder_of(self.model)
        kind = id(encoder), encoder.config._attn_implementation
        if self._narrowable is None or self._narrowable[0] != kind:
            self._narrowable = kind, gives_first_states(encoder)

    def _can_narrow(self, view: Rows) -> bool:
        return (
            self.narrows_last_layer
            and self._narrowable is not None
            and self._narrowable[1]
            and "prompt_length" not in view  # the first token behind the prompt may be meant
            and not _host.is_flat(view)  # first tokens lie anywhere in the one row
            and self._is_plain
        )


def _width(batch: Rows) -> int:
    return int(batch["attention_mask"].shape[1])
