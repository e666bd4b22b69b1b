"""Base class of the losses: what a step does, in the order in which it happens, and what subclasses compute with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.func import functional_call

from st_contrastive import distributed
from st_contrastive._checks import require_choice, require_count, require_flag, require_number
from st_contrastive._random import fixed_seed
from st_contrastive.components.heads import HEADS
from st_contrastive.encoder import checks
from st_contrastive.encoder.grouping import Grouping, RowFunction, RowInput
from st_contrastive.encoder.model import (
    ModelState,
    embedding_width,
    get_encoder,
    text_module,
    unwrap,
    vocabulary_size,
    weights_dtype,
)
from st_contrastive.encoder.passes import sentence_vectors
from st_contrastive.encoder.token_batch import TokenBatch
from st_contrastive.losses._description import DescribedLoss
from st_contrastive.losses._owned import owned_parameters
from st_contrastive.objectives import info_nce


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


@dataclass(frozen=True)
class Step:
    """What the terms of a batch depend on beside its texts.

    Args:
        is_learning: whether it is a step of training, in which queues and statistics change.
        is_first: whether it is the first of these.
        grouping: how rows go through the encoder.
        row_counts: the rows of each process whose rows are one batch (``gather_across_devices``); else of this one.
    """

    is_learning: bool = False
    is_first: bool = False
    grouping: Grouping = field(default_factory=Grouping)
    row_counts: tuple[int, ...] = (0,)

    @property
    def is_gathered(self) -> bool:
        """Whether the rows of several processes are one batch."""
        return len(self.row_counts) > 1

    @property
    def first_row(self) -> int:
        """The place of this process's first row in the batch."""
        return sum(self.row_counts[: distributed.rank()]) if self.is_gathered else 0

    @property
    def rank_weight(self) -> float:
        """The factor that makes the processes' means average to the mean over all rows: 1, unless processes have
        different numbers of rows, as in a last batch."""
        counts = self.row_counts
        return counts[distributed.rank()] * len(counts) / sum(counts) if self.is_gathered else 1.0

    def weighted(self, mean: Tensor, weight: float = 1.0) -> Tensor:
        """A mean over this process's rows, times a weight and ``rank_weight``."""
        factor = weight * self.rank_weight
        return mean if factor == 1 else factor * mean


