"""Contrast against a queue of a momentum encoder's keys: MoCo, and ESimCSE."""

from __future__ import annotations

from typing import Literal

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_contrastive._checks import require_choice, require_count, require_number
from st_contrastive.components import MomentumEncoder, NegativeQueue
from st_contrastive.encoder.model import embedding_width, unwrap
from st_contrastive.encoder.passes import forward_modules
from st_contrastive.encoder.rows import Rows
from st_contrastive.losses.base import TextLoss


class MomentumContrastLoss(TextLoss):
    r"""SimCSE with a queue of past vectors, made by a momentum encoder that slowly follows the trained one.

    With ``positives="encoder"`` this is ESimCSE (Wu et al., COLING 2022): both views of a sentence through the trained
    encoder, InfoNCE over the batch, and the momentum encoder's vectors of past sentences as further negatives (eq. 4 of
    the paper). With ``positives="momentum"`` it is MoCo (He et al., CVPR 2020): the positive, too, is the momentum
    encoder's. The batch's other keys are negatives beside the queue's, which MoCo does not have. The Twins paper
    compares its queue with MoCo's (section 4.4) and leaves open whose positive it takes. Term: ``contrastive``.

    The momentum encoder is the whole model, its modules and the head, without dropout. It takes a step after each of
    the optimizer's, before it makes the next keys. The queue is filled at each forward pass: under gradient
    accumulation, with each accumulated part.

    ESimCSE's second column repeats some of a sentence's words: ``st_contrastive.augmentations.WordRepetition``.

    Args:
        model: SentenceTransformer that starts with a token-level Transformer module, its dropout on.
        temperature: tau, which the cosines are divided by.
        head: see :class:`TextLoss`; "tanh" is SimCSE's.
        momentum: m, the share that the momentum encoder keeps of itself at each step.
        queue_size: sentences that are kept; 0 keeps none. ESimCSE's best is 2.5 batches; MoCo takes 65,536. With fewer
            sentences than the queue and a batch hold, a sentence meets itself as a negative.
        positives: which encoder makes the positives: "encoder" (the trained one) or "momentum".
    """

    cites = ("wu-etal-2022-esimcse", "he-etal-2020-moco")
    columns = {1: "sentences", 2: "sentences and another form of each"}

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        temperature: float = 0.05,
        head: Literal["tanh", "projector"] | None = "tanh",
        momentum: float = 0.995,
        queue_size: int = 160,
        positives: Literal["encoder", "momentum"] = "encoder",
        gather_across_devices: bool = False,
        mini_batch_size: int | None = None,
    ) -> None:
        super().__init__(
            model,
            temperature=temperature,
            head=head,
            gather_across_devices=gather_across_devices,
            mini_batch_size=mini_batch_size,
        )
        require_number("momentum", momentum, below=1)
        require_choice("positives", positives, ("encoder", "momentum"))
        require_count("queue_size", queue_size, least=0)
        self.positives = positives
        self.momentum_encoder = MomentumEncoder(self._followed(), momentum)
        self.queue = NegativeQueue(embedding_width(model), size=queue_size) if queue_size > 0 else None
        self.finish_setup()

    def compute_terms(self, columns: list[Rows], labels: Tensor | None) -> dict[str, Tensor]:
        negatives = () if self.queue is None else self.queue.entries()
        if self.positives == "momentum":
            positives = keys = self._keys(columns[-1])
            (anchors,) = self.project(*self.encode(columns[0]))
        else:
            anchors, positives = self.project(*self.encode(columns[0], columns[-1]))
            keys = self._keys(columns[0]) if self.queue is not None and self.is_learning else positives
        contrastive = self.info_nce(anchors, positives, *negatives)
        if self.queue is not None and self.is_learning:
            self.queue.push(self.gather(keys)[0])
        return {"contrastive": contrastive}

    def _followed(self) -> list[nn.Module]:
        return [*unwrap(self.model), *([] if self.head is None else [self.head])]

    def _keys(self, rows: Rows) -> Tensor:
        """The momentum encoder's vectors of a batch, after its step."""
        if self.is_learning:
            self.momentum_encoder.update(self._followed())
        with torch.no_grad():
            return self.by_rows(self._encode_keys, rows)[0]

    def _encode_keys(self, rows: Rows) -> tuple[Tensor, ...]:
        modules = list(self.momentum_encoder.copies)
        head = None if self.head is None else modules.pop()
        vectors = forward_modules(modules, rows).sentences
        return (vectors if head is None else head(vectors.to(next(head.parameters()).dtype)),)
