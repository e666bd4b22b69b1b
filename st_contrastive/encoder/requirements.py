"""Checks of a model when a loss is built, which refuse it or warn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from st_contrastive._checks import first_line, warn
from st_contrastive.encoder.copies import copy_sharing_weights, has_adapters
from st_contrastive.encoder.model_facts import (
    dropout_setting,
    get_encoder,
    get_tokenizer,
    has_dropout,
    is_causal,
    learned_positions,
    reads_first_token,
    unwrap,
    vocabulary_size,
)
from st_contrastive.encoder.quantised_weights import find_packed_weights, find_quantised_weight


def require_text_encoder(model: nn.Module) -> None:
    """Refuse a model that does not start with a token-level Transformer module (a TypeError), or that has no tokenizer
    with a vocabulary."""
    require_vocabulary(get_tokenizer(model), vocabulary_size(get_encoder(model)), "model")


def require_vocabulary(tokenizer: Any, rows: int | None, owner: str) -> None:
    """Refuse a tokenizer without words, or with more tokens than a matrix of embeddings has ``rows``; ``owner`` of both
    begins the message."""
    # Of a folder without tokenizer files, transformers makes a tokenizer that has special tokens alone.
    if not isinstance(tokenizer, PreTrainedTokenizerBase) or len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ValueError(
            f"{owner} has no tokenizer with a vocabulary (got {type(tokenizer).__name__}): its folder has no tokenizer "
            "files. Save the tokenizer beside the encoder (tokenizer.save_pretrained(folder)) and load it again."
        )
    largest = max(tokenizer.get_vocab().values())
    if rows is not None and largest >= rows:
        raise ValueError(
            f"{owner} has the token {largest}, but {rows} embeddings: take both from one checkpoint, or call "
            "model.transformers_model.resize_token_embeddings(len(model.tokenizer)) before you build the loss."
        )


def require_trainable(model: SentenceTransformer) -> None:
    """Refuse a model that training would leave as it is, or destroy."""
    require_unquantised(model)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ValueError(
            "No weight of model is trained (requires_grad is False everywhere), so that only the loss's own head would "
            "learn. Call model.requires_grad_(True), or put a Dense module behind the frozen encoder. PEFT loads saved "
            "adapters frozen: unfreeze them by [p.requires_grad_(True) for n, p in model.named_parameters() if 'lora_' "
            "in n]."
        )
    require_positions(model, get_encoder(model))
    require_no_half(model, "model has")


def require_unquantised(model: SentenceTransformer) -> None:
    """Refuse quantised weights. Those that let gradients pass are accepted under an encoder with adapters."""
    if name := find_packed_weights(model):
        raise ValueError(
            f"model has quantised weights ({name}). No gradient passes through them, and the model could not be saved. "
            "Load the model unquantised, train it, and quantise it afterwards."
        )
    if not has_adapters(get_encoder(model)) and (weight := find_quantised_weight(model)):
        raise ValueError(
            f"model has quantised weights ({weight}), which training does not change. Load the model unquantised, or "
            "add an adapter (model.add_adapter)."
        )


def warn_of_training(model: SentenceTransformer) -> None:
    """Warn of weights that hardly move, and of a decoder that is read where it has read nothing."""
    if any(weight.dtype == torch.bfloat16 for weight in model.parameters() if weight.requires_grad):
        warn(
            "model has bfloat16 weights, in which most small updates round away. Load it with model_kwargs={'dtype': "
            "torch.float32}; on a GPU, the trainer's bf16=True saves time."
        )
    if reads_first_token(model) and is_causal(model):
        warn(
            "model is a decoder that is read at its first token, which sees no other: sentences that begin alike get "
            "one vector. End it with Pooling(width, 'lasttoken') or 'mean'."
        )


def require_positions(model: nn.Module, network: PreTrainedModel) -> None:
    """Refuse a model that reads longer texts than a network, its encoder or another, has learned positions for."""
    length, limit = unwrap(model).max_seq_length, learned_positions(network)
    if length is None or (limit is not None and length > limit):
        raise ValueError(
            f"model.max_seq_length is {length}, so that texts would not be truncated to what {type(network).__name__} "
            f"can read: set it (--max_length) to {'a number' if limit is None else f'{limit}, or less'}."
        )


def require_no_half(part: nn.Module, owner: str) -> None:
    """Refuse float16 weights that are trained; ``owner`` begins the message."""
    if any(weight.dtype == torch.float16 for weight in part.parameters() if weight.requires_grad):
        raise ValueError(
            f"{owner} float16 weights: an optimizer's squared gradients underflow in them, and its steps become "
            "arbitrary. Load the model with model_kwargs={'dtype': torch.float32}, or take model.float(); on a "
            "GPU, the trainer's fp16=True or bf16=True saves time."
        )


def require_independent_rows(model: nn.Module, argument: str) -> None:
    """Refuse a model whose vector for a row depends on the batch's other rows."""
    if any(isinstance(module, _BatchNorm) for module in unwrap(model).modules()):
        raise ValueError(
            f"{argument} can't be used: the model has BatchNorm, whose statistics would be a mini-batch's."
        )


