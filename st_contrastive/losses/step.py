"""The step that a loss computes the terms of one batch with, and the terms."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from st_contrastive import distributed
from st_contrastive.encoder.passes import ChunkFunction, ChunkInput, RowChunks, sentence_vectors
from st_contrastive.encoder.token_batch import TokenBatch
from st_contrastive.objectives import info_nce


@dataclass(frozen=True)
class Step:
    """One batch's pass through the model, and its contrast. ``TextLoss.forward`` makes one for each batch.

    A function given to :meth:`in_chunks` or :meth:`token_mean` may run again in the backward pass, and on some of the
    rows at a time: it changes no state and draws no random tokens.

    With ``gather_across_devices`` the rows of all processes are one batch, and the mean of the processes' terms must be
    what one process with all rows would compute. :meth:`info_nce` and :meth:`token_mean` see to this; any other mean
    over rows goes through :meth:`weighted`, and any other sum is divided by :meth:`mean_count`.

    Args:
        model: the encoder, in its wrappers.
        temperature: tau of :meth:`info_nce`.
        is_learning: whether it is a step of training, in which queues and statistics change.
        is_first: whether it is the first of these.
        chunks: how rows go through the encoder.
        row_counts: the rows of each process, if the rows of all are one batch.
    """

    model: nn.Module
    temperature: float = 0.05
    is_learning: bool = False
    is_first: bool = False
    chunks: RowChunks = field(default_factory=RowChunks)
    row_counts: tuple[int, ...] = ()

    def encode(self, *views: TokenBatch, pooled: bool = False) -> tuple[Tensor, ...]:
        """The sentence vectors (N, d) of each view; the views of a row go through the encoder in one pass. With
        ``pooled``, behind them what the model's own Pooling gives of each view, (N, d)."""
        return self.in_chunks(partial(sentence_vectors, self.model, pooled=pooled), *views)

    def in_chunks(self, function: ChunkFunction, *inputs: ChunkInput) -> tuple[Any, ...]:
        """``function(*inputs)``, computed at once, in mini-batches, or in groups of rows of similar length.

        Args:
            function: treats each row by itself, and gives tensors with an entry for each row, or None.
            inputs: what it is given, each with an entry for each row, at least one of them a TokenBatch.
        """
        return self.chunks.map(function, inputs).in_order()

    def token_mean(self, function: ChunkFunction, *inputs: ChunkInput) -> tuple[Tensor, ...]:
        """Means over tokens, computed as in :meth:`in_chunks`. ``function(*inputs)`` gives sums and, last, how many
        tokens are in each. A mean over no token is 0."""
        *sums, count = self.chunks.map(function, inputs).sums()
        divisor = self.mean_count(count)
        return tuple(total / divisor for total in sums)

    def apply_head(self, head: nn.Module | None, *views: Tensor) -> tuple[Tensor, ...]:
        """The views after a head, in one call of it: their rows share its BatchNorm's statistics, with
        ``gather_across_devices`` those of all devices. None leaves them as they are.

        Args:
            views: (N, d) each, or one of (k N, d), k views of the N rows one after the other.
        """
        if head is None:
            return views
        rows = torch.cat(views) if len(views) > 1 else views[0]
        rows = rows.to(next(head.parameters()).dtype)  # the model may be bfloat16 and the head float32
        if self.is_gathered and any(isinstance(part, nn.BatchNorm1d) for part in head.modules()):
            repeats = len(rows) // self.row_counts[distributed.rank()]
            gathered = distributed.gather_rows(rows, [repeats * count for count in self.row_counts])
            made = head(gathered)[repeats * self.first_row :][: len(rows)]
        else:
            made = head(rows)
        return tuple(made.chunk(len(views))) if len(views) > 1 else (made,)

    def info_nce(
        self, anchors: Tensor, positives: Tensor, negatives: Tensor | None = None, weights: Tensor | None = None
    ) -> Tensor:
        """InfoNCE at the loss's temperature, against the positives of all devices where rows are gathered; see
        :func:`st_contrastive.objectives.info_nce`."""
        mean = info_nce(
            anchors,
            self.gather(positives),
            temperature=self.temperature,
            negatives=negatives,
            negative_weights=weights,
            offset=self.first_row,
        )
        return self.weighted(mean)

    def gather(self, vectors: Tensor) -> Tensor:
        """The rows (P, d) of all devices with ``gather_across_devices``, else the rows (N, d). This device's begin at
        ``first_row``."""
        return distributed.gather_rows(vectors, self.row_counts) if self.is_gathered else vectors

    def weighted(self, mean: Tensor, weight: float = 1.0) -> Tensor:
        """A mean over this process's rows, times a weight and what corrects for processes with fewer rows than others,
        as in a last batch."""
        if self.is_gathered:
            weight *= self.row_counts[distributed.rank()] * len(self.row_counts) / sum(self.row_counts)
        return mean if weight == 1 else weight * mean

    def mean_count(self, count: Tensor) -> Tensor:
        """The divisor of a sum over ``count`` things of this device, such as masked tokens: with
        ``gather_across_devices`` the mean of all devices' counts."""
        return distributed.mean_count(count) if self.is_gathered else count.clamp(min=1)

    @property
    def is_gathered(self) -> bool:
        """Whether the rows of several processes form one batch."""
        return len(self.row_counts) > 1

    @property
    def first_row(self) -> int:
        """The index of this process's first row in the batch."""
        return sum(self.row_counts[: distributed.rank()]) if self.is_gathered else 0


class LossTerms(dict[str, Tensor]):
    """Weighted terms of a loss, each 0-d; their sum is the loss.

    The Trainer, and so ``fit``, takes a dict: it adds the terms up and logs each under its name. For what expects a
    tensor (``old_fit``, ``accelerator.backward``, ``MatryoshkaLoss``, a loop of your own), ``backward``, ``detach``,
    ``float()``, ``+``, ``*`` and ``/`` are those of the sum. A ``GradScaler`` needs the tensor itself: ``terms.total``.

    Example:
        >>> import torch
        >>> terms = LossTerms(contrastive=torch.tensor(2.0), mlm=torch.tensor(0.5))
        >>> terms.total.item()
        2.5
    """

    @property
    def total(self) -> Tensor:
        """The loss: the sum of the terms, 0-d."""
        return torch.stack(list(self.values())).sum()

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """``total.backward``."""
        self.total.backward(*args, **kwargs)  # type: ignore[no-untyped-call]

    def item(self) -> float:
        """The loss as a number."""
        return float(self.total.item())

    __float__ = item

    def detach(self) -> Tensor:
        """``total.detach()``."""
        return self.total.detach()

    def __add__(self, other: float | Tensor | LossTerms) -> Tensor:
        return self.total + (other.total if isinstance(other, LossTerms) else other)

    __radd__ = __add__

    def __mul__(self, factor: float | Tensor) -> Tensor:
        return self.total * factor

    __rmul__ = __mul__

    def __truediv__(self, divisor: float | Tensor) -> Tensor:
        return self.total / divisor
