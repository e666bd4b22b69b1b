"""What every loss here shares: the host's calling convention, and when its own state may change."""

from __future__ import annotations

import inspect
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.func import functional_call

from st_contrastive import distributed
from st_contrastive._checks import require_count, require_flag
from st_contrastive.distributed import RowCounts
from st_contrastive.encoder import (
    dropout_setting,
    has_dropout,
    position_table,
    require_positions,
    require_text_encoder,
    require_trainable,
    text_features,
)
from st_contrastive.encoder.passes import EncoderPasses
from st_contrastive.losses._calling_trainer import Run, present_run
from st_contrastive.losses._state import owned_state
from st_contrastive.objectives import info_nce


class LossTerms(dict[str, Tensor]):
    """Weighted terms of a loss, each 0-d; their sum is the loss.

    The Trainer, and so ``fit``, takes a dict: it adds the terms up and logs each under its name. ``backward`` lets the
    loops that expect a tensor take one too (``old_fit``, a loop of your own).

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


class TextLoss(EncoderPasses, ABC):
    """Base of all losses: checks the columns, gates the loss's own state, returns terms or their sum.

    A subclass calls ``super().__init__``, sets up its components, calls :meth:`_ready` last and implements
    :meth:`compute_terms`.

    What the loss owns (heads, queues, auxiliary networks) changes in training only. sentence-transformers leaves a
    loss in training mode while it evaluates, and switches the encoder alone, so the encoder's mode and PyTorch's
    gradient mode decide: see :attr:`is_learning`.

    Where several processes train, what the loss owns starts as rank 0's, and its gradients are averaged over the ranks
    in the backward pass, since DDP knows of the encoder alone. The rest (one norm to clip by, checkpoints) is the
    trainer's: see :mod:`st_contrastive.training`.

    Args:
        model: a SentenceTransformer that starts with a token-level Transformer module.
        log_terms: return a :class:`LossTerms` (True), or the sum as one 0-d tensor (False), for what can't take a dict:
            mixed precision under ``old_fit``, or ``MatryoshkaLoss`` around ``SimCSELoss(head=False)``. (A head has one
            width, so that wrappers that cut the embeddings can't go around a loss with one.)
    """

    #: How many text columns the loss takes, and what they are.
    columns: dict[int, str]
    columns_hint = "Select the columns of the dataset, or build it with the builders of st_contrastive.inputs."
    #: Whether the rows of all ranks are one batch.
    gather_across_devices = False
    #: Arguments that a resumed run may change: they do not alter what is trained, or only tell where state came from
    #: that a checkpoint restores.
    may_change: tuple[str, ...] = ("log_terms",)

    def __init__(self, model: SentenceTransformer, *, log_terms: bool) -> None:
        super().__init__()
        require_flag("log_terms", log_terms)
        require_text_encoder(model)
        require_trainable(model)
        # Under this name alone the trainer puts its DDP or compiled wrapper in.
        self.model = model
        self.log_terms = log_terms
        self._positions = position_table(model)
        self._state_is_kept = False
        self._state_was_restored = False
        self._averages_gradients = True
        self._run: Run | None = None
        self.rows = RowCounts(0)

    @abstractmethod
    def compute_terms(self, columns: list[dict[str, Any]], labels: Tensor | None) -> dict[str, Tensor]:
        """The weighted terms, from one dict of right-padded text tensors a column, and the labels that came along."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Keep the constructor's arguments, for :meth:`get_config_dict`."""
        loss = super().__new__(cls)
        with suppress(TypeError):  # arguments that do not fit, which __init__ refuses; none at all in copying
            bound = inspect.signature(cls.__init__).bind(loss, *args, **kwargs)
            bound.apply_defaults()
            vars(loss)["_arguments"] = {k: v for k, v in bound.arguments.items() if k not in ("self", "model")}
        return loss

    def get_config_dict(self) -> dict[str, Any]:
        """The constructor's arguments but for the model, for the model card and for building the loss again."""
        arguments: dict[str, Any] = vars(self)["_arguments"]
        return {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in arguments.items()}

    @property
    @abstractmethod
    def citation(self) -> str:
        """BibTeX of the paper, for the model card."""

    @property
    def is_learning(self) -> bool:
        """Whether this forward pass is a step of training, so that queues and statistics may change."""
        return self.model.training and torch.is_grad_enabled()

    def forward(
        self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None
    ) -> dict[str, Tensor] | Tensor:
        """Terms, or their sum, of one batch. Labels are used where a loss says so, by TwinsLoss with ``fraternal``.

        Raises:
            ValueError: the columns are not as many as the loss takes, or not tokenised text, or a text is longer than
                the encoder has positions for.
        """
        if self.is_learning and not self._state_is_kept:
            self._begin(present_run())
        columns = self._checked(list(sentence_features))
        self._prepare(columns[0]["input_ids"])
        if self.is_learning and self._averages_gradients and distributed.world_size() > 1:
            terms = LossTerms(self._terms_with_averaged_gradients(columns, labels))
        else:
            terms = LossTerms(self.compute_terms(columns, labels))
        return terms if self.log_terms else terms.total

    def keep_state(self, *, averages_gradients: bool) -> None:
        """Called by ``st_contrastive.training`` when a trainer begins to clip and save what the loss owns.

        Args:
            averages_gradients: the loss averages the gradients of what it owns over the processes in its backward
                pass; False leaves that to the trainer.
        """
        self._state_is_kept, self._averages_gradients = True, averages_gradients

    def release_state(self) -> None:
        """Called by ``st_contrastive.training`` when the trainer's run has ended."""
        self._state_is_kept, self._averages_gradients = False, True

    def note_restored_state(self) -> None:
        """Called by ``st_contrastive.training`` when what the loss owns was read from a checkpoint."""
        self._state_was_restored = True

    def _checked(self, columns: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The text tensors of each column, right-padded."""
        if len(columns) not in self.columns:
            takes = " or ".join(f"{count} ({what})" for count, what in self.columns.items())
            raise ValueError(
                f"{type(self).__name__} takes {takes} text column(s), got {len(columns)}. {self.columns_hint}"
            )
        texts = [text_features(column, self.model) for column in columns]
        require_positions(texts, self._positions)
        return texts

    def _prepare(self, ids: Tensor) -> None:
        """Set what this step's computation depends on: row counts, modes, and how the encoder may be run."""
        together = self.gather_across_devices and distributed.world_size() > 1
        self.rows = RowCounts(len(ids), ids.device if together else None)
        self._set_modes(alone=len(ids) == 1 and not together)
        self._look_at_encoder()

    def _set_modes(self, *, alone: bool) -> None:
        """Put what the loss owns in the mode of this step.

        A loader's last batch may be one sentence. Its few views have no useful variance, so BatchNorm then takes, and
        keeps, its running statistics.
        """
        for part in self._owned():
            part.train(self.is_learning)
            if alone:
                for module in part.modules():
                    if isinstance(module, nn.BatchNorm1d):
                        module.eval()

    def _begin(self, run: Run) -> None:
        """At the first step of a run: what the loss owns becomes the same on all ranks, and what it lacks is said."""
        if run == self._run:
            return
        self._run = run
        restored, self._state_was_restored = self._state_was_restored, False
        owned = owned_state(self)
        if not owned:
            return
        cure = (
            "Train with st_contrastive.training.ContrastiveTrainer, or give the trainer "
            "callbacks=[st_contrastive.training.LossStateCallback(loss)]"
        )
        if run.resumed_at and not restored:
            warnings.warn(
                f"Training was resumed at step {run.resumed_at} without the state that {type(self).__name__} owns, "
                f"which starts anew. {cure}; with fit, call load_loss_state(loss, checkpoint) before.",
                stacklevel=4,
            )
        if distributed.world_size() > 1:
            if run.losses > 1:
                raise ValueError(
                    f"In the same step each device has a batch of another dataset, and so another loss than "
                    f"{type(self).__name__}, whose gradients would be averaged with none. {cure}."
                )
            if not distributed.alike(restored, self.model.device):
                raise ValueError("load_loss_state was called on some of the devices only: call it on all.")
            if not restored:
                distributed.broadcast(owned.values())
            warnings.warn(
                f"{type(self).__name__} owns state that is neither clipped nor saved in checkpoints here, on "
                f"{distributed.world_size()} devices; its gradients are averaged over them. {cure}.",
                stacklevel=4,
            )

    def _terms_with_averaged_gradients(self, columns: list[dict[str, Any]], labels: Tensor | None) -> dict[str, Tensor]:
        """The terms; the gradients of what the loss owns come back averaged over the processes."""
        # Met at every step: the names tell what is owned, without a look at the encoder's state.
        own: dict[str, Tensor] = {
            f"loss.{name}": parameter
            for name, parameter in self.named_parameters()
            if parameter.requires_grad and not name.startswith("model.")
        }
        if not own:
            return self.compute_terms(columns, labels)
        zero, stand_ins = distributed.averaging(own)
        terms: dict[str, Tensor] = functional_call(_Terms(self), stand_ins, (columns, labels))
        first = next(iter(terms))
        return {**terms, first: terms[first] + zero.to(terms[first])}

    def _owned(self) -> list[nn.Module]:
        return [part for name, part in self.named_children() if name != "model"]

    def _ready(self) -> None:
        """Move what the loss owns to the encoder's device: a training loop of one's own need not."""
        for part in self._owned():
            part.to(self.model.device)
        self._look_at_encoder()


class _Terms(nn.Module):
    """A loss's terms as a module's forward pass, which is what ``functional_call`` runs."""

    def __init__(self, loss: TextLoss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, columns: list[dict[str, Any]], labels: Tensor | None) -> dict[str, Tensor]:
        return self.loss.compute_terms(columns, labels)


class ContrastiveLoss(TextLoss):
    """Base of the losses with an InfoNCE term.

    Args:
        model: a SentenceTransformer that starts with a token-level Transformer module.
        temperature: tau of InfoNCE, positive.
        gather_across_devices: take the other devices' sentences as negatives too.
        log_terms: see :class:`TextLoss`.
        mini_batch_size: sentences that go through the encoder at a time, each in all of its views; None takes the whole
            batch. What is held for the backward pass is then that of one mini-batch, and each is encoded twice, as in
            GradCache (Gao et al., 2021, arXiv 2101.06983). The gradient is that of the whole batch.
    """

    may_change: tuple[str, ...] = ("log_terms", "mini_batch_size")

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        temperature: float,
        gather_across_devices: bool,
        log_terms: bool,
        mini_batch_size: int | None,
    ) -> None:
        number = isinstance(temperature, (int, float)) and not isinstance(temperature, bool)
        if not number or not 0 < temperature < float("inf"):
            raise ValueError(f"temperature must be a positive number, got {temperature!r}; the papers use 0.05.")
        require_flag("gather_across_devices", gather_across_devices)
        super().__init__(model, log_terms=log_terms)
        if mini_batch_size is not None:
            require_count("mini_batch_size", mini_batch_size)
        self.temperature = temperature
        self.gather_across_devices = gather_across_devices
        self.mini_batch_size = mini_batch_size

    def contrast(
        self,
        anchors: Tensor,
        positives: Tensor,
        negatives: Tensor | None = None,
        negative_weights: Tensor | None = None,
    ) -> Tensor:
        """InfoNCE at the loss's temperature, against the positives of all devices where that was asked for."""
        positives, offset = distributed.gather(positives, self.rows.each)
        return self.rows.share * info_nce(
            anchors,
            positives,
            temperature=self.temperature,
            negatives=negatives,
            negative_weights=negative_weights,
            offset=offset,
        )

    def share(self, count: Tensor | int) -> Tensor | float:
        """As ``rows.share``, for a mean over ``count`` things that are not rows, such as masked tokens."""
        if len(self.rows.each) == 1:
            return 1.0
        return distributed.share(torch.as_tensor(count, device=self.model.device))

    def mean_of(self, sums: list[tuple[Tensor, ...]]) -> Tensor:
        """The mean of the groups' (sum, count), as it averages over the devices to the mean over all that was counted;
        0 where nothing was."""
        total, count = (torch.stack(part).sum() for part in zip(*sums, strict=True))
        return self.share(count) * total / count.clamp(min=1)

    def through(self, head: nn.Module, vectors: Tensor) -> Tensor:
        """``head(vectors)``, in the head's precision. If the rows of all devices are one batch, BatchNorm takes its
        statistics over them.

        Args:
            head: (n, d) to (n, d').
            vectors: (k N, d), k views of this device's N sentences.
        """
        views = vectors.shape[0] // self.rows.own
        vectors = vectors.to(next(head.parameters(), vectors).dtype)  # a model in half precision, a head in float32
        together, offset = distributed.gather(vectors, [views * count for count in self.rows.each])
        return cast(Tensor, head(together)[offset : offset + vectors.shape[0]])

    def _warn_without_dropout(self) -> None:
        if not has_dropout(self.model):
            warnings.warn(
                f"{type(self).__name__} takes the encoder's dropout as its only augmentation, and this encoder has "
                "none: both views of a sentence are the same. Load it with dropout, for instance "
                f"Transformer(name, config_kwargs={{{dropout_setting(self.model)!r}: 0.1}}).",
                stacklevel=3,
            )
