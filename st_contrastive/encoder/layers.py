"""The transformer layers of an encoder of any family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel


def layer_stack(encoder: PreTrainedModel) -> tuple[nn.Module, str]:
    """The module that holds the encoder's list of layers, and the name of the list in that module."""
    depth = getattr(encoder.config, "num_hidden_layers", None)
    for owner in encoder.modules():
        names = [n for n, child in owner.named_children() if isinstance(child, nn.ModuleList) and len(child) == depth]
        if len(names) == 1:
            return owner, names[0]
        if names:  # several lists, each with one part of every layer
            break
    raise ValueError(
        f"{type(encoder).__name__} does not expose its layers: it has no list of {depth}. It may share the weights of "
        "one layer, as ALBERT does. Use an encoder such as BERT or RoBERTa."
    )


def set_depth(config: PretrainedConfig, kept: Sequence[int]) -> None:
    """Change the configuration to that of an encoder with only the layers of these numbers."""
    config.num_hidden_layers = len(kept)  # Funnel, with its blocks of layers, raises NotImplementedError
    for name in ("layer_types", "attention_window"):  # some families have one entry per layer
        entries = getattr(config, name, None)
        if isinstance(entries, list) and len(entries) != len(kept):  # Mamba's follow the number of layers
            setattr(config, name, [entries[layer] for layer in kept])


def get_layers(encoder: PreTrainedModel) -> nn.ModuleList:
    """The encoder's transformer layers, lowest first."""
    owner, name = layer_stack(encoder)
    return cast(nn.ModuleList, getattr(owner, name))
