"""Reads and edits the states between an encoder's layers, and runs a part of the layers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from st_contrastive.encoder.copies import copy_encoder, has_adapters
from st_contrastive.encoder.layers import get_layers, layer_stack
from st_contrastive.encoder.requirements import trial_pass


class PartialEncoder(nn.Module):
    """An encoder whose states can be replaced at the input of one layer, its branching point.

    The family's code in transformers computes masks, positions and attention biases. A trial pass raises a
    ValueError for families in which running the layers in two parts gives other states than one pass.

    Args:
        encoder: the network. It is not copied.
        split_layer: number of the layer, from 0, whose input is the branching point.
        purpose: the network's name in errors, such as "an auxiliary network".
    """

    def __init__(self, encoder: PreTrainedModel, split_layer: int, purpose: str) -> None:
        super().__init__()
        self.encoder, self.split_layer = encoder, split_layer
        self._stack = layer_stack(encoder)
        self._try_once(purpose)

    @property
    def layers(self) -> nn.ModuleList:
        """All layers, the lowest first."""
        owner, name = self._stack
        return cast(nn.ModuleList, getattr(owner, name))

    def forward(self, texts: dict[str, Any], vectors: Tensor, weights: dict[str, Tensor] | None = None) -> Tensor:
        """The last states (N, L, d), with the sentence vectors (N, d) in position 0 from the branching point on.

        Args:
            texts: the encoder's input: ``input_ids`` (N, L), ``attention_mask`` and so on.
            vectors: sentence vectors (N, d).
            weights: replacements for weights of the network, by name.
        """

        def insert(hidden: Tensor) -> Tensor:
            return torch.cat([vectors.to(hidden.dtype)[:, None], hidden[:, 1:]], dim=1)

        with edit_input(self.layers[self.split_layer], insert):
            return self._run(texts, weights or {})

    def forward_upper(self, states: Tensor, texts: dict[str, Any], weights: dict[str, Tensor]) -> Tensor:
        """The last states (N, L, d) from states (N, L, d) at the branching point, without running the layers below."""
        above = self.layers[self.split_layer :]
        skipped = [_SkippedLayer(layer, self._outputs) for layer in self.layers[: self.split_layer]]
        states = states.to(self.encoder.dtype)
        with self._with_layers(nn.ModuleList([*skipped, *above])), edit_input(above[0], lambda _: states):
            return self._run(texts, weights)

    def encoder_weights(self, encoder: PreTrainedModel, *, lower: bool) -> dict[str, Tensor]:
        """Parameters of ``encoder`` that can replace the network's: those outside the layers.

        ``lower`` adds the parameters of the layers below the branching point.
        """
        weights = dict(encoder.named_parameters())
        excluded = {id(p) for p in self.layers[self.split_layer if lower else 0 :].parameters()}
        names = [name for name, p in self.encoder.named_parameters() if id(p) not in excluded]
        if missing := [name for name in names if name not in weights]:
            raise ValueError(
                f"{type(encoder).__name__} has no weight {missing[0]}: an adapter has replaced it, but the auxiliary "
                "network must train it too. Keep adapters away from the embeddings, and use model.add_adapter(config) "
                "instead of get_peft_model. With InfoCSELoss, use detach=True."
            )
        return {name: weights[name] for name in names}

    @torch.no_grad()
    def sync_frozen(self, encoder: PreTrainedModel) -> None:
        """Copy the weights below the branching point and outside the layers from ``encoder``, with adapters merged."""
        if has_adapters(encoder):
            encoder = copy_encoder(encoder)
        copies = dict(self.encoder.named_parameters())
        for name, parameter in self.encoder_weights(encoder, lower=True).items():
            copies[name].copy_(parameter)

    def _run(self, texts: dict[str, Any], weights: dict[str, Tensor]) -> Tensor:
        arguments = {**select_arguments(self.encoder, texts), "return_dict": True}
        if not weights:
            return cast(Tensor, self.encoder(**arguments).last_hidden_state)
        dtype = self.encoder.dtype  # the Trainer may have cast the encoder for evaluation (bf16_full_eval)
        weights = {name: weight.to(dtype) for name, weight in weights.items()}
        return cast(Tensor, functional_call(self.encoder, weights, kwargs=arguments).last_hidden_state)

    @contextmanager
    def _with_layers(self, part: nn.ModuleList) -> Iterator[None]:
        """Replace the list of layers by one of the same length, because some families count their layers."""
        owner, name = self._stack
        layers = self.layers
        setattr(owner, name, part)
        try:
            yield
        finally:
            setattr(owner, name, layers)

    def _try_once(self, purpose: str) -> None:
        """Check that the layers compute the same in one pass as in two parts, on two texts of two tokens."""
        ids = torch.tensor([[1, 2], [2, 1]], device=self.encoder.device)
        texts = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        self._outputs = 0  # length of the tuple that a layer returns; 0 if it returns a tensor

        def record(_: nn.Module, __: Any, output: Any) -> None:
            self._outputs = 0 if isinstance(output, Tensor) else len(output)

        self.eval()
        with trial_pass(self.encoder, purpose):
            handle = self.layers[self.split_layer].register_forward_hook(record)
            try:
                with capture_states(self.encoder, self.split_layer) as states:
                    whole = self._run(texts, {})
            finally:
                handle.remove()
            parts = self(texts, states[0][:, 0]), self.forward_upper(states[0], texts, {})
            if not all(torch.allclose(whole, part, rtol=1e-2, atol=1e-3, equal_nan=True) for part in parts):
                raise ValueError("its states differ when its layers run in two parts")


class _SkippedLayer(nn.Module):
    """Returns its input in the form of a layer's output. It has the layer's attributes, which some encoders read."""

    def __init__(self, layer: nn.Module, outputs: int) -> None:
        super().__init__()
        vars(self).update({name: value for name, value in vars(layer).items() if name[0] != "_" and name != "forward"})
        self.outputs = outputs

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden = input_states(args, kwargs)
        return (hidden, *[None] * (self.outputs - 1)) if self.outputs else hidden


def input_states(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The hidden states among the arguments of a layer."""
    return cast(Tensor, args[0] if args else kwargs.get("hidden_states", next(iter(kwargs.values()))))


@contextmanager
def edit_input(layer: nn.Module, edit: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Context in which ``layer`` gets ``edit(hidden)`` in place of its input ``hidden``."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        edited = edit(input_states(args, kwargs))
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
def capture_states(encoder: PreTrainedModel, number: int) -> Iterator[list[Tensor]]:
    """Context that collects the input of layer ``number`` in a list, in each pass and without detaching it.

    Layers are counted from 0. The input is read because some families compute something between two layers.
    """
    captured: list[Tensor] = []

    def record(hidden: Tensor) -> Tensor:
        captured.append(hidden)
        return hidden

    with edit_input(get_layers(encoder)[number], record):
        yield captured


def select_arguments(network: PreTrainedModel, texts: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that are arguments of the network's forward pass."""
    arguments = inspect.signature(network.forward).parameters
    return {name: tensor for name, tensor in texts.items() if name in arguments}
