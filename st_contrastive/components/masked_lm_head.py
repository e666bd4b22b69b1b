"""A masked-LM head of the encoder's own family, from its checkpoint if that has one."""

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
    """An encoder's output, with the field that Longformer's head hands on."""

    global_attentions: Tensor | None = None


class _PassThrough(nn.Module):
    """Replaces the encoder inside a masked-LM model: the input is taken as the last hidden states."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _LastStates:
        return _LastStates(last_hidden_state=inputs_embeds)


class MaskedLMHead(nn.Module):
    """Vocabulary logits from hidden states, computed by transformers' masked-LM class of the encoder's family.

    The decoder's matrix is the largest part. Either the head owns and trains it, or the head is tied: then it owns the
    rest only, and takes the embedding matrix of the encoder that a call names. ``source`` is "checkpoint" if the head's
    weights are trained, "new" if not. Use :meth:`for_encoder`; the constructor removes the encoder of a masked-LM
    model.
    """

    def __init__(self, model: PreTrainedModel, source: Literal["checkpoint", "new"], *, tied: bool) -> None:
        super().__init__()
        decoder = _decoder(model)
        setattr(model, model.base_model_prefix, _PassThrough())
        self._decoder_name = next(name for name, part in model.named_modules() if part is decoder)
        self.network = model
        self.source: Literal["checkpoint", "new"] = source
        self.tied = tied
        # A tied head has no parameter for the matrix, so that it is not trained, saved or synchronised twice.
        decoder.register_parameter("weight", None if tied else nn.Parameter(decoder.weight.detach().clone()))
        self.train()  # transformers loads in evaluation mode

    @classmethod
    def for_encoder(cls, encoder: PreTrainedModel, *, tied: bool | None = False) -> MaskedLMHead:
        """The checkpoint's head if it has one, else a new one, whose decoder starts as the embedding matrix.

        With ``tied=None`` the head is tied, unless the checkpoint's decoder has another matrix than its embeddings.
        """
        matrix = embedding_matrix(encoder)
        with _finding_a_head(encoder.config):
            model = _from_checkpoint(encoder, matrix)
        source: Literal["checkpoint", "new"] = "new" if model is None else "checkpoint"
        if model is None:
            logger.info("%s has no masked-LM head: a new one is trained.", encoder.config._name_or_path)
            model = _untrained(encoder.config)
        nn.Module.to(model, device=matrix.device, dtype=matrix.dtype)
        decoder = _decoder(model)
        if decoder.weight.shape != matrix.shape:
            raise ValueError(
                f"The masked-LM head of {type(model).__name__} has a decoder of shape {tuple(decoder.weight.shape)}, "
                f"the encoder's embeddings {tuple(matrix.shape)}: they don't fit together. Take an encoder such as "
                "BERT or RoBERTa; DeBERTa-v2 works with config_kwargs={'legacy': True}."
            )
        if tied is None:  # the encoder's own matrix may have been trained since it was loaded
            tied = source == "new" or torch.equal(decoder.weight, embedding_matrix(model))
        if source == "new":
            decoder.weight = nn.Parameter(matrix.detach().clone())
        with _finding_a_head(encoder.config), torch.no_grad():
            head = cls(model, source, tied=tied)
            head(matrix.new_zeros(1, encoder.config.hidden_size), encoder)  # some families' heads read more than states
        return head

    @classmethod
    def from_config(cls, config: PretrainedConfig, source: Literal["checkpoint", "new"], *, tied: bool) -> MaskedLMHead:
        """A head for an encoder of that configuration, with random weights."""
        return cls(_untrained(config), source, tied=tied)

    def untie(self, matrix: Tensor) -> None:
        """Give the head its own matrix, which starts as a copy of ``matrix``."""
        self.tied = False
        decoder = self.network.get_submodule(self._decoder_name)
        decoder.register_parameter("weight", nn.Parameter(matrix.detach().clone()))

    def forward(self, hidden: Tensor, encoder: PreTrainedModel) -> Tensor:
        """Logits (M, V) of hidden states (M, d); a tied head takes the encoder's embedding matrix."""
        # The encoder may have been cast since, as by the Trainer's bf16_full_eval. A tied head may own nothing.
        matrix = embedding_matrix(encoder)
        dtype = next(self.network.parameters(), matrix).dtype
        weights = {f"{self._decoder_name}.weight": matrix.to(dtype)} if self.tied else {}
        output = functional_call(self.network, weights, kwargs={"inputs_embeds": hidden.to(dtype)[None]})
        return cast(Tensor, output.logits[0])

    def summed_losses(
        self, encoder: PreTrainedModel, rows: TokenBatch, masked: CorruptedTokens, *states: Tensor
    ) -> tuple[Tensor, ...]:
        """Summed cross-entropy of the masked tokens from each of the states (N, L, d), and the number of these tokens.

        ``encoder`` is as in :meth:`forward`.
        """
        positions = masked.positions()
        targets = rows.ids.flatten()[positions]
        logits = (at_least_float32(self(part.flatten(0, 1)[positions], encoder)) for part in states)  # (M, V) each
        sums = (F.cross_entropy(part, targets, reduction="sum") for part in logits)
        return (*sums, torch.full((), len(positions), device=positions.device))


def _from_checkpoint(encoder: PreTrainedModel, matrix: Tensor) -> PreTrainedModel | None:
    """The masked-LM model of the encoder's checkpoint; None where that can't be loaded, or has no trained head."""
    name, config = encoder.config._name_or_path, _head_config(encoder.config)
    if not name:
        return None
    try:
        # Tokens may have been added to the encoder since it was loaded.
        saved = AutoConfig.from_pretrained(checkpoint_name(name, "checkpoint"), trust_remote_code=False)
        size, config.vocab_size = config.vocab_size, getattr(saved, "vocab_size", config.vocab_size)
        model = load_masked_lm(name, "the encoder's checkpoint", config=config)
    except OSError as error:
        if isinstance(error.__cause__, (RuntimeError, ValueError)):  # there is a checkpoint, of another kind or shape
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
    with _finding_a_head(config):
        model = AutoModelForMaskedLM.from_config(  # type: ignore[no-untyped-call]
            _head_config(config), trust_remote_code=False
        )
    return cast(PreTrainedModel, model)


def _head_config(config: PretrainedConfig) -> PretrainedConfig:
    """That of a model with one layer: only the head is needed, but some families divide by the depth."""
    config = copy.deepcopy(config)
    set_depth(config, [0])
    return config


def _decoder(model: PreTrainedModel) -> nn.Linear:
    return cast(nn.Linear, model.get_output_embeddings())  # type: ignore[no-untyped-call]


def _finding_a_head(config: PretrainedConfig) -> AbstractContextManager[None]:
    """Some families reject a single layer, others have no head, or one of its own."""
    return family_errors(f"transformers has no suitable masked-LM head for the model type {config.model_type!r}")
