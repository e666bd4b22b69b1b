"""A masked-LM head for an encoder, from its checkpoint if that has one."""

from __future__ import annotations

import copy
import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from transformers import AutoConfig, AutoModelForMaskedLM, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from st_contrastive._checks import first_line
from st_contrastive._files import checkpoint_name
from st_contrastive.components.pretrained import load_masked_lm
from st_contrastive.encoder.layers import set_depth
from st_contrastive.encoder.model_facts import embedding_matrix
from st_contrastive.encoder.requirements import family_errors
from st_contrastive.encoder.token_batch import CorruptedTokens, TokenBatch
from st_contrastive.objectives.contrast import at_least_float32

logger = logging.getLogger(__name__)


@dataclass
class _LastStates(BaseModelOutput):
    """The output of an encoder, with a field that Longformer's masked-LM model reads."""

    global_attentions: Tensor | None = None


class _PassThrough(nn.Module):
    """Replaces the encoder inside a masked-LM model, and returns its input as the last hidden states."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _LastStates:
        return _LastStates(last_hidden_state=inputs_embeds)


class MaskedLMHead(nn.Module):
    """Vocabulary logits from hidden states, computed by the masked-LM class of the encoder's family in transformers.

    Most weights are in the decoder's matrix. An untied head owns and trains this matrix. A tied head has no matrix, and
    uses the embedding matrix of the encoder that is passed to it. Use :meth:`for_encoder`. The constructor takes a
    masked-LM model and removes its encoder.

    Attributes:
        source: "checkpoint" if the head's weights were trained, else "new".
        tied: whether the head is tied.
    """

    def __init__(self, model: PreTrainedModel, source: Literal["checkpoint", "new"], *, tied: bool) -> None:
        super().__init__()
        decoder = _decoder(model)
        setattr(model, model.base_model_prefix, _PassThrough())
        self._decoder_name = next(name for name, part in model.named_modules() if part is decoder)
        self.network = model
        self.source: Literal["checkpoint", "new"] = source
        self.tied = tied
        # A tied head has no parameter for the matrix, which must not be trained, saved or synchronised twice.
        decoder.register_parameter("weight", None if tied else nn.Parameter(decoder.weight.detach().clone()))
        self.train()  # transformers loads in evaluation mode

    @classmethod
    def for_encoder(cls, encoder: PreTrainedModel, *, tied: bool | None = False) -> MaskedLMHead:
        """The head of the encoder's checkpoint, or a new head whose decoder starts as the embedding matrix.

        With ``tied=None`` the head is tied, unless decoder and embeddings differ in the checkpoint.
        """
        matrix = embedding_matrix(encoder)
        with _head_errors(encoder.config):
            model = _from_checkpoint(encoder, matrix)
        source: Literal["checkpoint", "new"] = "new" if model is None else "checkpoint"
        if model is None:
            logger.info("%s has no masked-LM head: a new one is trained.", encoder.config.name_or_path)
            model = _untrained(encoder.config)
        nn.Module.to(model, device=matrix.device, dtype=matrix.dtype)
        decoder = _decoder(model)
        if decoder.weight.shape != matrix.shape:
            raise ValueError(
                f"The decoder of {type(model).__name__} has the shape {tuple(decoder.weight.shape)}, but the encoder's "
                f"embeddings have {tuple(matrix.shape)}. Use an encoder such as BERT or RoBERTa; DeBERTa-v2 works with "
                "config_kwargs={'legacy': True}."
            )
        if tied is None:  # the encoder's matrix may have been trained since it was loaded: compare the checkpoint's
            tied = source == "new" or torch.equal(decoder.weight, embedding_matrix(model))
        if source == "new":
            decoder.weight = nn.Parameter(matrix.detach().clone())
        with _head_errors(encoder.config), torch.no_grad():
            head = cls(model, source, tied=tied)
            head(matrix.new_zeros(1, encoder.config.hidden_size), encoder)  # fails if a head needs more than states
        return head

    @classmethod
    def from_config(cls, config: PretrainedConfig, source: Literal["checkpoint", "new"], *, tied: bool) -> MaskedLMHead:
        """A head with random weights for an encoder of this configuration."""
        return cls(_untrained(config), source, tied=tied)

    def untie(self, matrix: Tensor) -> None:
        """Add a trainable decoder matrix, which starts as a copy of ``matrix``."""
        self.tied = False
        decoder = self.network.get_submodule(self._decoder_name)
        decoder.register_parameter("weight", nn.Parameter(matrix.detach().clone()))

    def forward(self, hidden: Tensor, encoder: PreTrainedModel) -> Tensor:
        """Logits (M, V) of hidden states (M, d). A tied head uses the embedding matrix of ``encoder``."""
        # The Trainer may have cast the encoder (bf16_full_eval). A tied head may have no parameters.
        matrix = embedding_matrix(encoder)
        dtype = next(self.network.parameters(), matrix).dtype
        weights = {f"{self._decoder_name}.weight": matrix.to(dtype)} if self.tied else {}
        output = functional_call(self.network, weights, kwargs={"inputs_embeds": hidden.to(dtype)[None]})
        return cast(Tensor, output.logits[0])

    def summed_losses(
        self, encoder: PreTrainedModel, rows: TokenBatch, masked: CorruptedTokens, *states: Tensor
    ) -> tuple[Tensor, ...]:
        """Summed cross-entropy of the masked tokens for each of ``states`` (N, L, d), then the number of masked tokens.

        :meth:`forward` explains ``encoder``.
        """
        positions = masked.positions()
        targets = rows.ids.flatten()[positions]
        logits = (at_least_float32(self(part.flatten(0, 1)[positions], encoder)) for part in states)  # (M, V) each
        sums = (F.cross_entropy(part, targets, reduction="sum") for part in logits)
        return (*sums, torch.full((), len(positions), device=positions.device))


def _from_checkpoint(encoder: PreTrainedModel, matrix: Tensor) -> PreTrainedModel | None:
    """The masked-LM model of the encoder's checkpoint; None if there is no checkpoint or no trained head in it."""
    name, config = encoder.config.name_or_path, _head_config(encoder.config)
    if not name:
        return None
    try:
        # The encoder may have more tokens than its checkpoint.
        saved = AutoConfig.from_pretrained(checkpoint_name(name, "checkpoint"), trust_remote_code=False)
        size, config.vocab_size = config.vocab_size, getattr(saved, "vocab_size", config.vocab_size)
        model = load_masked_lm(name, "the encoder's checkpoint", config=config)
    except OSError as error:
        if isinstance(error.__cause__, (RuntimeError, ValueError)):  # the checkpoint has another kind or shape
            raise
        logger.warning("No masked-LM head could be loaded: %s", first_line(error))
        return None
    if model is not None and (saved_size := model.config.vocab_size) != size:
        model.resize_token_embeddings(size, mean_resizing=False)
        decoder = _decoder(model)
        if decoder.weight.shape == matrix.shape:
            decoder.weight.data[saved_size:] = matrix.data[saved_size:].to(decoder.weight)
    return model


def _untrained(config: PretrainedConfig) -> PreTrainedModel:
    with _head_errors(config):
        model = AutoModelForMaskedLM.from_config(  # type: ignore[no-untyped-call]
            _head_config(config), trust_remote_code=False
        )
    return cast(PreTrainedModel, model)


def _head_config(config: PretrainedConfig) -> PretrainedConfig:
    """The configuration with one layer, since only the head is needed. Some families divide by the number of layers."""
    config = copy.deepcopy(config)
    set_depth(config, [0])
    return config


def _decoder(model: PreTrainedModel) -> nn.Linear:
    return cast(nn.Linear, model.get_output_embeddings())  # type: ignore[no-untyped-call]


def _head_errors(config: PretrainedConfig) -> AbstractContextManager[None]:
    """Context that refuses families without a suitable head. Some have no head, others reject a single layer."""
    return family_errors(f"transformers has no suitable masked-LM head for the model type {config.model_type!r}")
