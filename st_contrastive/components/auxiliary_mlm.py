"""InfoCSE's auxiliary network: masked-LM that has to read the sentence vector to do well."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from st_contrastive._checks import require_count
from st_contrastive.components.masked_lm_head import MaskedLMHead
from st_contrastive.encoder.copies import has_adapters, own_copy
from st_contrastive.encoder.layers import (
    accepted_by,
    capturing_states,
    editing_input,
    entering_states,
    layer_stack,
    layers_of,
    set_depth,
)
from st_contrastive.encoder.model import embedding_matrix
from st_contrastive.encoder.requirements import trial_pass


class AuxiliaryMLM(nn.Module):
    """Frozen lower layers, a few trainable layers on top, and a masked-LM head (Wu et al., 2022, section 3).

    ``lower`` encodes the masked text without gradient. ``upper`` takes its states, with the full encoder's sentence
    vector at position 0, through which alone a gradient leaves the network. Both are layers of one model of the
    encoder's own class, so that transformers' own code for the family makes masks, positions and attention biases.

    Use :meth:`from_encoder`, or :func:`~st_contrastive.components.load_auxiliary` for a trained one. A tied head takes
    the embedding matrix of ``network``, whose lowest ``split_layer`` layers are frozen.

    Raises:
        ValueError: the encoder's family does not work as an auxiliary network.
    """

    def __init__(
        self, network: PreTrainedModel, head: MaskedLMHead, split_layer: int, *, lower_dropout: bool = False
    ) -> None:
        super().__init__()
        self.network, self.head = network, head
        self.split_layer, self.extra_layers = split_layer, len(layers_of(network)) - split_layer
        self.lower_dropout = lower_dropout
        self._stack = layer_stack(network)
        layers, skipped = self._layers, [_SkippedLayer(layer) for layer in self._layers]
        # In a tuple, so that they are not modules of this one a second time.
        self._parts = (
            nn.ModuleList([*layers[:split_layer], *skipped[split_layer:]]),
            nn.ModuleList([*skipped[:split_layer], *layers[split_layer:]]),
        )
        self.network.requires_grad_(False)
        self._upper_layers.requires_grad_(True)
        self._try_once(skipped)
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
        depth = len(layers_of(encoder))
        split = max(1, depth // 2) if split_layer is None else split_layer
        require_count("split_layer", split)
        if extra_layers is None:  # a network as deep as the encoder predicts as well without the sentence vector
            extra_layers = 2 if split + 2 < depth else 1
        require_count("extra_layers", extra_layers)
        if split >= depth or extra_layers > depth:
            raise ValueError(
                f"The encoder has {depth} layer(s): split_layer must be less, and extra_layers at most that; got "
                f"{split} and {extra_layers}. Take an encoder with two layers or more."
            )
        network = own_copy(encoder)
        owner, name = layer_stack(network)
        layers = list(getattr(owner, name))
        upper = [copy.deepcopy(layer) for layer in layers[depth - extra_layers :]]
        setattr(owner, name, nn.ModuleList([*layers[:split], *upper]))
        set_depth(network.config, [*range(split), *range(depth - extra_layers, depth)])
        return cls(network, MaskedLMHead.for_encoder(encoder, tied=tied_head), split, lower_dropout=lower_dropout)

    @staticmethod
    def signature_of(encoder: PreTrainedModel) -> dict[str, Any]:
        """What the network has in common with the encoder that is trained with it."""
        names = ("model_type", "vocab_size", "hidden_size", "max_position_embeddings")
        return {name: getattr(encoder.config, name, None) for name in names}

    @property
    def properties(self) -> dict[str, Any]:
        """What :func:`require_fit` compares."""
        depths = {"split_layer": self.split_layer, "extra_layers": self.extra_layers}
        return {**self.signature_of(self.network), **depths, "tied_head": self.head.tied}

    @property
    def _layers(self) -> nn.ModuleList:
        owner, name = self._stack
        return cast(nn.ModuleList, getattr(owner, name))

    @property
    def _upper_layers(self) -> nn.ModuleList:
        return self._layers[self.split_layer :]

    def train(self, mode: bool = True) -> AuxiliaryMLM:
        """As in PyTorch, but the frozen part stays in evaluation mode unless ``lower_dropout`` is set."""
        super().train(mode)
        self.network.train(mode and self.lower_dropout)
        self._upper_layers.train(mode)
        return self

    def lower(self, texts: dict[str, Any], encoder: PreTrainedModel | None = None) -> Tensor:
        """The states after the frozen layers, (N, L, d).

        Args:
            texts: the masked text as the encoder takes it: ``input_ids`` (N, L), ``attention_mask`` and so on.
            encoder: the full encoder, if its present weights are to be used here, and trained.
        """
        live = {} if encoder is None else self.require_live(encoder, layers=True)
        gradient = torch.no_grad() if encoder is None else nullcontext()
        with gradient, self._with_layers(self._parts[0]), capturing_states(self.network, self.split_layer) as states:
            self._run(texts, live)
        return states[0]

    def upper(
        self,
        lower: Tensor,
        vectors: Tensor,
        texts: dict[str, Any],
        encoder: PreTrainedModel | None = None,
        *,
        gradient_scale: float = 1.0,
    ) -> Tensor:
        """The last states, (N, L, d), from those of the lower layers with the sentence vectors at position 0.

        Args:
            lower: (N, L, d), from :meth:`lower`.
            vectors: (N, d).
            texts: as for :meth:`lower`.
            encoder: the full encoder, if parts outside the layers (relative biases, a last norm) are its own.
            gradient_scale: factor on the gradient that leaves the network.
        """
        first = self._layers[self.split_layer]
        kind = next(first.parameters()).dtype  # the encoder may have been cast since, as by bf16_full_eval
        states = torch.cat([vectors.to(kind)[:, None], lower[:, 1:].to(kind)], dim=1)
        states = scale_gradient(states, gradient_scale)
        live = {} if encoder is None else self.require_live(encoder, layers=False)
        live = {name: scale_gradient(weight, gradient_scale).to(kind) for name, weight in live.items()}
        with self._with_layers(self._parts[1]), editing_input(first, lambda _: states):
            return self._run(texts, live)

    def logits(self, states: Tensor, encoder: PreTrainedModel | None = None) -> Tensor:
        """(M, d) to (M, V). A tied head uses the embedding matrix of ``encoder`` if given, else the frozen copy's."""
        matrix = embedding_matrix(encoder or self.network) if self.head.tied else None
        return cast(Tensor, self.head(states, matrix))

    @torch.no_grad()
    def copy_lower(self, encoder: PreTrainedModel) -> None:
        """Copy the encoder's present lower layers, embeddings and other shared parts into the frozen part."""
        if has_adapters(encoder):
            encoder = own_copy(encoder)
        copies = dict(self.network.named_parameters())
        for name, parameter in self.require_live(encoder, layers=True).items():
            copies[name].copy_(parameter)

    def require_live(self, encoder: PreTrainedModel, *, layers: bool) -> dict[str, Tensor]:
        """The encoder's parameters that replace the frozen part's, by name; with ``layers``, the lower layers' too."""
        if hasattr(encoder, "merge_and_unload"):
            raise ValueError(
                "The encoder is in PEFT's get_peft_model, and the auxiliary network is to train its weights too. Add "
                "the adapter with model.add_adapter(config) instead."
            )
        weights = dict(encoder.named_parameters())
        excluded = {id(p) for p in (self._upper_layers if layers else self._layers).parameters()}
        names = [name for name, p in self.network.named_parameters() if id(p) not in excluded]
        if missing := [name for name in names if name not in weights]:
            raise ValueError(
                f"{type(encoder).__name__} has no weight {missing[0]}, because an adapter has replaced it, and the "
                "auxiliary network is to train it too. Keep adapters away from the embeddings and add them with "
                "model.add_adapter; with InfoCSELoss, use detach=True."
            )
        return {name: weights[name] for name in names}

    def _run(self, texts: dict[str, Any], live: dict[str, Tensor]) -> Tensor:
        arguments = {**accepted_by(self.network, texts), "return_dict": True}
        return cast(Tensor, functional_call(self.network, live, kwargs=arguments).last_hidden_state)

    @contextmanager
    def _with_layers(self, part: nn.ModuleList) -> Iterator[None]:
        """Run a part of the layers. The list keeps its length, because some families count layers."""
        owner, name = self._stack
        layers = self._layers
        setattr(owner, name, part)
        try:
            yield
        finally:
            setattr(owner, name, layers)

    def _try_once(self, skipped: list[_SkippedLayer]) -> None:
        """Run the network whole, and in its two parts, on two texts of two tokens."""
        ids = torch.tensor([[1, 2], [2, 1]], device=self.network.device)
        texts = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        lengths: list[int] = []
        self.eval()
        handle = self._upper_layers[0].register_forward_hook(
            lambda _, __, output: lengths.append(0 if isinstance(output, Tensor) else len(output))
        )
        with trial_pass(self.network, "an auxiliary network"):
            whole = self._run(texts, {})
            handle.remove()
            for layer in skipped:
                layer.outputs = lengths[0]
            lower = self.lower(texts)
            parts = self.upper(lower, lower[:, 0], texts)
            self.logits(parts[0])
            if not torch.allclose(whole, parts, rtol=1e-2, atol=1e-3, equal_nan=True):
                raise ValueError("its states differ when its layers run in two parts")


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


def scale_gradient(tensor: Tensor, factor: float) -> Tensor:
    """The tensor itself, but its gradient is multiplied by ``factor``."""
    if factor == 1:
        return tensor
    # Multiplied in float32, and then rounded to half precision, as every gradient is.
    wide = tensor.float() if tensor.dtype.itemsize < 4 else tensor
    constant = wide.detach()
    return (constant + factor * (wide - constant)).to(tensor.dtype)


class _SkippedLayer(nn.Module):
    """Returns its input in the form of a layer's output, and has the layer's attributes, which some encoders read."""

    #: Length of the tuple that a layer returns; 0 for a tensor.
    outputs = 0

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        vars(self).update({name: value for name, value in vars(layer).items() if name[0] != "_" and name != "forward"})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden = entering_states(args, kwargs)
        return (hidden, *[None] * (self.outputs - 1)) if self.outputs else hidden
