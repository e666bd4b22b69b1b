"""Masked-LM terms of the losses, and where InfoCSE's auxiliary network comes from."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import PreTrainedModel

from st_contrastive.components import AuxiliaryMLM, CorruptedTokens, load_auxiliary
from st_contrastive.encoder import encoder_of, token_arguments, tokenizer_of
from st_contrastive.losses.base import ContrastiveLoss
from st_contrastive.objectives import masked_lm_in_chunks


def auxiliary_network(
    model: SentenceTransformer,
    given: str | os.PathLike[str] | AuxiliaryMLM | None,
    split_layer: int | None,
    extra_layers: int | None,
    *,
    tied_head: bool,
    lower_dropout: bool,
) -> AuxiliaryMLM:
    """The network that a loss was given, was told the name of, or is to make from its encoder.

    Raises:
        OSError: it does not exist, or is damaged.
        TypeError, ValueError: it does not fit.
    """
    encoder = encoder_of(model)
    if given is None:
        return AuxiliaryMLM.from_encoder(
            encoder,
            split_layer=split_layer,
            extra_layers=2 if extra_layers is None else extra_layers,
            tied_head=tied_head,
            lower_dropout=lower_dropout,
        )
    if isinstance(given, (str, os.PathLike)):
        return load_auxiliary(
            given,
            encoder,
            tokenizer_of(model),
            split_layer=split_layer,
            extra_layers=extra_layers,
            tied_head=tied_head,
            lower_dropout=lower_dropout,
        )
    if not isinstance(given, AuxiliaryMLM):
        raise TypeError(f"auxiliary must be a folder's name, an AuxiliaryMLM or None, got {type(given).__name__}.")
    if given.signature != (own := AuxiliaryMLM.signature_of(encoder)):
        raise ValueError(
            f"auxiliary was made from an encoder of (family, vocabulary, width) {given.signature}, this one is {own}: "
            "make it with AuxiliaryMLM.from_encoder from the same checkpoint."
        )
    for name, wanted, has in (
        ("split_layer", split_layer, given.split_layer),
        ("extra_layers", extra_layers, given.extra_layers),
        ("tied_head", tied_head or None, given.head.tied),
        ("lower_dropout", lower_dropout or None, given.lower_dropout),
    ):
        if wanted is not None and wanted != has:
            raise ValueError(f"auxiliary does not fit: {name} is {has}, asked for {wanted}.")
    return given


def masked_lm_of(
    loss: ContrastiveLoss,
    auxiliary: AuxiliaryMLM,
    texts: dict[str, Any],
    vectors: Tensor,
    *,
    encoder: PreTrainedModel | None,
    gradient_scale: float,
) -> Tensor:
    """Cross-entropy of the masked tokens that the network predicts from the sentence vectors.

    Args:
        loss: the loss that it is a term of, and whose way of grouping rows it takes.
        auxiliary: the network.
        texts: the text tensors, (M, L) each, and as ``masked`` what was made of them.
        vectors: (M, d), the sentence vectors.
        encoder: whose lower layers are run in place of the frozen copy's, with gradient; or None.
        gradient_scale: of the gradient into the vectors.
    """

    def predict(rows: dict[str, Any]) -> tuple[Tensor, ...]:
        masked: CorruptedTokens = rows["masked"]
        places = masked.places()
        text = {**token_arguments(rows), "input_ids": masked.input_ids}
        states = auxiliary.states(text, places, rows["vectors"], encoder=encoder, gradient_scale=gradient_scale)
        return states, rows["input_ids"].flatten()[places]

    return masked_lm_by_groups(
        loss,
        predict,
        {**texts, "vectors": vectors},
        auxiliary.logits,
        vocabulary=auxiliary.signature[1],
    )


def masked_lm_by_groups(
    loss: ContrastiveLoss,
    predict: Callable[[dict[str, Any]], tuple[Tensor, ...]],
    texts: dict[str, Any],
    logits: Callable[[Tensor], Tensor],
    *,
    vocabulary: int,
) -> Tensor:
    """Cross-entropy of the masked tokens of ``texts``, whose rows go through the network in groups.

    Args:
        loss: the loss that it is a term of, and whose way of grouping rows it takes.
        predict: of some rows, the last hidden states of their M masked positions, (M, d), and the tokens there, (M,).
        texts: the text tensors, and as ``masked`` what was made of them.
        logits: (M, d) to (M, V), the masked-LM head.
        vocabulary: V.
    """
    found = loss.by_groups(predict, texts)
    states, targets = (torch.cat(parts) for parts in zip(*found, strict=True))
    # One call of the head: its matrix is as large as the rest, and so would be each group's gradient of it.
    return loss.share(len(targets)) * masked_lm_in_chunks(states, targets, logits, vocabulary=vocabulary)
