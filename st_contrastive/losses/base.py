"""Base class of the losses, with the steps that every batch goes through."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
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
from st_contrastive.encoder.model_facts import ModelState, embedding_width, unwrap, weights_dtype
from st_contrastive.encoder.passes import RowChunks
from st_contrastive.encoder.token_batch import TokenBatch
from st_contrastive.losses.described_loss import DescribedLoss
from st_contrastive.losses.owned_state import owned_state
from st_contrastive.losses.step import BatchFacts, LossTerms, Step


class TextLoss(DescribedLoss, ABC):
    """Base class of all losses.

    **A subclass** calls ``super().__init__``, builds its components, sets :attr:`columns` and implements
    :meth:`compute_terms`; :attr:`term_weights` has the weights of its terms. The constructor's arguments are checked
    against their annotations and recorded for the model card and for resuming. Afterwards the loss's modules (heads,
    queues, networks) are moved to the encoder's device. Change their buffers only if ``step.is_learning`` is True,
    because sentence-transformers leaves a loss in training mode while it evaluates. On several processes, the loss's
    parameters start with the values of rank 0, and the backward pass averages their gradients, because DDP only knows
    the encoder.

    Args:
        model: SentenceTransformer with a token-level Transformer as its first module.
        temperature: tau of InfoNCE. Cosines are divided by it.
        head: a layer on top of the embeddings, used only in training. "tanh" is SimCSE's Linear and Tanh. "projector"
            is two linear layers with BatchNorm, as in the code of InfoCSE and DiffCSE. None adds no layer.
        gather_across_devices: use the sentences of other devices as negatives too. BatchNorm in a head then computes
            its statistics over the rows of all devices.
        mini_batch_size: how many sentences to encode at a time, to save memory. Each sentence is encoded twice. The
            gradient is the same as for the whole batch (GradCache, Gao et al., 2021, arXiv 2101.06983). None encodes
            all sentences at once.
    """

    #: The numbers of text columns that the loss accepts, with a description of the columns.
    columns: dict[int, str]
    #: Whether, with one column, the positive of a sentence is the same sentence under another dropout mask.
    dropout_only = True
    #: The remedy for a wrong number of columns.
    columns_hint = "Select columns of the dataset, or build it with a function of st_contrastive.inputs."
    #: Encode rows of similar length together on a CPU, where padding costs time.
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
        # The trainer replaces this attribute with its DDP or compiled wrapper.
        self.model = model
        self.temperature, self.mini_batch_size = temperature, mini_batch_size
        self.gather_across_devices = gather_across_devices
        self.head = None if head is None else HEADS[head](embedding_width(model), weights_dtype(model))
        self._batch_facts = BatchFacts()
        self._has_learned = False

    def forward(self, sentence_features: Iterable[dict[str, Any]], labels: Tensor | None = None) -> LossTerms:
        """The weighted terms of one batch.

        Args:
            sentence_features: one dict for each text column, from ``model.preprocess`` or the trainer's collator.
            labels: only TwinsLoss with ``fraternal`` uses labels.

        Raises:
            ValueError: the number of columns is wrong, or a column is not tokenised text.
        """
        state = ModelState.of(self.model)
        self._check_model(state)
        batches = self._read_columns(sentence_features, state)
        step = self._make_step(state, len(batches[0]), batches[0].mask.device)
        if step.is_first and len(batches) > 1 and labels is not None and not self.reads_labels:
            self._warn_of_labels(labels)
        self._set_modes(step, len(batches[0]))
        # An evaluation draws the same masks and pairs each time, and does not change the random numbers of training.
        draws = nullcontext() if state.encoder.training else fixed_seed()
        with draws, state.precision():
            if step.is_learning and dist.is_available() and dist.is_initialized():
                return self._averaged_terms(step, batches, labels)
            return self._weighted_terms(step, batches, labels)

    @abstractmethod
    def compute_terms(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> dict[str, Tensor]:
        """The unweighted terms of one batch by name, each 0-d.

        On several processes this runs inside ``functional_call`` of a :class:`_TermsModule`. The parameters of the
        loss are then replaced by tensors with equal values that average their gradients.

        Args:
            step: encodes and contrasts the batch.
            batches: one TokenBatch for each text column.
            labels: as passed to :meth:`forward`.
        """

    def expect_batches(self, facts: BatchFacts) -> None:
        """Set facts that hold for all batches from now on. ContrastiveTrainer calls this for its runs."""
        self._batch_facts = facts

    def _finish(self) -> None:
        """Move the loss's modules and tensors to the encoder's device, so that training loops don't have to.

        Also check that they can be trained.
        """
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

    def can_be_truncated(self) -> bool:
        """Whether the loss can be computed from the truncated vectors of MatryoshkaLoss."""
        return not self.owned_modules() and self.mini_batch_size is None

    def _check_model(self, state: ModelState) -> None:
        """Refuse changes to the model since the loss was built, or warn about them."""
        name = type(self).__name__
        if torch.is_grad_enabled() and not state.is_training:
            self.warn_once(
                f"{name} was called with gradients, but the encoder is in evaluation mode, the default after loading "
                "and after encode(). Dropout is off, and the loss's queue and statistics do not change. Call "
                "model.train() before training. Call the loss under torch.no_grad() to evaluate it."
            )
        if state.replays_layers:
            raise ValueError(
                f"AdaptiveLayerLoss and Matryoshka2dLoss can't wrap {name}. Use MatryoshkaLoss around "
                "SimCSELoss(model, head=None)."
            )
        if state.replays_outputs and not self.can_be_truncated():
            raise ValueError(
                f"MatryoshkaLoss can't wrap this {name}, which has modules of a fixed width, or uses mini-batches. "
                "Use MatryoshkaLoss around SimCSELoss(model, head=None)."
            )
        if state.broadcasts_buffers and self.mini_batch_size is not None:
            raise ValueError(
                "mini_batch_size makes several forward passes in a step. DistributedDataParallel would broadcast the "
                "encoder's buffers before each of them, and the other processes would wait forever for a process with "
                "fewer passes. Wrap the model with broadcast_buffers=False."
            )

    def _read_columns(self, sentence_features: Iterable[dict[str, Any]], state: ModelState) -> list[TokenBatch]:
        read = partial(TokenBatch.of, aligned=state.pads_right, pad_token_id=state.pad_token_id)
        batches = [read(features) for features in sentence_features]
        self.require_columns(len(batches))
        return batches

    def require_columns(self, count: int) -> None:
        """Refuse a number of text columns that the loss does not accept."""
        if count not in self.columns:
            takes = " or ".join(f"{number} ({what})" for number, what in self.columns.items())
            raise ValueError(f"{type(self).__name__} takes {takes} text column(s), got {count}. {self.columns_hint}")

    def _make_step(self, state: ModelState, rows: int, device: torch.device) -> Step:
        is_learning = state.is_training and torch.is_grad_enabled()
        on_cpu = device.type == "cpu" and not state.is_compiled
        # If buffers are broadcast, all processes must make the same number of passes.
        by_length = self.group_by_length and state.ignores_padding and on_cpu and not state.broadcasts_buffers
        row_counts: tuple[int, ...] = ()
        if self.gather_across_devices and distributed.world_size() > 1:
            are_equal = is_learning and self._batch_facts.have_equal_rows
            row_counts = (rows,) * distributed.world_size() if are_equal else distributed.row_counts(rows, device)
        return Step(
            self.model,
            temperature=self.temperature,
            is_learning=is_learning,
            is_first=is_learning and not self._has_learned,
            max_length=self._batch_facts.max_length,
            chunks=RowChunks(by_length, may_cut=state.ignores_padding, mini_batch_size=self.mini_batch_size),
            row_counts=row_counts,
        )

    def _set_modes(self, step: Step, rows: int) -> None:
        """Set the training mode of the loss's modules. BatchNorm does not learn from one row, which has no variance."""
        if rows == 1 and (step.is_first or not step.is_learning) and not self.has_negatives(rows):
            self.warn_once(
                f"{type(self).__name__} received a batch of one sentence. There is no other sentence to contrast it "
                "with, so the contrastive loss is 0. Use a batch size of 2 or more, and remove repeated texts."
            )
        self._has_learned = self._has_learned or step.is_learning
        for part in self.owned_modules():
            one_row = rows == 1 and not step.is_gathered
            is_fixed = one_row and any(isinstance(module, nn.BatchNorm1d) for module in part.modules())
            mode = step.is_learning and not is_fixed
            if part.training != mode:  # the call walks through all modules
                part.train(mode)

    def _warn_of_labels(self, labels: Tensor) -> None:
        """Warn if labels differ. ContrastiveTrainer refuses such labels; fit and SentenceTransformerTrainer do not."""
        if labels.ndim == 1 and bool((labels != labels[0]).any()):
            self.warn_once(
                f"{type(self).__name__} does not use labels, and they differ in this batch. Each row is trained as a "
                "pair that belongs together. Keep only rows with texts that belong together."
            )

    def _weighted_terms(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> LossTerms:
        """The terms times their weights."""
        weights = self.term_weights
        terms = LossTerms()
        for name, term in self.compute_terms(step, batches, labels).items():
            weight = weights.get(name, 1.0)
            terms[name] = term if weight == 1 else weight * term
        return terms

    def _averaged_terms(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> LossTerms:
        """The weighted terms. Their backward pass averages the gradients of the loss's parameters over the processes.

        For this, :meth:`compute_terms` runs inside ``functional_call`` of a :class:`_TermsModule`, with the parameters
        replaced.
        """
        if step.is_first:
            distributed.broadcast(part for part in owned_state(self).values() if isinstance(part, nn.Parameter))
        parameters: dict[str, Tensor] = {
            f"loss.{name}": parameter  # the name in _TermsModule
            for name, parameter in self.named_parameters()
            if parameter.requires_grad and not name.startswith("model.")
        }
        if not parameters:
            return self._weighted_terms(step, batches, labels)
        zero, replacements = distributed.averaging(parameters)
        terms: LossTerms = functional_call(_TermsModule(self), replacements, (step, batches, labels))
        first = next(iter(terms))
        terms[first] = terms[first] + zero.to(terms[first])  # for batches that use none of the parameters
        return terms


class _TermsModule(nn.Module):
    """Computes a loss's terms in its forward pass, because ``functional_call`` needs a module.

    While it runs, the parameters of the loss are plain tensors, which average their gradients over the processes.
    """

    def __init__(self, loss: TextLoss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> LossTerms:
        return self.loss._weighted_terms(step, batches, labels)
