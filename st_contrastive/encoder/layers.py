"""The transformer layers of an encoder, whatever its family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel


def layer_stack(encoder: PreTrainedModel) -> tuple[nn.Module, str]:
    """The module that owns the encoder's list of layers, and the list's name in it."""
    depth = getattr(encoder.config, "num_hidden_layers", None)
    for owner in encoder.modules():
        names = [n for n, child in owner.named_children() if isinstance(child, nn.ModuleList) and len(child) == depth]
        if len(names) == 1:
            return owner, names[0]
        if names:  # the parts of the layers in separate lists
            break
    raise ValueError(
        f"{type(encoder).__name__} has no list of {depth} transformer layers, out of which one could be taken: it may "
        "share one layer's weights among all, as ALBERT does. Take an encoder such as BERT or RoBERTa."
    )


def set_depth(config: PretrainedConfig, kept: Sequence[int]) -> None:
    """Make the configuration that of an encoder with these of its layers alone."""
    config.num_hidden_layers = len(kept)  # a NotImplementedError in Funnel, whose layers come in blocks
    for name in ("layer_types", "attention_window"):  # in some families one entry a layer
        if isinstance(entries := getattr(config, name, None), list):
            setattr(config, name, [entries[layer] for layer in kept])


def get_layers(encoder: PreTrainedModel) -> nn.ModuleList:
    """The encoder's transformer layers, lowest first."""
    owner, name = layer_stack(encoder)
    return cast(nn.ModuleList, getattr(owner, name))
