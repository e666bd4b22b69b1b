"""Base of InfoCSE and DiffCSE, whose networks read an edited text and the sentence vector."""

from __future__ import annotations

from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_contrastive.components import ReplacedTokenDetector
from st_contrastive.encoder.model import embedding_width, token_width
from st_contrastive.encoder.passes import pool_as_model, run_model
from st_contrastive.encoder.token_batch import CorruptedTokens, TokenBatch
from st_contrastive.losses.base import TextLoss
from st_contrastive.losses.step import Step
from st_contrastive.objectives import replaced_tokens


class ConditionedLoss(TextLoss):
    """A loss with networks that are given the sentence vector of each dropout view."""

    #: What the networks are given: what the "head" makes, or the vector of the "encoder".
    vector: str

    def two_views(self, step: Step, batch: TokenBatch) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Both dropout views: what is contrasted, and the vectors (N, d) that the networks are given."""

        def encode_rows(rows: TokenBatch) -> tuple[Tensor, ...]:
            first, second = run_model(self.model, (rows, rows))
            pooled = (pool_as_model(self.model, view) for view in (first, second) if self.vector == "encoder")
            return (first.sentences, second.sentences, *pooled)

        first, second, *pooled = step.in_chunks(encode_rows, batch)
        contrasted = step.apply_head(self.head, first, second)
        return contrasted, tuple(pooled) or contrasted

    def replaced_token_detection(
        self, step: Step, detector: ReplacedTokenDetector, batch: TokenBatch, masked: CorruptedTokens, vectors: Tensor
    ) -> Tensor:
        """Mean cross-entropy of which tokens the generator replaced, over the attended positions."""

        def detect(rows: TokenBatch, masked: CorruptedTokens, vectors: Tensor) -> tuple[Tensor, Tensor]:
            logits, replaced = detector(rows.token_tensors, vectors, masked)
            return replaced_tokens(logits, replaced, rows.mask, reduction="sum"), (rows.mask != 0).sum()

        return step.token_mean(detect, batch, masked, vectors)[0]


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
