"""Contrast against a queue of keys from a momentum encoder: MoCo and ESimCSE."""

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
    r"""SimCSE with a queue of past vectors from a momentum encoder, which slowly follows the trained encoder.

    ``positives="encoder"`` is ESimCSE (Wu et al., COLING 2022). The trained encoder encodes both views of a sentence,
    and the negatives are the other sentences of the batch and the momentum encoder's vectors of past sentences (eq. 4
    of the paper). ``positives="momentum"`` is MoCo (He et al., CVPR 2020), where the momentum encoder also encodes the
    positive. Unlike in MoCo, the other keys of the batch are negatives too. The Twins paper compares its queue with
    MoCo's (section 4.4) and does not say which encoder encodes the positive. Term: ``contrastive``.

    The momentum encoder is a copy of the whole model without dropout. With ``positives="momentum"`` it also copies the
    head. In ESimCSE the keys pass through the trained head, as in the authors' code. The momentum encoder is updated
    after each optimizer step, before it encodes the next keys. It starts as a copy of the trained encoder. The
    authors' momentum encoder starts with random weights because of the way they load it, and is still 53 % random
    after 125 steps. Every forward pass adds keys to the queue. With gradient accumulation, each accumulated
    batch adds its keys.

    Args:
        model: SentenceTransformer with a token-level Transformer as its first module with dropout.
        temperature: tau. Cosines are divided by it.
        head: see :class:`TextLoss`. SimCSE uses "tanh".
        momentum: m, the share of its weights that the momentum encoder keeps at each step.
        queue_size: how many sentences the queue keeps. ESimCSE works best with 2.5 batches; MoCo uses 65,536. If the
            queue and a batch hold more sentences than the data, a sentence becomes its own negative.
        positives: which encoder encodes the positives: "encoder" (the trained one) or "momentum".
        repetition_rate: ESimCSE's augmentation, for one column. In the second view of a text of L tokens, up to
            min(10, rate * L) - 1 tokens are repeated. This happens after truncation, so the view gets longer and loses
            no token. ESimCSE uses 0.32 for BERT-base.
    """

    cites = ("wu-etal-2022-esimcse", "he-etal-2020-moco")
    columns = {1: "sentences", 2: "sentences and other forms of them"}

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
            self.columns_hint = "With two columns, the second column replaces the repetition: use repetition_rate=0."
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
        """The momentum encoder's vectors of a batch, (N, d), after it has moved."""
        assert self.momentum_encoder is not None
        if step.is_learning:
            self.momentum_encoder.update(list(unwrap(self.model)), self.head)
        encoder = self.momentum_encoder
        (vectors,) = step.in_chunks(lambda part: (encoder(part).sentences,), batch)
        (keys,) = step.apply_head(self.head if encoder.head is None else encoder.head, vectors)
        return keys
