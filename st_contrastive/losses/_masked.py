"""Masked-LM, and the terms of InfoCSE and DiffCSE, whose networks read a masked text and the sentence vector."""

from __future__ import annotations

from collections.abc import Callable

from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_contrastive.components import ReplacedTokenDetector, TokenCorruption
from st_contrastive.encoder.model import embedding_matrix, embedding_width, encoder_of, token_width, tokenizer_of
from st_contrastive.encoder.passes import pool_as_model
from st_contrastive.encoder.rows import CorruptedTokens, Rows
from st_contrastive.losses.base import TextLoss
from st_contrastive.objectives import masked_lm, replaced_tokens


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
    logits: Callable[[Tensor], Tensor], rows: Rows, masked: CorruptedTokens, *states: Tensor
) -> tuple[Tensor, ...]:
    """Summed cross-entropy of the masked tokens from each of the states (N, L, d), and the number of these tokens."""
    places, count = masked.places(), masked.chosen.sum()
    targets = rows.ids.flatten()[places]
    return (*(masked_lm(logits(part.flatten(0, 1)[places]), targets) * count for part in states), count)


def two_views(loss: TextLoss, rows: Rows, *, vector: str) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Both dropout views: what is contrasted, and the vectors (N, d) that the networks are given.

    Args:
        loss: the loss.
        rows: the sentences.
        vector: the networks get what the "head" makes, or the vector of the "encoder".
    """

    def encode(rows: Rows) -> tuple[Tensor, ...]:
        views = loss.forward_views(rows, rows)
        pooled = [pool_as_model(loss.model, view) for view in views] if vector == "encoder" else []
        return (*(view.sentences for view in views), *pooled)

    first, second, *pooled = loss.by_rows(encode, rows)
    contrasted = loss.project(first, second)
    return contrasted, tuple(pooled) or contrasted


def replaced_token_detection(
    loss: TextLoss,
    detector: ReplacedTokenDetector,
    rows: Rows,
    masked: CorruptedTokens,
    vectors: Tensor,
    scale: float = 1.0,
) -> Tensor:
    """Mean cross-entropy of which tokens the generator replaced, over the attended positions."""

    def detect(rows: Rows, masked: CorruptedTokens, vectors: Tensor) -> tuple[Tensor, Tensor]:
        logits, replaced = detector(rows.texts, vectors, masked, gradient_scale=scale)
        count = (rows.mask != 0).sum()
        return replaced_tokens(logits, replaced, rows.mask) * count, count

    return loss.mean_over(detect, rows, masked, vectors)[0]
