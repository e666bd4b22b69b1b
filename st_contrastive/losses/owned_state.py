"""The parameters and buffers that belong to a loss and not to the encoder."""

from __future__ import annotations

from sentence_transformers import SentenceTransformer
from torch import Tensor, nn


def owned_state(loss: nn.Module) -> dict[str, Tensor]:
    """The loss's parameters and persistent buffers without the encoder's, by their names in its ``state_dict``.

    The tensors are not copied. The encoder may be wrapped.
    """
    encoders = [module for module in loss.modules() if isinstance(module, SentenceTransformer)]
    of_encoders = {id(tensor) for encoder in encoders for tensor in (*encoder.parameters(), *encoder.buffers())}
    return {
        name: tensor
        for name, tensor in loss.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor) and id(tensor) not in of_encoders
    }


def trained_parameters(state: dict[str, Tensor]) -> list[Tensor]:
    """The parameters of a state that are trained. A parameter with several names is listed once."""
    return list({id(tensor): tensor for tensor in state.values() if tensor.requires_grad}.values())
