"""Base of InfoCSE and DiffCSE, whose networks read an edited text and the sentence vector; and masked-LM sums."""

from __future__ import annotations

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import PreTrainedModel

from st_contrastive.components import MaskedLMHead, ReplacedTokenDetector, TokenCorruption
from st_contrastive.encoder.model import embedding_matrix, embedding_width, encoder_of, token_width, tokenizer_of
from st_contrastive.encoder.passes import pool_as_model, run_model
from st_contrastive.encoder.rows import CorruptedTokens, Rows
from st_contrastive.losses.base import TextLoss
from st_contrastive.objectives import masked_lm, replaced_tokens


class ConditionedLoss(TextLoss):
    """A loss with networks that are given the sentence vector of each dropout view."""

    #: What the networks are given: what the "head" makes, or the vector of the "encoder".
    vector: str

    def two_views(self, rows: Rows) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Both dropout views: what is contrasted, and the vectors (N, d) that the networks are given."""

        def encode_rows(rows: Rows) -> tuple[Tensor, ...]:
            first, second = run_model(self.model, (rows, rows))
            pooled = (pool_as_model(self.model, view) for view in (first, second))
            return (first.sentences, second.sentences, *pooled)

        first, second, *pooled = self.by_rows(encode_rows, rows)
        contrasted = self.project(first, second)
        return contrasted, tuple(pooled) if self.vector == "encoder" else contrasted

    def replaced_token_detection(
        self, detector: ReplacedTokenDetector, rows: Rows, masked: CorruptedTokens, vectors: Tensor
    ) -> Tensor:
        """Mean cross-entropy of which tokens the generator replaced, over the attended positions."""

        def detect(rows: Rows, masked: CorruptedTokens, vectors: Tensor) -> tuple[Tensor, Tensor]:
            logits, replaced = detector(rows.texts, vectors, masked)
            return replaced_tokens(logits, replaced, rows.mask, reduction="sum"), (rows.mask != 0).sum()

        return self.mean_over(detect, rows, masked, vectors)[0]


def require_head_vector(model: SentenceTransformer, head: str | None) -> None:
    """Refuse ``vector="head"`` where no head gives vectors that the networks can read.

    Raises:
        ValueError: there is no head, or the embeddings are not as wide as the token vectors.
    """
    width = embedding_width(model)
    if head is None or width != token_width(model):
        raise ValueError(
            "vector='head' gives the networks what the head returns: it needs head='projector' or 'tanh' and an "
            f"embedding as wide as the token vectors ({token_width(model)}), got head={head!r} and {width}. Take "
            "vector='encoder'."
        )


def masking_for(model: SentenceTransformer, rate: float) -> TokenCorruption:
    """BERT's masking, for the model's tokenizer and vocabulary."""
    return TokenCorruption.masking(tokenizer_of(model), rate, vocabulary=embedding_matrix(encoder_of(model)).shape[0])


def masked_lm_sums(
    head: MaskedLMHead, encoder: PreTrainedModel, rows: Rows, masked: CorruptedTokens, *states: Tensor
) -> tuple[Tensor, ...]:
    """Summed cross-entropy of the masked tokens from each of the states (N, L, d), and the number of these tokens.

    A tied head takes the embedding matrix of ``encoder``.
    """
    places = masked.places()
    targets = rows.ids.flatten()[places]
    sums = (masked_lm(head(part.flatten(0, 1)[places], encoder), targets, reduction="sum") for part in states)
    return (*sums, torch.full((), len(places), device=places.device))
