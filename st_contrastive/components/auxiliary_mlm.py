"""InfoCSE's auxiliary network: masked-LM that has to read the sentence vector to do well."""

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

    The lower layers read the masked text. From the branching point on, the full encoder's sentence vector stands at
    position 0; through it alone a gradient leaves the network, unless it is called with the full encoder's weights.

    Use :meth:`from_encoder`, or :func:`~st_contrastive.components.load_auxiliary` for a trained one. A tied head takes
    the embedding matrix of ``encoder``, whose lowest ``split_layer`` layers are frozen.

    Raises:
        ValueError: the encoder's family does not work as an auxiliary network.
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
        """Copy the encoder's lower layers, and its uppermost ``extra_layers`` as the start of the trainable ones.

        The encoder is not changed, and its adapters are merged into the copy. Arguments are as in ``InfoCSELoss``.

        Raises:
            ValueError: the encoder has too few layers, or layers that share their weights.
        """
        depth = len(get_layers(encoder))
        split = depth // 2 if split_layer is None else split_layer
        if extra_layers is None:  # a network as deep as the encoder predicts as well without the sentence vector
            extra_layers = 2 if split + 2 < depth else 1
        if not 1 <= split < depth or not 1 <= extra_layers <= depth:
            raise ValueError(
                f"The encoder has {depth} layer(s): split_layer must be at least 1 and below that, and extra_layers 1 "
                f"to {depth}; got {split} and {extra_layers}."
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
        """What the network has in common with the encoder that is trained with it."""
        names = ("model_type", "vocab_size", "hidden_size", "max_position_embeddings")
        return {name: getattr(encoder.config, name, None) for name in names}

    @property
    def properties(self) -> dict[str, Any]:
        """What :func:`require_fit` compares."""
        depths = {"split_layer": self.split_layer, "extra_layers": self.extra_layers}
        own = {"tied_head": self.head.tied, "lower_dropout": self.lower_dropout}
        return {**self.get_signature(self.encoder), **depths, **own}

    def train(self, mode: bool = True) -> AuxiliaryMLM:
        """As in PyTorch, but the frozen part stays in evaluation mode unless ``lower_dropout`` is set."""
        super().train(mode)
        self.encoder.train(mode and self.lower_dropout)
        self.layers[self.split_layer :].train(mode)
        return self


def require_fit(name: str, properties: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse an auxiliary network that has other properties than are wanted; None accepts any."""
    differing = [
        f"{key} is {properties[key]!r}, not {value!r}"
        for key, value in wanted.items()
        if value is not None and properties[key] != value
    ]
    if differing:
        raise ValueError(
            f"{name} does not fit: {'; '.join(differing)}. Use the encoder that it was trained with, and leave "
            "arguments of the network out."
        )
