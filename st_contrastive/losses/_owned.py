"""The parameters and buffers of a loss that are not the encoder's."""

from __future__ import annotations

from sentence_transformers import SentenceTransformer
from torch import Tensor, nn


def owned_state(loss: nn.Module) -> dict[str, Tensor]:
    """The loss's own parameters and persistent buffers, not copies, by their names in its ``state_dict``.

    The encoder may be wrapped.
    """
    encoders = [module for module in loss.modules() if isinstance(module, SentenceTransformer)]
    theirs = {id(tensor) for encoder in encoders for tensor in (*encoder.parameters(), *encoder.buffers())}
    return {
        name: tensor
        for name, tensor in loss.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor) and id(tensor) not in theirs
    }


def trained(state: dict[str, Tensor]) -> list[Tensor]:
    """The trained parameters of a state. One with several names is there once."""
    return list({id(tensor): tensor for tensor in state.values() if tensor.requires_grad}.values())
