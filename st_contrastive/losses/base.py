"""Base classes of the losses: calling convention, owned state (heads, queues, networks), and the InfoNCE term."""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_contrastive import distributed
from st_contrastive._checks import require_count, require_flag, require_temperature, warn
from st_contrastive._random import fixed_draws
from st_contrastive.distributed import RowCounts
from st_contrastive.encoder import (
    EncoderPasses,
    Rows,
    dropout_setting,
    encoder_of,
    has_dropout,
    position_table,
    require_no_half,
    require_text_encoder,
    require_trainable,
)
from st_contrastive.losses._averaged_gradients import with_averaged_gradients
from st_contrastive.losses._state import owned_state
from st_contrastive.objectives import info_nce, masked_lm_in_chunks


class LossTerms(dict[str, Tensor]):
    """Weighted terms of a loss, each 0-d; their sum is the loss.

    The Trainer, and so ``fit``, takes a dict: it adds the terms up and logs each under its name. For loops that expect
    a tensor (``old_fit``, ``accelerator.backward``, your own), ``backward``, ``detach``, ``float()``, ``+``, ``*`` and
    ``/`` are those of the sum. A ``GradScaler`` needs the tensor itself: give the loss ``log_terms=False``.

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


class TextLoss(EncoderPasses, ABC):
    """Base of all losses: checks the columns, prepares the step, and returns the terms or their sum.

    **A subclass** calls ``super().__init__``, builds its components, calls :meth:`finish_setup` last, sets
    :attr:`columns` and implements :meth:`compute_terms`. Its contract:

    - *What may run twice.* A function given to :meth:`by_rows` or :meth:`by_groups` may run again in the backward pass,
      and on groups of rows in any order. It changes no state.
    - *When to draw.* Random tokens are drawn in :meth:`compute_terms` before the first pass, for the whole batch. On a
      GPU their number is then known when the pass has been queued (see :class:`~st_contrastive.distributed.HostValue`),
      and a second run sees the same tokens.
    - *When state may change.* What the loss owns (heads, queues, auxiliary networks) changes in training only, where
      :attr:`is_learning` is True. sentence-transformers leaves a loss in training mode while it evaluates and switches
      only the encoder, so that the encoder's mode and PyTorch's gradient mode decide.
    - *Several processes.* A mean over this process's rows is multiplied by ``self.row_counts.share``, a mean over other
      things by :meth:`ContrastiveLoss.share`; heads are called by :meth:`ContrastiveLoss.apply_head`. The terms then
      average over the processes to those of one process with all rows. What the loss owns starts as rank 0's, and its
      gradients are averaged in the backward pass, because DDP knows of the encoder only. Clipping and checkpoints are
      the trainer's job: see :mod:`st_contrastive.training`.

    Args:
        model: a SentenceTransformer that starts with a token-level Transformer module.
        log_terms: return a :class:`LossTerms` (True), or the sum as one 0-d tensor (False), for callers that can't take
            a dict: mixed precision under ``old_fit``, or ``MatryoshkaLoss`` around ``SimCSELoss(head=False)``. (A head
            has one width. Wrappers that cut the embeddings can't go around a loss with a head.)
    """

    #: The numbers of text columns that the loss takes, and what the columns are.
    columns: dict[int, str]
    columns_hint = "Select the columns of the dataset, or build it with the builders of st_contrastive.inputs."
    #: Whether the rows of all ranks are one batch.
    gather_across_devices = False
    #: The dataclass of a loss's argument ``ablation``, where it has one.
    ablation_class: type[Any] | None = None
    #: Arguments that a resumed run may change: they do not alter what is trained, or only name the source of state that
    #: a checkpoint restores.
    may_change: tuple[str, ...] = ("log_terms",)

    def __init__(self, model: SentenceTransformer, *, log_terms: bool) -> None:
        super().__init__()
        require_flag("log_terms", log_terms)
        require_text_encoder(model)
        require_trainable(model)
        # The trainer replaces this attribute by its DDP or compiled wrapper.
        self.model = model
        self.log_terms = log_terms
        self._positions = position_table(encoder_of(model))
        self._warned_of_mode = False
        self._is_alike = False  # whether rank 0's parameters were sent to all ranks
        self.row_counts = RowCounts(0)

    @abstractmethod
    def compute_terms(self, columns: list[Rows], labels: Tensor | None) -> dict[str, Tensor]:
        """The weighted terms of a batch, each 0-d, from the rows of each text column and the batch's labels."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Keep the constructor's arguments, for :meth:`get_config_dict`."""
        loss = super().__new__(cls)
        with suppress(TypeError):  # __init__ reports wrong arguments; copying passes none
            bound = inspect.signature(cls.__init__).bind(loss, *args, **kwargs)
            bound.apply_defaults()
            vars(loss)["_arguments"] = {k: v for k, v in bound.arguments.items() if k not in ("self", "model")}
        return loss

    def get_config_dict(self) -> dict[str, Any]:
        """The constructor's arguments but for the model, with the fields of ``ablation`` in its place.

        For the model card, and for :func:`st_contrastive.methods.build_loss`, which builds the loss again from them.
        """
        arguments: dict[str, Any] = dict(vars(self)["_arguments"])
        if self.ablation_class is not None:
            arguments |= vars(arguments.pop("ablation") or self.ablation_class())
        return {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in arguments.items()}

    @property
    @abstractmethod
    def citation(self) -> str:
        """BibTeX of the paper, for the model card."""

    @property
    def is_learning(self) -> bool:
        """Whether this forward pass is a step of training, so that queues and statistics may change."""
        # A loaded SentenceTransformer is in training mode while the encoder in it is not.
        return self.model.training and encoder_of(self.model).training and torch.is_grad_enabled()

    def forward(
        self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None
    ) -> dict[str, Tensor] | Tensor:
        """Terms, or their sum, of one batch. Only TwinsLoss with ``fraternal`` reads the labels.

        Raises:
            ValueError: the number of columns is wrong, a column is not tokenised text, or a text is longer than the
                encoder has positions for.
        """
        if torch.is_grad_enabled() and not self.is_learning:
            self._warn_of_evaluation_mode()
        columns = [Rows.of(features, self.model) for features in sentence_features]
        self._check(columns)
        self._prepare(columns[0])
        if self.is_learning and distributed.world_size() > 1:
            if not self._is_alike:
                distributed.broadcast(part for part in owned_state(self).values() if isinstance(part, nn.Parameter))
                self._is_alike = True
            terms = LossTerms(with_averaged_gradients(self, columns, labels))
        else:
            # An evaluation draws the same masks and pairs each time, and training draws on as without it.
            training = encoder_of(self.model).training
            with nullcontext() if training else fixed_draws(self.device):
                terms = LossTerms(self.compute_terms(columns, labels))
        return terms if self.log_terms else terms.total

    def _check(self, columns: list[Rows]) -> None:
        if len(columns) not in self.columns:
            takes = " or ".join(f"{count} ({what})" for count, what in self.columns.items())
            raise ValueError(
                f"{type(self).__name__} takes {takes} text column(s), got {len(columns)}. {self.columns_hint}"
            )
        for number, rows in enumerate(columns, start=1):
            rows.require_positions(self._positions, number)

    def _prepare(self, rows: Rows) -> None:
        """Set what this step's computation depends on: row counts, modes, and how the encoder may be run."""
        together = self.gather_across_devices and distributed.world_size() > 1
        self.row_counts = RowCounts(len(rows), rows.mask.device if together else None)
        self._set_modes(alone=len(rows) == 1 and not together)
        self._inspect_encoder()

    def _set_modes(self, *, alone: bool) -> None:
        """Put what the loss owns in the mode of this step.

        For a single sentence, the batch's variance is meaningless: BatchNorm then uses its running statistics.
        """
        for part in self._owned():
            part.train(self.is_learning)
            if alone:
                for module in part.modules():
                    if isinstance(module, nn.BatchNorm1d):
                        module.eval()

    def _warn_of_evaluation_mode(self) -> None:
        if not self._warned_of_mode:
            self._warned_of_mode = True
            warn(
                f"{type(self).__name__} was called with gradients and the encoder in evaluation mode, as it is after "
                "loading and after encode(): dropout is off, and the loss's queue and statistics do not change. Call "
                "model.train() before training; in an evaluation, call the loss under torch.no_grad()."
            )

    def _owned(self) -> list[nn.Module]:
        return [part for name, part in self.named_children() if name != "model"]

    def finish_setup(self) -> None:
        """Move what the loss owns to the encoder's device, so that a training loop need not.

        Raises:
            ValueError: what the loss would train is float16, as a copy of a frozen encoder that was loaded so.
        """
        for part in self._owned():
            part.to(self.device)
            require_no_half(part, f"{type(self).__name__} would train copies of the encoder's")
        self._inspect_encoder()


class ContrastiveLoss(TextLoss):
    """Base of the losses with an InfoNCE term.

    Args:
        model: a SentenceTransformer that starts with a token-level Transformer module.
        temperature: tau of InfoNCE, positive.
        gather_across_devices: take the other devices' sentences as negatives too.
        mini_batch_size: sentences that go through the encoder at a time, each in all of its views; None takes the whole
            batch. The backward pass then holds one mini-batch at a time, and each is encoded twice, as in GradCache
            (Gao et al., 2021, arXiv 2101.06983). The gradient is that of the whole batch.
        log_terms: see :class:`TextLoss`.
    """

    may_change: tuple[str, ...] = ("log_terms", "mini_batch_size")

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        temperature: float,
        gather_across_devices: bool,
        mini_batch_size: int | None,
        log_terms: bool,
    ) -> None:
        require_temperature(temperature)
        require_flag("gather_across_devices", gather_across_devices)
        super().__init__(model, log_terms=log_terms)
        if mini_batch_size is not None:
            require_count("mini_batch_size", mini_batch_size)
        self.temperature = temperature
        self.gather_across_devices = gather_across_devices
        self.mini_batch_size = mini_batch_size

    def has_negatives(self, batch_size: int) -> bool:
        """Whether sentences in batches of this size are contrasted with others."""
        gathered = self.gather_across_devices and distributed.world_size() > 1
        return batch_size > 1 or gathered or getattr(self, "queue", None) is not None

    def contrast(
        self,
        anchors: Tensor,
        positives: Tensor,
        negatives: Tensor | None = None,
        negative_weights: Tensor | None = None,
    ) -> Tensor:
        """InfoNCE at the loss's temperature, with ``gather_across_devices`` against the positives of all devices."""
        positives, offset = distributed.gather(positives, self.row_counts.each)
        return self.row_counts.share * info_nce(
            anchors,
            positives,
            temperature=self.temperature,
            negatives=negatives,
            negative_weights=negative_weights,
            offset=offset,
        )

    def share(self, count: Tensor | int) -> Tensor | float:
        """As ``row_counts.share``, for a mean over ``count`` other things, such as masked tokens."""
        if len(self.row_counts.each) == 1:
            return 1.0
        return distributed.share(torch.as_tensor(count, device=self.device))

    def mean_of(self, sums: list[tuple[Tensor, ...]]) -> Tensor:
        """The mean from each group's (sum, count), times :meth:`share`; 0 where the counts are 0."""
        total, count = (torch.stack(part).sum() for part in zip(*sums, strict=True))
        return self.share(count) * total / count.clamp(min=1)

    def apply_head(self, head: nn.Module, vectors: Tensor) -> Tensor:
        """``head(vectors)`` in the head's precision, with the rows of all devices in BatchNorm's statistics if
        ``gather_across_devices``.

        Args:
            head: (n, d) to (n, d').
            vectors: (k N, d), k views of this device's N sentences.
        """
        if self._wrapping.replayed:
            raise ValueError(
                f"{type(self).__name__} has a head, which has one width, and the loss around it, such as "
                "MatryoshkaLoss, cuts the embeddings. Wrap SimCSELoss(head=False)."
            )
        vectors = vectors.to(next(head.parameters(), vectors).dtype)  # the model may be bfloat16 and the head float32
        if len(self.row_counts.each) == 1 or not any(isinstance(part, nn.BatchNorm1d) for part in head.modules()):
            return cast(Tensor, head(vectors))
        views = vectors.shape[0] // self.row_counts.own
        together, offset = distributed.gather(vectors, [views * count for count in self.row_counts.each])
        return cast(Tensor, head(together)[offset : offset + vectors.shape[0]])

    def two_views(self, columns: list[Rows]) -> Tensor:
        """Sentence vectors (2N, d): those of the first column, and then a second view, of the last column."""
        return torch.cat(self.by_rows(lambda *views: self.sentences_of(views[0], views[-1]), *columns))

    def masked_lm(
        self,
        rows: Rows,
        states: Callable[[Rows], tuple[Tensor, Tensor]],
        logits: Callable[[Tensor], Tensor],
        *,
        vocabulary: int,
    ) -> Tensor:
        """Mean cross-entropy of the masked tokens, 0-d. The network runs on groups of rows; its head runs once.

        Args:
            rows: texts with ``masked`` tokens.
            states: the network: some rows to the last hidden states of their M masked positions, (M, d), and these
                positions in the rows' flattened (N x L), (M,).
            logits: the masked-LM head, (M, d) to (M, V).
            vocabulary: V.
        """

        def predict(part: Rows) -> tuple[Tensor, ...]:
            hidden, places = states(part)
            return hidden, part.ids.flatten()[places]

        found = self.by_groups(predict, rows)
        hidden, targets = (torch.cat(parts) for parts in zip(*found, strict=True))
        # One call of the head for all groups: a gradient of its matrix for each would need much memory.
        return self.share(len(targets)) * masked_lm_in_chunks(hidden, targets, logits, vocabulary=vocabulary)

    def warn_without_dropout(self) -> None:
        if has_dropout(self.model):
            return
        setting = dropout_setting(self.model)
        remedy = "Its configuration has no setting for it: use another encoder, or SimCSELoss with two text columns."
        if setting is not None:
            remedy = f"Load it with dropout, for instance Transformer(name, config_kwargs={{{setting!r}: 0.1}}); "
            remedy += "for the command line, save the model with it."
        warn(
            f"{type(self).__name__} takes the encoder's dropout as its only augmentation, and this encoder has none, "
            f"so that both views of a sentence are the same. {remedy}"
        )
