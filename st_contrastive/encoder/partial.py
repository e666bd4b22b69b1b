"""Reading and editing an encoder's states between layers, and running some of its layers."""

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
    """An encoder of any family, whose states can be edited where they enter one layer, its branching point.

    transformers' own code for the family makes masks, positions and attention biases. A family that does not work so is
    refused.

    Args:
        encoder: it is not copied.
        split_layer: the layer, from 0, that the edited states enter.
        purpose: what the network is, for errors.
    """

    def __init__(self, encoder: PreTrainedModel, split_layer: int, purpose: str) -> None:
        super().__init__()
        self.encoder, self.split_layer = encoder, split_layer
        self._stack = layer_stack(encoder)
        self._try_once(purpose)

    @property
    def layers(self) -> nn.ModuleList:
        """All layers, lowest first."""
        owner, name = self._stack
        return cast(nn.ModuleList, getattr(owner, name))

    def forward(self, texts: dict[str, Any], vectors: Tensor, weights: dict[str, Tensor] | None = None) -> Tensor:
        """The last states (N, L, d), with the sentence vectors (N, d) in position 0 from the branching point on.

        Args:
            texts: as the encoder takes them: ``input_ids`` (N, L), ``attention_mask`` and so on.
            vectors: (N, d).
            weights: to use in place of the network's own, by name.
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
        """The encoder's parameters by the names of the network's outside its layers; with ``lower``, of those of the
        layers below the branching point too."""
        weights = dict(encoder.named_parameters())
        excluded = {id(p) for p in self.layers[self.split_layer if lower else 0 :].parameters()}
        names = [name for name, p in self.encoder.named_parameters() if id(p) not in excluded]
        if missing := [name for name in names if name not in weights]:
            raise ValueError(
                f"{type(encoder).__name__} has no weight {missing[0]}, because an adapter has replaced it, and the "
                "auxiliary network is to train it too. Keep adapters away from the embeddings, and in place of "
                "get_peft_model take model.add_adapter(config); with InfoCSELoss, use detach=True."
            )
        return {name: weights[name] for name in names}

    @torch.no_grad()
    def sync_frozen(self, encoder: PreTrainedModel) -> None:
        """Copy what is outside the layers from the branching point on from the encoder, its adapters merged."""
        if has_adapters(encoder):
            encoder = copy_encoder(encoder)
        copies = dict(self.encoder.named_parameters())
        for name, parameter in self.encoder_weights(encoder, lower=True).items():
            copies[name].copy_(parameter)

    def _run(self, texts: dict[str, Any], weights: dict[str, Tensor]) -> Tensor:
        arguments = {**select_arguments(self.encoder, texts), "return_dict": True}
        if not weights:
            return cast(Tensor, self.encoder(**arguments).last_hidden_state)
        dtype = self.encoder.dtype  # the encoder may have been cast since, as by bf16_full_eval
        weights = {name: weight.to(dtype) for name, weight in weights.items()}
        return cast(Tensor, functional_call(self.encoder, weights, kwargs=arguments).last_hidden_state)

    @contextmanager
    def _with_layers(self, part: nn.ModuleList) -> Iterator[None]:
        """Run a part of the layers. The list keeps its length, because some families count layers."""
        owner, name = self._stack
        layers = self.layers
        setattr(owner, name, part)
        try:
            yield
        finally:
            setattr(owner, name, layers)

    def _try_once(self, purpose: str) -> None:
        """Run the network whole, and from its branching point on, on two texts of two tokens."""
        ids = torch.tensor([[1, 2], [2, 1]], device=self.encoder.device)
        texts = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        #: Length of the tuple that a layer returns; 0 for a tensor.
        self._outputs = 0

        def record(_: nn.Module, __: Any, output: Any) -> None:
            self._outputs = 0 if isinstance(output, Tensor) else len(output)

        self.eval()
        handle = self.layers[self.split_layer].register_forward_hook(record)
        with trial_pass(self.encoder, purpose):
            with capture_states(self.encoder, self.split_layer) as states:
                whole = self._run(texts, {})
            handle.remove()
            parts = self(texts, states[0][:, 0]), self.forward_upper(states[0], texts, {})
            if not all(torch.allclose(whole, part, rtol=1e-2, atol=1e-3, equal_nan=True) for part in parts):
                raise ValueError("its states differ when its layers run in two parts")


class _SkippedLayer(nn.Module):
    """Returns its input in the form of a layer's output, and has the layer's attributes, which some encoders read."""

    def __init__(self, layer: nn.Module, outputs: int) -> None:
        super().__init__()
        vars(self).update({name: value for name, value in vars(layer).items() if name[0] != "_" and name != "forward"})
        self.outputs = outputs

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden = input_states(args, kwargs)
        return (hidden, *[None] * (self.outputs - 1)) if self.outputs else hidden


def input_states(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The hidden states among the arguments that a layer is called with."""
    return cast(Tensor, args[0] if args else kwargs.get("hidden_states", next(iter(kwargs.values()))))


@contextmanager
def edit_input(layer: nn.Module, edit: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While open, ``edit`` replaces the hidden states that enter ``layer``."""

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
    """While open, the list collects the hidden states after the lowest ``number`` layers, not all, with their gradient;
    after 0 layers, they are the embedding layer's output.

    They are read where they enter the next layer, because some families compute something between two layers.
    """
    captured: list[Tensor] = []

    def record(hidden: Tensor) -> Tensor:
        captured.append(hidden)
        return hidden

    with edit_input(get_layers(encoder)[number], record):
        yield captured


def select_arguments(network: PreTrainedModel, texts: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that the network's forward pass has an argument for."""
    arguments = inspect.signature(network.forward).parameters
    return {name: tensor for name, tensor in texts.items() if name in arguments}