class TextLoss(DescribedLoss, ABC):
    """Base of all losses.

    **A subclass** calls ``super().__init__``, builds its components, calls :meth:`finish_setup` last, sets
    :attr:`columns` and implements :meth:`compute_terms`. Its contract:

    - A function given to :meth:`in_chunks` or :meth:`token_mean` may run again in the backward pass, and on some of the
      rows at a time. It changes no state; random tokens are drawn before it.
    - What the loss owns (heads, queues, networks) changes where ``self.step.is_learning`` is True:
      sentence-transformers leaves a loss in training mode while it evaluates.
    - With ``gather_across_devices``, the terms average over the processes to those of one process with all rows.
      :meth:`contrast` and :meth:`token_mean` see to this. Any other mean over rows goes through ``self.step.weighted``,
      and any other sum is divided by :meth:`mean_count`.
    - The parameters of the loss start as rank 0's, and their gradients are averaged in the backward pass, since DDP
      knows the encoder only.

    Args:
        model: SentenceTransformer that starts with a token-level Transformer module.
        temperature: tau of InfoNCE, which the cosines are divided by.
        head: a layer on the embeddings, in training only: "tanh", SimCSE's Linear and Tanh; "projector", two linear
            layers with BatchNorm, of InfoCSE's and DiffCSE's authors; None, nothing.
        gather_across_devices: take the other devices' sentences as negatives too. BatchNorm in a head then takes its
            statistics over the rows of all devices.
        mini_batch_size: how many sentences to encode at a time, each twice, to save memory; the gradient is that of the
            whole batch (GradCache, Gao et al., 2021, arXiv 2101.06983). None takes all.
    """

    #: The numbers of text columns that the loss takes, and what the columns are.
    columns: dict[int, str]
    #: Whether a sentence's positive is that sentence under another dropout mask, where there is one column.
    dropout_only = True
    columns_hint = "Select the columns of the dataset, or build it with the builders of st_contrastive.inputs."
    #: Encode rows of similar length together: on a CPU, where padding costs time.
    group_by_length = True

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        temperature: float = 0.05,
        head: str | None = None,
        gather_across_devices: bool = False,
        mini_batch_size: int | None = None,
    ) -> None:
        super().__init__()
        require_number("temperature", temperature, above=0)
        require_choice("head", head, (*HEADS, None))
        require_flag("gather_across_devices", gather_across_devices)
        checks.require_text_encoder(model)
        checks.require_trainable(model)
        checks.warn_of_training(model)
        if mini_batch_size is not None:
            require_count("mini_batch_size", mini_batch_size)
            checks.require_independent_rows(model, f"mini_batch_size={mini_batch_size}")
        text_module(model).can_flatten_inputs = False  # flash attention's flat batches: a loss reads rows
        # The trainer replaces this attribute by its DDP or compiled wrapper.
        self.model = model
        self.temperature, self.mini_batch_size = temperature, mini_batch_size
        self.gather_across_devices = gather_across_devices
        self.head = None if head is None else HEADS[head](embedding_width(model), weights_dtype(model))
        #: The most tokens that training reads of a text, where a trainer sets fewer than the model; otherwise None.
        self.max_length: int | None = None
        self.step = Step()  # the current one; between calls, the last one
        self._has_learned = False  # the first step of training gives all processes rank 0's parameters
        self._vocabulary = vocabulary_size(get_encoder(model))

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> LossTerms:
        """The terms of one batch. Of the losses here, only TwinsLoss with ``fraternal`` takes labels.

        Raises:
            ValueError: the number of columns is wrong, or a column is not tokenised text.
        """
        model = ModelState.of(self.model)
        self._check_model(model)
        columns = self._read_columns(sentence_features, aligned=model.pads_right)
        self._begin_step(model, len(columns[0]), columns[0].mask.device)
        # An evaluation draws the same masks and pairs each time, and leaves training's random numbers untouched.
        draws = nullcontext() if model.encoder.training else fixed_seed()
        with draws, model.precision():
            if self.step.is_learning and dist.is_available() and dist.is_initialized():
                return self._averaged_terms(columns, labels)
            return LossTerms(self.compute_terms(columns, labels))

    @abstractmethod
    def compute_terms(self, columns: list[TokenBatch], labels: Tensor | None) -> dict[str, Tensor]:
        """The weighted terms of a batch, each 0-d, from the rows of each text column and the batch's labels."""

    # A step, in the order in which it happens.

    def _check_model(self, model: ModelState) -> None:
        """Refuse, or warn of, what was done to the model since the loss was built."""
        name = type(self).__name__
        if torch.is_grad_enabled() and not model.is_training:
            self.warn_once(
                f"{name} was called with gradients and the encoder in evaluation mode, as it is after loading and "
                "after encode(): dropout is off, and the loss's queue and statistics do not change. Call model.train() "
                "before training; in an evaluation, call the loss under torch.no_grad()."
            )
        has_one_width = bool(self.owned_modules()) or self.mini_batch_size is not None
        if model.replays_layers or (model.replays_outputs and has_one_width):
            raise ValueError(
                f"A loss around {name} cuts the embeddings of one pass, or reads its layers, and {name} has a head, a "
                "queue or a network of one width, or mini-batches, or hands no layers on. Take MatryoshkaLoss around "
                "SimCSELoss(model, head=None)."
            )
        if model.vocabulary != self._vocabulary:
            raise ValueError(
                f"The encoder has {model.vocabulary} token embeddings, and had {self._vocabulary} when the loss was "
                "built. Call resize_token_embeddings before you build the loss."
            )
        if model.broadcasts_buffers and self.mini_batch_size is not None:
            raise ValueError(
                "mini_batch_size makes several forward passes a step, before each of which DistributedDataParallel "
                "would broadcast the encoder's buffers: a process with fewer of them would let the others wait for "
                "ever. Wrap the model with broadcast_buffers=False."
            )

    def _read_columns(self, sentence_features: Iterable[dict[str, Any]], *, aligned: bool) -> list[TokenBatch]:
        """The rows of each text column; the columns are those that the loss takes."""
        columns = [TokenBatch.of(features, aligned=aligned) for features in sentence_features]
        if len(columns) not in self.columns:
            takes = " or ".join(f"{count} ({what})" for count, what in self.columns.items())
            raise ValueError(
                f"{type(self).__name__} takes {takes} text column(s), got {len(columns)}. {self.columns_hint}"
            )
        return columns

    def _begin_step(self, model: ModelState, rows: int, device: torch.device) -> None:
        """Set all that the terms depend on beside the batch: the step, and the modes of what the loss owns."""
        is_learning = model.is_training and torch.is_grad_enabled()
        # One batch of one sentence is normal at the end of an epoch, two in a row are not; Matryoshka repeats batches.
        previous_had_one = self.step.row_counts == (1,) and not model.replays_outputs
        if rows == 1 and previous_had_one and is_learning and not self.has_negatives(rows):
            self.warn_once(
                f"{type(self).__name__} was given two batches of one sentence, which has no other to be contrasted "
                "with: their contrastive loss is 0. Give a batch size of 2 or more; the batch sampler no_duplicates "
                "makes batches of one where most texts are equal: remove repeated texts."
            )
        on_cpu = device.type == "cpu" and not model.is_compiled
        # Where buffers are broadcast, all processes must make the same number of passes.
        by_length = self.group_by_length and model.ignores_padding and on_cpu and not model.broadcasts_buffers
        gathers = self.gather_across_devices and distributed.world_size() > 1
        row_counts = distributed.row_counts(rows, device) if gathers else (rows,)
        is_first = is_learning and not self._has_learned
        grouping = Grouping(by_length=by_length, may_cut=model.ignores_padding, mini_batch_size=self.mini_batch_size)
        self.step = Step(is_learning=is_learning, is_first=is_first, grouping=grouping, row_counts=row_counts)
        self._has_learned = self._has_learned or is_learning
        # BatchNorm does not learn from one row, whose variance is 0.
        for part in self.owned_modules():
            fixed = row_counts == (1,) and any(isinstance(module, nn.BatchNorm1d) for module in part.modules())
            mode = is_learning and not fixed
            if part.training != mode:  # the call walks through all modules
                part.train(mode)

    def _averaged_terms(self, columns: list[TokenBatch], labels: Tensor | None) -> LossTerms:
        """The terms, whose backward pass averages the gradients of the loss's own parameters over the processes."""
        if self.step.is_first:
            distributed.broadcast(owned_parameters(self))
        parameters: dict[str, Tensor] = {
            f"loss.{name}": parameter  # as _Terms names it
            for name, parameter in self.named_parameters()
            if parameter.requires_grad and not name.startswith("model.")
        }
        if not parameters:
            return LossTerms(self.compute_terms(columns, labels))
        zero, stand_ins = distributed.averaging(parameters)
        terms = LossTerms(functional_call(_Terms(self), stand_ins, (columns, labels)))
        first = next(iter(terms))
        terms[first] = terms[first] + zero.to(terms[first])  # for batches that use none of them
        return terms

    # What a subclass computes with.

    def encode(self, *views: TokenBatch) -> tuple[Tensor, ...]:
        """The sentence vectors (N, d) of each view; the views of a row go through the encoder in one pass."""
        return self.in_chunks(partial(sentence_vectors, self.model), *views)

    def in_chunks(self, function: RowFunction, *inputs: RowInput) -> tuple[Any, ...]:
        """``function(*inputs)``, computed at once, in mini-batches, or in groups of rows of similar length.

        Args:
            function: treats each row by itself, and gives tensors with an entry for each row, or None. It may run again
                in the backward pass.
            inputs: what it is given, each with an entry for each row: at least one of them TokenBatch.
        """
        return self.step.grouping.run(function, inputs).in_order()

    def token_mean(self, function: RowFunction, *inputs: RowInput) -> tuple[Tensor, ...]:
        """Means, computed as in :meth:`in_chunks`: ``function(*inputs)`` gives sums and, last, the number of things in
        each; 0 where there is none."""
        *sums, count = self.step.grouping.run(function, inputs).sums()
        divisor = self.mean_count(count)
        return tuple(total / divisor for total in sums)

    def project(self, *views: Tensor) -> tuple[Tensor, ...]:
        """The views after the head, in one call of it: their rows share its BatchNorm statistics."""
        return views if self.head is None else self.apply_head(self.head, torch.cat(views)).chunk(len(views))

    def apply_head(self, head: nn.Module, vectors: Tensor) -> Tensor:
        """``head(vectors)`` in the head's precision, with the rows of all devices in BatchNorm's statistics if
        ``gather_across_devices``.

        Args:
            head: (n, d) to (n, d').
            vectors: (k N, d), k views of this device's N sentences.
        """
        vectors = vectors.to(next(head.parameters()).dtype)  # the model may be bfloat16 and the head float32
        counts = self.step.row_counts
        if not self.step.is_gathered or not any(isinstance(part, nn.BatchNorm1d) for part in head.modules()):
            return cast(Tensor, head(vectors))
        views = len(vectors) // counts[distributed.rank()]
        gathered = distributed.gather_rows(vectors, [views * count for count in counts])
        return cast(Tensor, head(gathered)[views * self.step.first_row :][: len(vectors)])

    def contrast(
        self,
        anchors: Tensor,
        positives: Tensor,
        negatives: Tensor | None = None,
        negative_weights: Tensor | None = None,
    ) -> Tensor:
        """InfoNCE at the loss's temperature, with ``gather_across_devices`` against the positives of all devices and
        times ``rank_weight``."""
        mean = info_nce(
            anchors,
            self.gather(positives),
            temperature=self.temperature,
            negatives=negatives,
            negative_weights=negative_weights,
            offset=self.step.first_row,
        )
        return self.step.weighted(mean)

    def gather(self, vectors: Tensor) -> Tensor:
        """The rows (P, d) of all devices if ``gather_across_devices``, else the rows (N, d). This device's begin at
        ``step.first_row``."""
        return distributed.gather_rows(vectors, self.step.row_counts) if self.step.is_gathered else vectors

    def mean_count(self, count: Tensor) -> Tensor:
        """The divisor of a sum over ``count`` things of this device, such as masked tokens: with
        ``gather_across_devices`` the mean of all devices' counts."""
        return distributed.mean_count(count) if self.step.is_gathered else count.clamp(min=1)

    # Set-up.

    def finish_setup(self) -> None:
        """Move what the loss owns to the encoder's device, so that a training loop need not.

        Raises:
            ValueError: what the loss would train is float16, as a copy of a frozen encoder that was loaded so.
        """
        device = unwrap(self.model).device
        for part in self.owned_modules():
            part.to(device)
            checks.require_no_half(part, f"{type(self).__name__} would train copies of the encoder's")
        for tensor in (*self.parameters(recurse=False), *self.buffers(recurse=False)):
            tensor.data = tensor.data.to(device)
        if self.dropout_only:
            checks.warn_without_dropout(self.model, type(self).__name__)

    def owned_modules(self) -> list[nn.Module]:
        """The modules of the loss without the encoder."""
        return [part for name, part in self.named_children() if name != "model"]


class _Terms(nn.Module):
    """A loss's terms as a module's forward pass, for ``functional_call``."""

    def __init__(self, loss: TextLoss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, columns: list[TokenBatch], labels: Tensor | None) -> dict[str, Tensor]:
        return self.loss.compute_terms(columns, labels)
