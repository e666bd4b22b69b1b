"""The operations on one batch that compute a loss's terms (``Step``), and the terms (``LossTerms``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from st_contrastive import distributed
from st_contrastive.encoder.passes import ChunkFunction, ChunkInput, RowChunks, sentence_vectors
from st_contrastive.encoder.token_batch import TokenBatch
from st_contrastive.objectives import info_nce

Tensors = TypeVar("Tensors", bound=tuple[Any, ...])


@dataclass(frozen=True)
class BatchFacts:
    """Facts that a trainer knows about all batches of a run. The defaults hold for any training loop.

    Args:
        max_length: maximum number of tokens of a text, if the trainer truncates texts further than the model does.
        have_equal_rows: whether all processes have the same number of rows in every training batch.
    """

    max_length: int | None = None
    have_equal_rows: bool = False


class EncodedViews(NamedTuple):
    """Vectors of several views of a batch: one tensor (N, d) for each view.

    Attributes:
        sentences: the model's sentence vectors.
        pooled: the output of the model's own Pooling, before the modules that follow it.
    """

    sentences: tuple[Tensor, ...]
    pooled: tuple[Tensor, ...]


@dataclass(frozen=True)
class Step:
    """One batch and how it is encoded and contrasted. ``TextLoss.forward`` makes a Step for each batch.

    A function that is passed to :meth:`in_chunks` or :meth:`token_mean` may run again in the backward pass, and on
    only some of the rows. It must not change state or draw random tokens.

    With ``gather_across_devices`` the rows of all processes are one batch, and the mean of the processes' terms must be
    the term that one process with all rows would compute. :meth:`info_nce` and :meth:`token_mean` take care of this.
    Pass any other mean over rows through :meth:`correct_for_uneven_rows`, and divide any other sum by
    :meth:`mean_count`.

    Args:
        model: the encoder, possibly wrapped.
        temperature: tau of :meth:`info_nce`.
        is_learning: whether this is a training step, which changes queues and statistics.
        is_first: whether this is the loss's first training step.
        max_length: maximum number of tokens of a text, if a trainer truncates texts further than the model does.
        chunks: how rows are grouped for the encoder.
        row_counts: the number of rows of each process, if the rows of all processes are one batch.
    """

    model: nn.Module
    temperature: float = 0.05
    is_learning: bool = False
    is_first: bool = False
    max_length: int | None = None
    chunks: RowChunks = field(default_factory=RowChunks)
    row_counts: tuple[int, ...] = ()

    def encode(self, *views: TokenBatch) -> tuple[Tensor, ...]:
        """The sentence vectors (N, d) of each view.

        A pass encodes all views of its rows, or only one view if padding short texts to the length of long ones would
        cost more.
        """
        encode = partial(sentence_vectors, self.model)
        if self.chunks.are_cheaper_apart(views):
            return tuple(vectors for view in views for vectors in self.in_chunks(encode, view))
        return self.in_chunks(encode, *views)

    def encode_and_pool(self, *views: TokenBatch) -> EncodedViews:
        """As :meth:`encode`, but also with the output of the model's own Pooling from the same pass."""
        vectors = self.in_chunks(partial(sentence_vectors, self.model, pooled=True), *views)
        return EncodedViews(sentences=vectors[: len(views)], pooled=vectors[len(views) :])

    def in_chunks(self, function: Callable[..., Tensors], *inputs: ChunkInput) -> Tensors:
        """``function(*inputs)``, computed at once, in mini-batches, or in groups of rows of similar length.

        Args:
            function: computes each row independently and returns a tuple of tensors with an entry for each row, or
                None. The result has the same tuple type.
            inputs: the function's arguments. Each has one entry per row, and at least one is a TokenBatch.
        """
        results: Tensors = self.chunks.map(function, inputs).in_order()  # type: ignore[assignment]
        return results

    def token_mean(self, function: ChunkFunction, *inputs: ChunkInput) -> tuple[Tensor, ...]:
        """Means over tokens, computed as in :meth:`in_chunks`.

        ``function(*inputs)`` returns sums and, as its last tensor, the number of tokens in each sum. The mean is 0
        if there are no tokens.
        """
        *sums, count = self.chunks.map(function, inputs).sums()
        denominator = self.mean_count(count)
        return tuple(total / denominator for total in sums)

    def apply_head(self, head: nn.Module | None, *views: Tensor) -> tuple[Tensor, ...]:
        """The output of one call of a head for all views. Without a head, the views are returned unchanged.

        All rows share the statistics of the head's BatchNorm. With ``gather_across_devices`` these are the statistics
        of the rows of all devices.

        Args:
            head: the head or None.
            views: (N, d) each, or one tensor (k N, d) with k views of the N rows one after the other.
        """
        if head is None:
            return views
        rows = torch.cat(views) if len(views) > 1 else views[0]
        rows = rows.to(next(head.parameters()).dtype)  # the model may be bfloat16 and the head float32
        if self.is_gathered and any(isinstance(part, nn.BatchNorm1d) for part in head.modules()):
            repeats = len(rows) // self.row_counts[distributed.rank()]
            gathered = distributed.gather_rows(rows, [repeats * count for count in self.row_counts])
            projected = head(gathered)[repeats * self.first_row :][: len(rows)]
        else:
            projected = head(rows)
        return tuple(projected.chunk(len(views))) if len(views) > 1 else (projected,)

    def info_nce(
        self, anchors: Tensor, positives: Tensor, negatives: Tensor | None = None, weights: Tensor | None = None
    ) -> Tensor:
        """InfoNCE at the loss's temperature, unweighted. See :func:`st_contrastive.objectives.info_nce`.

        With ``gather_across_devices``, the positives of all devices are candidates.
        """
        mean = info_nce(
            anchors,
            self.gather(positives),
            temperature=self.temperature,
            negatives=negatives,
            negative_weights=weights,
            offset=self.first_row,
        )
        return self.correct_for_uneven_rows(mean)

    def gather(self, vectors: Tensor) -> Tensor:
        """The rows (P, d) of all devices with ``gather_across_devices``; otherwise the unchanged rows (N, d).

        This device's rows begin at ``first_row``.
        """
        return distributed.gather_rows(vectors, self.row_counts) if self.is_gathered else vectors

    def correct_for_uneven_rows(self, mean: Tensor) -> Tensor:
        """A mean over this process's rows, scaled so that the mean over the processes is the mean over all rows.

        The processes have different numbers of rows in an epoch's last batch.
        """
        if not self.is_gathered:
            return mean
        factor = self.row_counts[distributed.rank()] * len(self.row_counts) / sum(self.row_counts)
        return mean if factor == 1 else factor * mean

    def mean_count(self, count: Tensor) -> Tensor:
        """The denominator of a mean over ``count`` items, such as masked tokens, at least 1.

        With ``gather_across_devices`` this is the mean of all devices' counts.
        """
        return distributed.mean_count(count) if self.is_gathered else count.clamp(min=1)

    @property
    def is_gathered(self) -> bool:
        """Whether the rows of several processes form one batch."""
        return len(self.row_counts) > 1

    @property
    def first_row(self) -> int:
        """The index of this process's first row in the whole batch."""
        return sum(self.row_counts[: distributed.rank()]) if self.is_gathered else 0


class LossTerms(dict[str, Tensor]):
    """Weighted terms of a loss, each 0-d. Their sum is the loss.

    sentence-transformers' Trainer and ``fit`` accept a dict: they add up the terms and log each term under its name.
    Other code (``old_fit``, ``accelerator.backward``, ``MatryoshkaLoss``, your training loop) expects a tensor. For
    such code, ``backward``, ``detach``, ``float()``, ``+``, ``*`` and ``/`` work on the sum. A ``GradScaler`` needs the
    tensor itself: ``terms.total``.

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