def warn_without_dropout(model: nn.Module, name: str) -> None:
    """Warn where the encoder has no dropout, which the loss ``name`` takes as its only augmentation."""
    if has_dropout(model):
        return
    setting = dropout_setting(model)
    remedy = "Its configuration has no setting for it: use another encoder, or SimCSELoss with two columns."
    if setting is not None:
        remedy = f"Load it with dropout, for instance Transformer(name, config_kwargs={{{setting!r}: 0.1}}); "
        remedy += "for the command line, save the model with it."
    warn(
        f"{name} takes the encoder's dropout as its only augmentation, and this encoder has none, so that both views "
        f"of a sentence are the same. {remedy}"
    )


def require_plain_tokens(model: nn.Module, reader: str) -> None:
    """Refuse a model that changes the encoder's token vectors before it pools them; ``reader`` begins the message."""
    adapters = getattr(get_encoder(model), "peft_config", None) or {}
    change = ""
    if any(getattr(adapter, "is_prompt_learning", False) for adapter in adapters.values()):
        change = "prompt tuning (PEFT) puts others before them: take LoRA"
    for module in list(unwrap(model))[1:]:
        if isinstance(module, Pooling):
            break
        if (kind := type(module).__name__) in ("Dense", "CNN", "LSTM", "WordWeights", "WeightedLayerPooling"):
            remedy = "put it behind the Pooling" if kind == "Dense" else "take it out"
            change = f"{kind} changes them before the model pools them: {remedy}"
    if change:
        raise ValueError(
            f"{reader} reads the encoder's own token vectors, and {change}, or take a loss that reads sentence vectors "
            "only, such as SimCSELoss or ConIsILoss."
        )


def require_embeddings_as_input(encoder: PreTrainedModel) -> None:
    """Refuse an encoder whose states of token embeddings are not those of the tokens."""
    encoder = copy_sharing_weights(encoder).train(False)
    last = vocabulary_size(encoder) or 9  # its first tokens may be padding, which some families give no position
    ids = last - torch.arange(2, 10, device=encoder.device).expand(2, -1)
    mask = torch.ones_like(ids)
    with trial_pass(encoder, "fed with embeddings, as the fraternal twin needs"):
        from_ids = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        embeddings = encoder.get_input_embeddings()(ids)
        from_embeddings = encoder(inputs_embeds=embeddings, attention_mask=mask).last_hidden_state
        if not torch.allclose(from_ids, from_embeddings, rtol=1e-2, atol=1e-3, equal_nan=True):
            raise ValueError("its states differ from those of the tokens")


@contextmanager
def trial_pass(network: PreTrainedModel, purpose: str) -> Iterator[None]:
    """Wraps one forward pass of a network that a loss owns, so that an unsuitable family is refused before training."""
    flash = "flash" in str(network.config._attn_implementation)  # which takes half precision only
    precision = torch.autocast(network.device.type, torch.bfloat16, cache_enabled=False) if flash else nullcontext()
    with family_errors(f"{type(network).__name__} can't be {purpose}"), torch.no_grad(), precision:
        yield


@contextmanager
def family_errors(complaint: str) -> Iterator[None]:
    """Turn any exception into a refusal that begins with the complaint, where the cause is the encoder's family."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"{complaint} ({type(error).__name__}: {first_line(error)}). Take an encoder such as BERT, RoBERTa, MPNet, "
            "DistilBERT, ELECTRA or ModernBERT."
        ) from error
