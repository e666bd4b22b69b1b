"""The auxiliary network of InfoCSE, whose masked-LM depends on the sentence vector."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from st_contrastive.components.masked_lm_head import MaskedLMHead
from st_contrastive.encoder.copies import copy_encoder
from st_contrastive.encoder.layers import get_layers, layer_stack, set_depth
from st_contrastive.encoder.partial import PartialEncoder


class AuxiliaryMLM(PartialEncoder):
    """Frozen lower layers, a few trainable layers on top, and a masked-LM head (Wu et al., 2022, section 3).

    The lower layers read the masked text. At the branching point, the sentence vector of the full encoder replaces the
    state at position 0. The gradient leaves the network only through that vector, unless the network is called with
    weights of the full encoder.

    Use :meth:`from_encoder` for a new network and :func:`~st_contrastive.components.load_auxiliary` for a trained one.
    The constructor freezes ``encoder``, except its layers from ``split_layer`` on. A tied head uses the encoder's
    embedding matrix.

    Raises:
        ValueError: an auxiliary network can't be built from the encoder's family.
    """

    def __init__(
        self, encoder: PreTrainedModel, head: MaskedLMHead, split_layer: int, *, lower_dropout: bool = False
    ) -> None:
        super().__init__(encoder, split_layer, "an auxiliary network")
        self.head, self.lower_dropout = head, lower_dropout
        self.extra_layers = len(self.layers) - split_layer
        self.encoder.requires_grad_(False)
        self.layers[split_layer:].requires_grad_(True)
        self.train(True)

    @classmethod
    def from_encoder(
        cls,
        encoder: PreTrainedModel,
        *,
        split_layer: int | None = None,
        extra_layers: int | None = None,
        tied_head: bool = False,
        lower_dropout: bool = False,
    ) -> AuxiliaryMLM:
        """Copy the encoder's lower layers, and its uppermost ``extra_layers`` to initialise the trainable layers.

        The encoder is not changed, and its adapters are merged into the copy. ``InfoCSELoss`` explains the arguments.

        Raises:
            ValueError: the encoder has too few layers, or layers with shared weights.
        """
        depth = len(get_layers(encoder))
        split = depth // 2 if split_layer is None else split_layer
        if extra_layers is None:  # a network as deep as the encoder would not need the sentence vector
            extra_layers = 2 if split + 2 < depth else 1
        if not 1 <= split < depth or not 1 <= extra_layers <= depth:
            raise ValueError(
                f"The encoder has {depth} layer(s): split_layer must be at least 1 and less than {depth}, and "
                f"extra_layers must be 1 to {depth}. Got {split} and {extra_layers}."
            )
        network = copy_encoder(encoder)
        owner, name = layer_stack(network)
        layers = list(getattr(owner, name))
        upper = [copy.deepcopy(layer) for layer in layers[depth - extra_layers :]]
        setattr(owner, name, nn.ModuleList([*layers[:split], *upper]))
        set_depth(network.config, [*range(split), *range(depth - extra_layers, depth)])
        return cls(network, MaskedLMHead.for_encoder(encoder, tied=tied_head), split, lower_dropout=lower_dropout)

    @staticmethod
    def get_signature(encoder: PreTrainedModel) -> dict[str, Any]:
        """Properties of an encoder that its auxiliary network must share."""
        names = ("model_type", "vocab_size", "hidden_size", "max_position_embeddings")
        return {name: getattr(encoder.config, name, None) for name in names}

    @property
    def properties(self) -> dict[str, Any]:
        """Properties that :func:`require_fit` compares."""
        return {
            **self.get_signature(self.encoder),
            "split_layer": self.split_layer,
            "extra_layers": self.extra_layers,
            "tied_head": self.head.tied,
            "lower_dropout": self.lower_dropout,
        }

    def train(self, mode: bool = True) -> AuxiliaryMLM:
        """Set the mode as in PyTorch, but keep the frozen part in evaluation mode unless ``lower_dropout`` is set."""
        super().train(mode)
        self.encoder.train(mode and self.lower_dropout)
        self.layers[self.split_layer :].train(mode)
        return self


def require_fit(name: str, properties: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Require that an auxiliary network has the wanted properties. A wanted None accepts any value."""
    differing = [
        f"{key} is {properties[key]!r}, not {value!r}"
        for key, value in wanted.items()
        if value is not None and properties[key] != value
    ]
    if differing:
        raise ValueError(
            f"{name} does not fit: {'; '.join(differing)}. Use the encoder that it was trained with, and drop "
            "split_layer, extra_layers, tied_head and lower_dropout."
        )
