"""Base class of the losses: the steps that a batch goes through, in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Literal

import torch
import torch.distributed as dist
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.func import functional_call

from st_contrastive import distributed
from st_contrastive._arguments import Count, Positive
from st_contrastive._random import fixed_seed
from st_contrastive.components.heads import HEADS
from st_contrastive.encoder import requirements
from st_contrastive.encoder.model_facts import ModelState, embedding_width, text_module, unwrap, weights_dtype
from st_contrastive.encoder.passes import RowChunks
from st_contrastive.encoder.token_batch import TokenBatch
from st_contrastive.losses._description import DescribedLoss
from st_contrastive.losses._owned import owned_state
from st_contrastive.losses.step import LossTerms, Step


class TextLoss(DescribedLoss, ABC):
    """Base of all losses.

    **A subclass** calls ``super().__init__``, builds its components, sets :attr:`columns` and implements
    :meth:`compute_terms`. The arguments of its constructor are checked by their annotations, and kept for the model
    card and for a resumed run. Then what it owns (heads, queues, networks) moves to the encoder's device. Change what
    it owns only where ``step.is_learning`` is True: sentence-transformers leaves a loss in training mode while it
    evaluates. Its parameters start as rank 0's, and their gradients are averaged in the backward pass, since DDP knows
    the encoder only.

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
        temperature: Positive = 0.05,
        head: Literal["tanh", "projector"] | None = None,
        gather_across_devices: bool = False,
        mini_batch_size: Count | None = None,
    ) -> None:
        super().__init__()
        requirements.require_text_encoder(model)
        requirements.require_trainable(model)
        requirements.warn_of_training(model)
        if mini_batch_size is not None:
            requirements.require_independent_rows(model, f"mini_batch_size={mini_batch_size}")
        text_module(model).can_flatten_inputs = False  # flash attention's flat batches: a loss reads rows
        # The trainer replaces this attribute by its DDP or compiled wrapper.
        self.model = model
        self.temperature, self.mini_batch_size = temperature, mini_batch_size
        self.gather_across_devices = gather_across_devices
        self.head = None if head is None else HEADS[head](embedding_width(model), weights_dtype(model))
        #: The most tokens that training reads of a text, where a trainer sets fewer than the model; otherwise None.
        self.max_length: int | None = None
        #: Whether a trainer drops an epoch's last batch, so that all processes have as many rows in each.
        self.has_equal_batches = False
        self._has_learned = False

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> LossTerms:
        """The terms of one batch. Of the losses here, only TwinsLoss with ``fraternal`` takes labels.

        Raises:
            ValueError: the number of columns is wrong, or a column is not tokenised text.
        """
        state = ModelState.of(self.model)
        self._check_model(state)
        batches = self._read_columns(sentence_features, aligned=state.pads_right)
        step = self._make_step(state, len(batches[0]), batches[0].mask.device)
        if step.is_first and len(batches) > 1 and labels is not None and not self.reads_labels:
            self._warn_of_labels(labels)
        self._set_modes(step, len(batches[0]))
        # An evaluation draws the same masks and pairs each time, and leaves training's random numbers untouched.
        draws = nullcontext() if state.encoder.training else fixed_seed()
        with draws, state.precision():
            if step.is_learning and dist.is_available() and dist.is_initialized():
                return self._averaged_terms(step, batches, labels)
            return LossTerms(self.compute_terms(step, batches, labels))

    @abstractmethod
    def compute_terms(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> dict[str, Tensor]:
        """The weighted terms, each 0-d, from the batch of each text column and the labels."""

    def _finish(self) -> None:
        """Move what the loss owns to the encoder's device, so that a training loop doesn't have to, and check it."""
        device = unwrap(self.model).device
        for part in self.owned_modules():
            part.to(device)
            requirements.require_no_half(part, f"{type(self).__name__} would train copies of the encoder's")
        for tensor in (*self.parameters(recurse=False), *self.buffers(recurse=False)):
            tensor.data = tensor.data.to(device)
        if self.dropout_only:
            requirements.warn_without_dropout(self.model, type(self).__name__)

    def owned_modules(self) -> list[nn.Module]:
        """The modules of the loss without the encoder."""
        return [part for name, part in self.named_children() if name != "model"]

    def has_one_width(self) -> bool:
        """Whether the terms are of vectors that a loss around this one can't cut."""
        return bool(self.owned_modules()) or self.mini_batch_size is not None

    def _check_model(self, state: ModelState) -> None:
        """Refuse or warn of changes to the model since the loss was built."""
        name = type(self).__name__
        if torch.is_grad_enabled() and not state.is_training:
            self.warn_once(
                f"{name} was called with gradients and the encoder in evaluation mode, as it is after loading and "
                "after encode(): dropout is off, and the loss's queue and statistics do not change. Call model.train() "
                "before training; in an evaluation, call the loss under torch.no_grad()."
            )
        if state.replays_layers or (state.replays_outputs and self.has_one_width()):
            raise ValueError(
                f"A loss around {name} cuts the embeddings of one pass, or reads its layers, and {name} has a head, a "
                "queue, a pooling or a network of one width, or mini-batches, or hands no layers on. Take "
                "MatryoshkaLoss around SimCSELoss(model, head=None)."
            )
        if state.broadcasts_buffers and self.mini_batch_size is not None:
            raise ValueError(
                "mini_batch_size makes several forward passes a step, before each of which DistributedDataParallel "
                "would broadcast the encoder's buffers: a process with fewer of them would let the others wait for "
                "ever. Wrap the model with broadcast_buffers=False."
            )

    def _read_columns(self, sentence_features: Iterable[dict[str, Any]], *, aligned: bool) -> list[TokenBatch]:
        batches = [TokenBatch.of(features, aligned=aligned) for features in sentence_features]
        self.require_columns(len(batches))
        return batches

    def require_columns(self, count: int) -> None:
        """Refuse another number of text columns than the loss takes."""
        if count not in self.columns:
            takes = " or ".join(f"{number} ({what})" for number, what in self.columns.items())
            raise ValueError(f"{type(self).__name__} takes {takes} text column(s), got {count}. {self.columns_hint}")

    def _make_step(self, state: ModelState, rows: int, device: torch.device) -> Step:
        is_learning = state.is_training and torch.is_grad_enabled()
        on_cpu = device.type == "cpu" and not state.is_compiled
        # Where buffers are broadcast, all processes must make the same number of passes.
        by_length = self.group_by_length and state.ignores_padding and on_cpu and not state.broadcasts_buffers
        row_counts: tuple[int, ...] = ()
        if self.gather_across_devices and distributed.world_size() > 1:
            is_known = is_learning and self.has_equal_batches
            row_counts = (rows,) * distributed.world_size() if is_known else distributed.row_counts(rows, device)
        return Step(
            self.model,
            temperature=self.temperature,
            is_learning=is_learning,
            is_first=is_learning and not self._has_learned,
            chunks=RowChunks(by_length, may_cut=state.ignores_padding, mini_batch_size=self.mini_batch_size),
            row_counts=row_counts,
        )

    def _set_modes(self, step: Step, rows: int) -> None:
        """Put what the loss owns into the step's mode. BatchNorm does not learn from one row, whose variance is 0."""
        if rows == 1 and (step.is_first or not step.is_learning) and not self.has_negatives(rows):
            self.warn_once(
                f"{type(self).__name__} was given a batch of one sentence, which has no other to be contrasted with: "
                "its contrastive loss is 0. Give a batch size of 2 or more, and leave repeated texts out."
            )
        self._has_learned = self._has_learned or step.is_learning
        for part in self.owned_modules():
            one_row = rows == 1 and not step.is_gathered
            fixed = one_row and any(isinstance(module, nn.BatchNorm1d) for module in part.modules())
            mode = step.is_learning and not fixed
            if part.training != mode:  # the call walks through all modules
                part.train(mode)

    def _warn_of_labels(self, labels: Tensor) -> None:
        """ContrastiveTrainer refuses them; fit and SentenceTransformerTrainer hand them on."""
        if labels.ndim == 1 and bool((labels != labels[0]).any()):
            self.warn_once(
                f"{type(self).__name__} does not read the labels, which differ in this batch: each row is trained as "
                "a pair that belongs together. Keep the rows that do."
            )

    def _averaged_terms(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> LossTerms:
        """The terms, whose backward pass averages the gradients of the loss's own parameters over the processes."""
        if step.is_first:
            own = owned_state(self).values()
            distributed.broadcast(part for part in own if isinstance(part, nn.Parameter))
        parameters: dict[str, Tensor] = {
            f"loss.{name}": parameter  # as _Terms names it
            for name, parameter in self.named_parameters()
            if parameter.requires_grad and not name.startswith("model.")
        }
        if not parameters:
            return LossTerms(self.compute_terms(step, batches, labels))
        zero, stand_ins = distributed.averaging(parameters)
        terms = LossTerms(functional_call(_Terms(self), stand_ins, (step, batches, labels)))
        first = next(iter(terms))
        terms[first] = terms[first] + zero.to(terms[first])  # for batches that use none of them
        return terms


class _Terms(nn.Module):
    """A loss's terms as a module's forward pass, for ``functional_call``."""

    def __init__(self, loss: TextLoss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> dict[str, Tensor]:
        return self.loss.compute_terms(step, batches, labels)
