"""The transformer layers of an encoder, whatever its family: finding them, and reading and editing states."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel


def layer_stack(encoder: PreTrainedModel) -> tuple[nn.Module, str]:
    """The module that owns the encoder's list of layers, and the list's name in it.

    Raises:
        ValueError: there is not one list with an entry for each layer, as in ALBERT, whose layers share their weights.
    """
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
    """Make the configuration that of an encoder with these of its layers alone.

    Raises:
        NotImplementedError: the family's depth can't be set, as Funnel's, whose layers come in blocks.
    """
    config.num_hidden_layers = len(kept)
    for name in ("layer_types", "attention_window"):  # in some families one entry a layer
        if isinstance(entries := getattr(config, name, None), list):
            setattr(config, name, [entries[layer] for layer in kept])


def layers_of(encoder: PreTrainedModel) -> nn.ModuleList:
    """The encoder's transformer layers, lowest first."""
    owner, name = layer_stack(encoder)
    return cast(nn.ModuleList, getattr(owner, name))


def entering_states(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The hidden states among the arguments that a layer is called with."""
    return cast(Tensor, args[0] if args else kwargs.get("hidden_states", next(iter(kwargs.values()))))


@contextmanager
def editing_input(layer: nn.Module, edit: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While open, ``edit`` replaces the hidden states that enter ``layer``."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        edited = edit(entering_states(args, kwargs))
        if args:
            return (edited, *args[1:]), kwargs
        name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
        return args, {**kwargs, name: edited}

    handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def capturing_states(encoder: PreTrainedModel, number: int) -> Iterator[list[Tensor]]:
    """While open, the list collects the hidden states after the lowest ``number`` layers, not all, with their gradient;
    after 0 layers, they are the embedding layer's output.

    They are read where they enter the next layer, because some families compute something between two layers.
    """
    captured: list[Tensor] = []

    def record(hidden: Tensor) -> Tensor:
        captured.append(hidden)
        return hidden

    with editing_input(layers_of(encoder)[number], record):
        yield captured


def accepted_by(network: PreTrainedModel, texts: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that the network's forward pass has an argument for."""
    arguments = inspect.signature(network.forward).parameters
    return {name: tensor for name, tensor in texts.items() if name in arguments}
