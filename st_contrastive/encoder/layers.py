"""The transformer layers of an encoder, whatever its family, and what enters one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from st_contrastive._checks import first_line
from st_contrastive.encoder.probe import probing


def layer_stack(encoder: PreTrainedModel) -> tuple[nn.Module, str]:
    """The module that owns the encoder's list of layers, and the list's name in it.

    Raises:
        ValueError: no list with one entry a layer exists, as in families whose layers share their weights (ALBERT).
    """
    depth = getattr(encoder.config, "num_hidden_layers", None)
    for owner in encoder.modules():
        names = [n for n, child in owner.named_children() if isinstance(child, nn.ModuleList) and len(child) == depth]
        if len(names) == 1:
            return owner, names[0]
        if names:
            raise ValueError(
                f"{type(encoder).__name__} keeps the parts of its layers in separate lists ({', '.join(names)}): "
                "no layer can be taken out. Take an encoder with one list of layers, such as BERT or RoBERTa."
            )
    raise ValueError(
        f"{type(encoder).__name__} has no list of {depth} transformer layers of its own: it may share one layer's "
        "weights among all, as ALBERT does. Take an encoder with separate layers, such as BERT or RoBERTa."
    )


def layers_of(encoder: PreTrainedModel) -> nn.ModuleList:
    """The encoder's transformer layers, lowest first."""
    owner, name = layer_stack(encoder)
    layers: nn.ModuleList = getattr(owner, name)
    return layers


def _lowest_layer(encoder: PreTrainedModel) -> tuple[nn.Module, int]:
    """The module that the embedding layer's output enters, and how often one forward pass calls it."""
    for name, module in encoder.named_modules():
        if name.endswith("albert_layer_groups"):
            # ALBERT runs each of its groups several times in turn.
            groups = list(module.children())
            return groups[0], encoder.config.num_hidden_layers // len(groups)
    return layers_of(encoder)[0], 1


@contextmanager
def editing_input(layer: nn.Module, edit: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While open, the hidden states that enter ``layer`` are what ``edit`` makes of them. Nothing stays behind."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if args:
            return (edit(args[0]), *args[1:]), kwargs
        name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
        return args, {**kwargs, name: edit(kwargs[name])}

    handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def editing_embeddings(encoder: PreTrainedModel, edit: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While open, the embedding layer's output, (rows, tokens, width), is what ``edit`` makes of it in every pass.

    It is what enters the lowest layer: positions, token types, LayerNorm and dropout included.
    """
    layer, calls_a_pass = _lowest_layer(encoder)
    calls = 0

    def edit_first(hidden: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return edit(hidden) if (calls - 1) % calls_a_pass == 0 else hidden

    with editing_input(layer, edit_first):
        yield


@contextmanager
def embedding_outputs(encoder: PreTrainedModel) -> Iterator[list[Tensor]]:
    """While open, the list collects the embedding layer's output of every forward pass, detached."""
    captured: list[Tensor] = []

    def note(hidden: Tensor) -> Tensor:
        captured.append(hidden.detach())
        return hidden

    with editing_embeddings(encoder, note):
        yield captured


class _Reached(Exception):  # noqa: N818
    """Ends a trial pass once the lowest layer is reached."""


@torch.no_grad()
def require_embedding_outputs(encoder: PreTrainedModel) -> None:
    """Refuse an encoder whose embedding layer's output can't be had, or that takes no embeddings for its input.

    The pass that tells ends before the lowest layer: it costs nothing, and leaves the encoder as it is.

    Raises:
        ValueError: it can't work; the message says what would.
    """
    shapes: list[torch.Size] = []

    def end(hidden: Tensor) -> Tensor:
        shapes.append(hidden.shape)
        raise _Reached

    ids = torch.tensor([[1, 2, 3], [1, 2, 3]], device=encoder.device)
    failure = "the embedding layer's output is not where it is looked for"
    try:
        with probing(encoder, encoder.device), editing_embeddings(encoder, end):
            encoder(inputs_embeds=encoder.get_input_embeddings()(ids), attention_mask=torch.ones_like(ids))
    except _Reached:
        pass
    except Exception as error:  # whatever a family's code raises
        failure = f"{type(error).__name__}: {first_line(error)}"
    if not shapes or shapes[0][:2] != ids.shape:
        raise ValueError(
            f"{type(encoder).__name__} can't give the embedding layer's output that a fraternal twin is held against "
            f"({failure}). Take an encoder such as BERT, RoBERTa, MPNet or Qwen, or another loss, such as SimCSELoss."
        )


@contextmanager
def capturing_states(encoder: PreTrainedModel, number: int) -> Iterator[list[Tensor]]:
    """While open, the list collects the hidden states behind the lowest ``number`` layers, with their gradient.

    They are taken where they enter the next layer: some families do something between two layers.
    """
    captured: list[Tensor] = []
    layers = layers_of(encoder)

    def note(hidden: Tensor) -> Tensor:
        captured.append(hidden)
        return hidden

    if number < len(layers):
        with editing_input(layers[number], note):
            yield captured
        return
    handle = layers[-1].register_forward_hook(
        lambda _, __, output: captured.append(output if isinstance(output, Tensor) else output[0])
    )
    try:
        yield captured
    finally:
        handle.remove()
