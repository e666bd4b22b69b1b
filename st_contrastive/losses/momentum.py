"""Contrast against a queue of a momentum encoder's keys: MoCo, and ESimCSE."""

from __future__ import annotations

from typing import Literal

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_contrastive._arguments import Count, CountOrZero, Momentum, Positive, Share
from st_contrastive.components import MomentumEncoder, NegativeQueue, TokenRepetition
from st_contrastive.encoder.model_facts import embedding_width, get_encoder, learned_positions, unwrap, weights_dtype
from st_contrastive.encoder.token_batch import TokenBatch
from st_contrastive.losses.base import TextLoss
from st_contrastive.losses.step import Step


class MomentumContrastLoss(TextLoss):
    r"""SimCSE with a queue of past vectors, made by a momentum encoder that slowly follows the trained one.

    With ``positives="encoder"`` this is ESimCSE (Wu et al., COLING 2022): both views of a sentence through the trained
    encoder, InfoNCE over the batch, and the momentum encoder's vectors of past sentences as further negatives (eq. 4 of
    the paper). With ``positives="momentum"`` it is MoCo (He et al., CVPR 2020): the positive, too, is the momentum
    encoder's. The batch's other keys are negatives beside the queue's, which MoCo does not have. The Twins paper
    compares its queue with MoCo's (section 4.4) and leaves open whose positive it takes. Term: ``contrastive``.

    The momentum encoder is the whole model without dropout; with ``positives="momentum"``, the head too. In ESimCSE the
    keys pass through the trained head, as in the authors' code. It moves after each of the optimizer's steps, before it
    makes the next keys. It starts as the trained encoder; the authors' starts with random weights, because of how they
    load it, and 53 % of them are left after 125 steps. The queue is filled at each forward pass: under gradient
    accumulation, with each accumulated part.

    Args:
        model: SentenceTransformer that starts with a token-level Transformer module, its dropout on.
        temperature: tau, which the cosines are divided by.
        head: see :class:`TextLoss`; "tanh" is SimCSE's.
        momentum: m, the share that the momentum encoder keeps of itself at each step.
        queue_size: sentences that are kept; 0 keeps none. ESimCSE's best is 2.5 batches; MoCo takes 65,536. With fewer
            sentences than the queue and a batch hold, a sentence meets itself as a negative.
        positives: which encoder makes the positives: "encoder" (the trained one) or "momentum".
        repetition_rate: ESimCSE's augmentation, for one column: in the second view of a text of L tokens, up to
            min(10, rate * L) - 1 of them are repeated, after truncation, so that the view is longer and loses nothing.
            ESimCSE takes 0.32 for BERT-base. 0 repeats none.
    """

    cites = ("wu-etal-2022-esimcse", "he-etal-2020-moco")
    columns = {1: "sentences", 2: "sentences and another form of each"}

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        temperature: Positive = 0.05,
        head: Literal["tanh", "projector"] | None = "tanh",
        momentum: Momentum = 0.995,
        queue_size: CountOrZero = 160,
        positives: Literal["encoder", "momentum"] = "encoder",
        repetition_rate: Share = 0.0,
        gather_across_devices: bool = False,
        mini_batch_size: Count | None = None,
    ) -> None:
        super().__init__(
            model,
            temperature=temperature,
            head=head,
            gather_across_devices=gather_across_devices,
            mini_batch_size=mini_batch_size,
        )
        self.positives = positives
        self.repetition: TokenRepetition | None = None
        if repetition_rate > 0:
            self.columns = {1: "sentences"}
            self.columns_hint = "Of two columns, the second is another form of each sentence: take repetition_rate=0."
            self.dropout_only = False
            self.repetition = TokenRepetition(repetition_rate, learned_positions(get_encoder(model)))
        self.queue: NegativeQueue | None = None
        if queue_size > 0:
            self.queue = NegativeQueue(embedding_width(model), size=queue_size, dtype=weights_dtype(model))
        self.momentum_encoder: MomentumEncoder | None = None
        if positives == "momentum" or self.queue is not None:
            copied = self.head if positives == "momentum" else None
            self.momentum_encoder = MomentumEncoder(list(unwrap(model)), momentum, copied)

    def compute_terms(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> dict[str, Tensor]:
        first, second = batches[0], batches[-1]
        if self.repetition is not None:
            second = self.repetition(first)
        negatives = () if self.queue is None else self.queue.keys_and_weights()
        if self.positives == "momentum":
            positives = keys = self._next_keys(step, second)
            (anchors,) = step.apply_head(self.head, *step.encode(first))
        else:
            anchors, positives = step.apply_head(self.head, *step.encode(first, second))  # (N, d) each
            keys = self._next_keys(step, first) if self.queue is not None and step.is_learning else positives
        contrastive = step.info_nce(anchors, positives, *negatives)
        if self.queue is not None and step.is_learning:
            self.queue.enqueue(step.gather(keys))
        return {"contrastive": contrastive}

    @torch.no_grad()
    def _next_keys(self, step: Step, batch: TokenBatch) -> Tensor:
        """The momentum encoder's vectors of a batch, (N, d), after its step."""
        assert self.momentum_encoder is not None
        if step.is_learning:
            self.momentum_encoder.update(list(unwrap(self.model)), self.head)
        encoder = self.momentum_encoder
        (vectors,) = step.in_chunks(lambda part: (encoder(part).sentences,), batch)
        (keys,) = step.apply_head(self.head if encoder.head is None else encoder.head, vectors)
        return keys
