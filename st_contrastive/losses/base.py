"""Base class of the losses: reading a batch, the step, encoder passes, the contrastive term, and what a loss owns."""

from __future__ import annotations

import inspect
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from importlib import resources
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_contrastive import distributed
from st_contrastive._checks import require_choice, require_count, require_flag, require_number, warn
from st_contrastive.components.heads import HEADS
from st_contrastive.distributed import RowCounts
from st_contrastive.encoder.model import (
    dropout_setting,
    embedding_width,
    has_dropout,
    text_module,
    unwrap,
)
from st_contrastive.encoder.passes import Encoded, Function, Grouping, Part, forward_views, in_order
from st_contrastive.encoder.requirements import (
    require_independent_rows,
    require_no_half,
    require_text_encoder,
    require_trainable,
)
from st_contrastive.encoder.rows import Rows
from st_contrastive.losses._step import averaged_terms, read_columns, step
from st_contrastive.losses.terms import LossTerms
from st_contrastive.objectives import info_nce


class TextLoss(nn.Module, ABC):
    """Base of all losses.

    **A subclass** calls ``super().__init__``, builds its components, calls :meth:`finish_setup` last, sets
    :attr:`columns` and implements :meth:`compute_terms`. Its contract:

    - A function given to :meth:`by_rows` or :meth:`mean_over` may run again in the backward pass, and on some of the
      rows at a time. It changes no state; random tokens are drawn before it.
    - What the loss owns (heads, queues, networks) changes where ``is_learning`` is True: sentence-transformers leaves a
      loss in training mode while it evaluates.
    - A mean over this process's rows is multiplied by ``self.row_counts.share``, a mean over other things by
      :meth:`share`. The terms then average over the processes to those of one process with all rows. The parameters of
      the loss start as rank 0's, and their gradients are averaged in the backward pass, since DDP knows the encoder
      only.

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

    #: Keys of the papers in citations.bib.
    cites: tuple[str, ...] = ()
    #: The numbers of text columns that the loss takes, and what the columns are.
    columns: dict[int, str]
    #: Whether a sentence's positive is that sentence under another dropout mask, where there is one column.
    dropout_only = True
    columns_hint = "Select the columns of the dataset, or build it with the builders of st_contrastive.inputs."
    #: Arguments that a resumed run may change: they do not alter what is trained, or only name the source of state that
    #: a checkpoint restores.
    may_change: tuple[str, ...] = ("mini_batch_size",)
    #: Put rows of similar length through the encoder together: on a CPU, where each pass costs its padding.
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
        require_text_encoder(model)
        require_trainable(model)
        if mini_batch_size is not None:
            require_count("mini_batch_size", mini_batch_size)
            require_independent_rows(model, f"mini_batch_size={mini_batch_size}")
        text_module(model).can_flatten_inputs = False  # flash attention's flat batches: a loss reads rows
        # The trainer replaces this attribute by its DDP or compiled wrapper.
        self.model = model
        self.temperature, self.mini_batch_size = temperature, mini_batch_size
        self.gather_across_devices = gather_across_devices
        self.head = None if head is None else HEADS[head](embedding_width(model))
        self.row_counts = RowCounts(0)
        #: Set at the beginning of each step: whether it is one of training, where queues and statistics may change; how
        #: rows go through the encoder.
        self.is_learning, self.grouping = False, Grouping()
        self.has_begun = False
        #: Batches of one sentence in a row, in training (True) and in evaluation.
        self.singles: dict[bool, int] = {}
        self._warned_of: set[str] = set()

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> LossTerms:
        """The terms of one batch. Only TwinsLoss with ``fraternal`` reads the labels.

        Raises:
            ValueError: the number of columns is wrong, a column is not tokenised text, or one sentence has nothing to
                be contrasted with.
        """
        columns = read_columns(self, sentence_features)
        with step(self, columns[0]):
            return averaged_terms(self, columns, labels)

    @abstractmethod
    def compute_terms(self, columns: list[Rows], labels: Tensor | None) -> dict[str, Tensor]:
        """The weighted terms of a batch, each 0-d, from the rows of each text column and the batch's labels."""

    # What a subclass computes with.

    def encode(self, *views: Rows) -> tuple[Tensor, ...]:
        """The sentence vectors (N, d) of each view, all in one pass."""
        return self.by_rows(lambda *part: tuple(view.sentences for view in self.forward_views(*part)), *views)

    def by_rows(self, function: Function, *parts: Part) -> tuple[Tensor, ...]:
        """``function(*parts)``, whose results have an entry for each row, in mini-batches or groups of similar length.

        Args:
            function: treats each row by itself. It may run again in the backward pass.
            parts: what it is given, each with an entry for each row: at least one of them Rows.
        """
        return in_order(self.grouping.run(function, parts))

    def mean_over(self, function: Function, *parts: Part) -> tuple[Tensor, ...]:
        """The means of what ``function(*parts)`` gives as sums and a count, in groups of rows as in :meth:`by_rows`.

        They are multiplied by :meth:`share`, and 0 where there is nothing to count.
        """
        groups = [tensors for tensors, _ in self.grouping.run(function, parts)]
        *sums, count = (torch.stack(column).sum() for column in zip(*groups, strict=True))
        return tuple(self.share(count) * total / count.clamp(min=1) for total in sums)

    def forward_views(self, *views: Rows, hooked: bool = False) -> list[Encoded]:
        """The views through the model in one pass; ``hooked`` where the states of single layers are read."""
        if hooked and isinstance(self.model, nn.DataParallel):
            raise ValueError(
                "This loss reads the states of single layers, which DataParallel's replicas would mix. Start one "
                "process for each device (torchrun), or show the trainer one device (CUDA_VISIBLE_DEVICES=0)."
            )
        return forward_views(self.model, views, hooked=hooked)

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
        if len(self.row_counts.each) == 1 or not any(isinstance(part, nn.BatchNorm1d) for part in head.modules()):
            projected: Tensor = head(vectors)
            return projected
        views = len(vectors) // self.row_counts.here
        gathered, offset = distributed.gather(vectors, [views * count for count in self.row_counts.each])
        mine: Tensor = head(gathered)[offset : offset + len(vectors)]
        return mine

    def info_nce(
        self,
        anchors: Tensor,
        positives: Tensor,
        negatives: Tensor | None = None,
        negative_weights: Tensor | None = None,
    ) -> Tensor:
        """InfoNCE at the loss's temperature, with ``gather_across_devices`` against the positives of all devices."""
        positives, offset = self.gather(positives)
        return self.row_counts.share * info_nce(
            anchors,
            positives,
            temperature=self.temperature,
            negatives=negatives,
            negative_weights=negative_weights,
            offset=offset,
        )

    def gather(self, vectors: Tensor) -> tuple[Tensor, int]:
        """The rows of all devices if ``gather_across_devices``, else the rows; and the first one's index."""
        return distributed.gather(vectors, self.row_counts.each)

    def share(self, count: Tensor) -> Tensor | float:
        """As ``row_counts.share``, for a mean over ``count`` other things, such as masked tokens."""
        return 1.0 if len(self.row_counts.each) == 1 else distributed.share(count)

    # What the host and the trainer ask.

    def has_negatives(self, batch_size: int) -> bool:
        """Whether sentences in batches of this size are contrasted with others."""
        gathered = self.gather_across_devices and distributed.world_size() > 1
        return batch_size > 1 or gathered or getattr(self, "queue", None) is not None

    def chance_levels(self, batch_size: int) -> dict[str, float]:
        """The value of each contrasted term if all vectors are equal, by its name in the logs; none where nothing is
        contrasted. Training that ends there has collapsed."""
        return {"contrastive": self.chance_level(batch_size)}

    def chance_level(self, batch_size: int, *, queue: bool = True) -> float:
        """InfoNCE of equal vectors: the logarithm of the number of candidates, those of other devices and, with
        ``queue``, the weights of the queue's included."""
        candidates = batch_size * (distributed.world_size() if self.gather_across_devices else 1)
        past = getattr(self, "queue", None) if queue else None
        return math.log(candidates + (0.0 if past is None else float(past.entries()[1].sum())))

    def get_config_dict(self) -> dict[str, Any]:
        """The constructor's arguments but for the model: for the model card and for a resumed run."""
        return dict(vars(self)["_arguments"])

    @property
    def citation(self) -> str:
        """BibTeX of the papers, for the model card."""
        entries = resources.files(__package__).joinpath("citations.bib").read_text(encoding="utf-8").split("\n@")
        return "\n".join(f"@{entry.strip('@')}" for entry in entries if any(f"{{{key}," in entry for key in self.cites))

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Keep the constructor's arguments, for :meth:`get_config_dict`; of a module, its description."""
        loss = super().__new__(cls)
        with suppress(TypeError):  # __init__ reports wrong arguments; copying passes none
            bound = inspect.signature(cls.__init__).bind(loss, *args, **kwargs)
            bound.apply_defaults()
            kept = {name: value for name, value in bound.arguments.items() if name not in ("self", "model")}
            vars(loss)["_arguments"] = {name: _described(value) for name, value in kept.items()}
        return loss

    # Set-up and the step.

    def finish_setup(self) -> None:
        """Move what the loss owns to the encoder's device, so that a training loop need not.

        Raises:
            ValueError: what the loss would train is float16, as a copy of a frozen encoder that was loaded so.
        """
        for part in self.owned_modules():
            part.to(unwrap(self.model).device)
            require_no_half(part, f"{type(self).__name__} would train copies of the encoder's")
        if self.dropout_only and not has_dropout(self.model):
            setting = dropout_setting(self.model)
            remedy = "Its configuration has no setting for it: use another encoder, or SimCSELoss with two columns."
            if setting is not None:
                remedy = f"Load it with dropout, for instance Transformer(name, config_kwargs={{{setting!r}: 0.1}}); "
                remedy += "for the command line, save the model with it."
            warn(
                f"{type(self).__name__} takes the encoder's dropout as its only augmentation, and this encoder has "
                f"none, so that both views of a sentence are the same. {remedy}"
            )

    def owned_modules(self) -> list[nn.Module]:
        """The modules of the loss without the encoder."""
        return [part for name, part in self.named_children() if name != "model"]

    def warn_once(self, message: str) -> None:
        """Warn of something that one warning is enough for."""
        if message not in self._warned_of:
            self._warned_of.add(message)
            warn(message)


def _described(value: Any) -> Any:
    if isinstance(value, nn.Module):
        return f"{type(value).__name__}({value.extra_repr()})"
    return os.fspath(value) if isinstance(value, os.PathLike) else value
