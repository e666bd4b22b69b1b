"""InfoCSE's auxiliary network for a loss: given, loaded, or made from the encoder."""

from __future__ import annotations

import os

from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import PreTrainedModel

from st_contrastive.components import AuxiliaryMLM, load_auxiliary
from st_contrastive.encoder import encoder_of, tokenizer_of


def require_same_encoder(argument: str, given: nn.Module, copied: PreTrainedModel, encoder: PreTrainedModel) -> None:
    """Refuse a network that was made from an encoder of another family, vocabulary or width.

    Args:
        argument: the argument's name, for the message.
        given: the network.
        copied: the part of it that is a copy of an encoder.
        encoder: the loss's encoder.

    Raises:
        ValueError: they differ.
    """
    theirs, own = AuxiliaryMLM.signature_of(copied), AuxiliaryMLM.signature_of(encoder)
    if theirs != own:
        raise ValueError(
            f"{argument} was made from an encoder of (family, vocabulary, width) {theirs}, this one is {own}: make it "
            f"with {type(given).__name__}.from_encoder from the same checkpoint."
        )


def auxiliary_network(
    model: SentenceTransformer,
    given: str | os.PathLike[str] | AuxiliaryMLM | None,
    split_layer: int | None,
    extra_layers: int | None,
    *,
    tied_head: bool,
    lower_dropout: bool,
) -> AuxiliaryMLM:
    """The network that a loss was given, loads from a folder, or makes from its encoder.

    Raises:
        OSError: it does not exist, or is damaged.
        TypeError, ValueError: it does not fit.
    """
    encoder = encoder_of(model)
    if given is None:
        return AuxiliaryMLM.from_encoder(
            encoder,
            split_layer=split_layer,
            extra_layers=extra_layers,
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
    require_same_encoder("auxiliary", given, given.network, encoder)
    for name, wanted, has in (
        ("split_layer", split_layer, given.split_layer),
        ("extra_layers", extra_layers, given.extra_layers),
        ("tied_head", tied_head or None, given.head.tied),
        ("lower_dropout", lower_dropout or None, given.lower_dropout),
    ):
        if wanted is not None and wanted != has:
            raise ValueError(f"auxiliary does not fit: {name} is {has}, asked for {wanted}. Leave {name} out.")
    return given
