"""Terms of InfoCSE and DiffCSE, whose networks read a masked text and the sentence vector."""

from __future__ import annotations

import os

from sentence_transformers import SentenceTransformer
from torch import Tensor

from st_contrastive.components import AuxiliaryMLM, ReplacedTokenDetector, load_auxiliary
from st_contrastive.components.auxiliary_mlm import require_fit
from st_contrastive.encoder.model import embedding_width, encoder_of, token_width, tokenizer_of
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


def auxiliary_network(
    model: SentenceTransformer,
    auxiliary: str | os.PathLike[str] | AuxiliaryMLM | None,
    split_layer: int | None,
    extra_layers: int | None,
    *,
    tied_head: bool,
    lower_dropout: bool,
) -> AuxiliaryMLM:
    """The network that a loss is given, loads from a folder, or makes from its encoder.

    Raises:
        OSError: it does not exist, or is damaged.
        ValueError: it does not fit.
    """
    encoder = encoder_of(model)
    if auxiliary is None:
        return AuxiliaryMLM.from_encoder(
            encoder,
            split_layer=split_layer,
            extra_layers=extra_layers,
            tied_head=tied_head,
            lower_dropout=lower_dropout,
        )
    if not isinstance(auxiliary, AuxiliaryMLM):
        auxiliary = load_auxiliary(
            auxiliary, encoder, tokenizer_of(model), tied_head=tied_head, lower_dropout=lower_dropout
        )
    network = {**auxiliary.properties, "tied_head": auxiliary.head.tied, "lower_dropout": auxiliary.lower_dropout}
    wanted = {
        **AuxiliaryMLM.signature_of(encoder),
        "split_layer": split_layer,
        "extra_layers": extra_layers,
        "tied_head": tied_head or None,
        "lower_dropout": lower_dropout or None,
    }
    require_fit("auxiliary", network, wanted)
    return auxiliary


def scale_and_weight(weight: float, weighting: str) -> tuple[float, float]:
    """What a term's gradient is multiplied by where it enters the encoder, and what the term is multiplied by."""
    return (weight, 1.0) if weighting == "gradient" else (1.0, weight)


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


def conditioned_masked_lm(
    loss: TextLoss,
    network: AuxiliaryMLM,
    rows: Rows,
    masked: CorruptedTokens,
    vectors: Tensor,
    *,
    detach: bool,
    scale: float,
) -> Tensor:
    """Mean cross-entropy of the masked tokens, which the network predicts from the masked text and the vectors."""
    encoder = None if detach else encoder_of(loss.model)

    def predict(rows: Rows, masked: CorruptedTokens, vectors: Tensor) -> tuple[Tensor, Tensor]:
        texts, places, count = rows.with_ids(masked.input_ids).texts, masked.places(), masked.chosen.sum()
        lower = network.lower(texts, encoder)
        states = network.upper(lower, vectors, texts, encoder, gradient_scale=scale)
        logits = network.logits(states.flatten(0, 1)[places])
        return masked_lm(logits, rows.ids.flatten()[places]) * count, count

    return loss.mean_over(predict, rows, masked, vectors)


def replaced_token_detection(
    loss: TextLoss,
    detector: ReplacedTokenDetector,
    rows: Rows,
    masked: CorruptedTokens,
    vectors: Tensor,
    *,
    scale: float,
) -> Tensor:
    """Mean cross-entropy of which tokens the generator replaced, over the attended positions."""

    def detect(rows: Rows, masked: CorruptedTokens, vectors: Tensor) -> tuple[Tensor, Tensor]:
        logits, replaced = detector(rows.texts, vectors, masked, gradient_scale=scale)
        count = (rows.mask != 0).sum()
        return replaced_tokens(logits, replaced, rows.mask) * count, count

    return loss.mean_over(detect, rows, masked, vectors)
