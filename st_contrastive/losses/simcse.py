"""SimCSE, the baseline on which the other methods build."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_contrastive._arguments import Count, Positive, PositiveShare, Weight
from st_contrastive.components import MaskedLMHead, TokenCorruption
from st_contrastive.encoder.model_facts import get_encoder, get_tokenizer
from st_contrastive.encoder.passes import run_model
from st_contrastive.encoder.requirements import require_plain_tokens
from st_contrastive.encoder.token_batch import CorruptedTokens, TokenBatch, pad_to_width
from st_contrastive.losses.base import TextLoss
from st_contrastive.losses.step import Step


class SimCSELoss(TextLoss):
    """Unsupervised SimCSE (Gao et al., EMNLP 2021): InfoNCE between two dropout masks of each sentence.

    Terms: ``contrastive`` (eq. 1 and 4 of the paper) and, with ``mlm_weight``, ``mlm``. With two columns and
    ``head=None`` this is ``MultipleNegativesRankingLoss`` with ``scale=20``.

    Args:
        model: SentenceTransformer with a token-level Transformer as its first module with dropout.
        temperature: tau. Cosines are divided by it.
        head: see :class:`TextLoss`. The paper uses "tanh".
        mlm_weight: weight of the paper's auxiliary masked-LM objective. The encoder reads both copies of each sentence
            a second time, with different tokens masked in each copy. SimCSE's authors use 0.1. The masked-LM head comes
            from the checkpoint, or is new if the checkpoint has none. As in the authors' code, its matrix starts as a
            copy of the token embeddings and is trained separately.
        mask_rate: share of the tokens that are masked for this objective.

    Example:
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import SimCSELoss
        >>> model = SentenceTransformer("all-MiniLM-L6-v2", device="cpu").train()
        >>> loss = SimCSELoss(model)
        >>> terms = loss([model.preprocess(["A cat sleeps.", "It rains in Oslo."])])
        >>> list(terms), terms["contrastive"].shape
        (['contrastive'], torch.Size([]))
    """

    cites = ("gao-etal-2021-simcse",)
    columns = {1: "sentences", 2: "sentences and other forms of them"}
    only_used_with = {"mask_rate": "mlm_weight"}

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        temperature: Positive = 0.05,
        head: Literal["tanh", "projector"] | None = "tanh",
        mlm_weight: Weight = 0.0,
        mask_rate: PositiveShare = 0.15,
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
        self.mlm_weight = mlm_weight
        self.mlm_head: MaskedLMHead | None = None
        if mlm_weight > 0:
            require_plain_tokens(model, "mlm_weight")
            self.masking = TokenCorruption.masking(get_tokenizer(model), mask_rate)
            self.mlm_head = MaskedLMHead.for_encoder(get_encoder(model))

    @property
    def term_weights(self) -> Mapping[str, float]:
        return {"mlm": self.mlm_weight}

    def compute_terms(self, step: Step, batches: list[TokenBatch], labels: Tensor | None) -> dict[str, Tensor]:
        first, second = batches[0], batches[-1]  # one column gives the same batch twice, under two dropout masks
        both = masked = None
        if self.mlm_head is not None:  # random tokens are drawn before any forward pass
            both = first.followed_by(second)
            # The prompts of the two columns may differ.
            behind_prompts = [pad_to_width(part.mask_without_prompt, both.width) for part in (first, second)]
            masked = self.masking(both.ids, torch.cat(behind_prompts))
        anchors, positives = step.apply_head(self.head, *step.encode(first, second))  # (N, d) each
        terms = {"contrastive": step.info_nce(anchors, positives)}
        if both is not None and masked is not None:
            (terms["mlm"],) = step.token_mean(self._masked_lm, both, masked)
        return terms

    def _masked_lm(self, rows: TokenBatch, masked: CorruptedTokens) -> tuple[Tensor, ...]:
        """Summed cross-entropy of the masked tokens from the encoder's last hidden states, and the number of tokens."""
        assert self.mlm_head is not None
        states = run_model(self.model, [rows.with_ids(masked.input_ids)])[0].tokens  # (2 N, L, d)
        return self.mlm_head.summed_losses(get_encoder(self.model), rows, masked, states)
