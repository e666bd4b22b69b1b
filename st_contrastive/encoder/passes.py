"""How a loss runs the encoder: nothing that is padding, or that nobody reads, where it can be left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_contrastive.encoder.features import is_unpadded
from st_contrastive.encoder.forward import Encoded, encode
from st_contrastive.encoder.layers import layers_of
from st_contrastive.encoder.model import embeds_first_token, encoder_of, unwrap
from st_contrastive.encoder.narrowing import gives_first_states, narrowed
from st_contrastive.encoder.probe import Probe, ignores_padding
from st_contrastive.encoder.recompute import recomputed
from st_contrastive.encoder.row_groups import cheapest_chunks, chunks, in_order, row_lengths, taken
from st_contrastive.encoder.wrappers import Wrapping

Rows = dict[str, Any]
Function = Callable[..., tuple[Tensor, ...]]


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
    #: Sentences that go through the encoder at a time, nothing of which is held for the backward pass; None takes all.
    mini_batch_size: int | None = None
    #: Encode rows of like length together, each group padded to its own longest row, where that costs less. None does
    #: so on a CPU: on a GPU it would wait for the lengths, and small passes leave much of it idle.
    saves_padding: bool | None = None
    #: Compute the last layer for the first token of each row alone, where nothing else of it is read.
    narrows_last_layer: bool = True

    def __init__(self) -> None:
        super().__init__()
        self._wrapping = Wrapping()
        self._narrows = Probe(lambda model: gives_first_states(encoder_of(model)))
        self._ignores_padding = Probe(ignores_padding)

    @property
    def reads(self) -> Literal["sentences", "first token", "tokens"]:
        """What of an encoded view has a meaning to the loss: the sentence vectors, with the token vectors that they are
        made of, the first token's vectors, or all."""
        return "sentences"

    def encode(self, views: Sequence[Rows], *, observed: bool = False) -> list[Encoded]:
        """One pass, or one a view where they differ in form.

        Args:
            views: features of each.
            observed: hooks on the encoder's layers must see the pass.
        """
        # The first token behind a prompt may be meant, and in a flat batch first tokens lie anywhere.
        plain = all("prompt_length" not in view and not is_unpadded(view) for view in views)
        narrow = plain and self._may_narrow and self._narrows(self.model)
        with narrowed(layers_of(encoder_of(self.model))[-1]) if narrow else nullcontext():
            return encode(self.model, views, observed=observed)

    def sentences_of(self, *views: Rows) -> tuple[Tensor, ...]:
        """The sentence vectors of each view."""
        return tuple(view.sentences for view in self.encode(views))

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
            found.append(recomputed(function, *parts) if again else function(*parts))
        return found

    def _groups(self, batches: Sequence[Rows]) -> _Groups | None:
        """None where there is one group, the whole."""
        cut = self._is_cut(batches[0])
        if cut:
            self._require_mini_batches()
        elif not (self._may_group and self._ignores_padding(self.model)):
            return None
        lengths = [row_lengths(batch) for batch in batches]
        longest = [max(row) for row in zip(*lengths, strict=True)]
        groups = chunks(longest, self.mini_batch_size or 1) if cut else cheapest_chunks(longest)
        if len(groups) < 2 and all(max(own) == _width(batch) for own, batch in zip(lengths, batches, strict=True)):
            return None
        if cut and not self._ignores_padding(self.model):
            lengths = [[_width(batch)] * len(own) for own, batch in zip(lengths, batches, strict=True)]
        return _Groups(
            order=torch.tensor([row for rows in groups for row in rows], device=batches[0]["attention_mask"].device),
            sizes=[len(rows) for rows in groups],
            widths=[[max(own[row] for row in rows) for own in lengths] for rows in groups],
        )

    def _is_cut(self, batch: Rows) -> bool:
        return self.mini_batch_size is not None and batch["attention_mask"].shape[0] > self.mini_batch_size

    def _look_at_encoder(self) -> None:
        """See what can be saved: at every step, for the encoder may be another since, or run in another way."""
        self._wrapping = Wrapping.of(self.model)
        # Asked here, where no pass is watched yet.
        if self._may_narrow:
            self._narrows(self.model)
        if self._may_group or self.mini_batch_size is not None:
            self._ignores_padding(self.model)

    @property
    def _may_narrow(self) -> bool:
        wrapping = self._wrapping
        first_alone = self.reads == "first token" or (self.reads == "sentences" and embeds_first_token(self.model))
        # Compiled code would not know of it, a layer that is run again would be run whole, others would see other
        # states, and DataParallel's copies share their hooks.
        apart = wrapping.compiled or wrapping.checkpointed or wrapping.hooked or wrapping.replayed or wrapping.parallel
        return self.narrows_last_layer and first_alone and not apart

    @property
    def _may_group(self) -> bool:
        wrapping = self._wrapping
        # Compiled code would be compiled again for every width; what looks at passes, or waits for those of other
        # ranks, expects one; and rows that depend on others must stay with them.
        apart = wrapping.compiled or wrapping.hooked or wrapping.replayed or wrapping.parallel
        if apart or wrapping.synchronises_buffers or wrapping.batch_statistics:
            return False
        return unwrap(self.model).device.type == "cpu" if self.saves_padding is None else self.saves_padding

    def _require_mini_batches(self) -> None:
        """Refuse mini-batches where they would not give what the whole batch gives.

        Raises:
            ValueError: the message says why.
        """
        wrapping = self._wrapping
        reasons = {
            "each row is encoded twice, which a loss around this one, such as MatryoshkaLoss, does not allow for": (
                wrapping.replayed
            ),
            "the model has BatchNorm, whose statistics would be those of a mini-batch": wrapping.batch_statistics,
            "DistributedDataParallel sends the model's buffers round in each pass, and the ranks may make different "
            "numbers of passes: give it broadcast_buffers=False": wrapping.synchronises_buffers,
        }
        for reason, met in reasons.items():
            if met:
                raise ValueError(f"mini_batch_size={self.mini_batch_size} can't be used: {reason}.")


def _width(batch: Rows) -> int:
    return int(batch["attention_mask"].shape[1])
