"""Requirements of the losses on a model. Each check raises an error or warns."""

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
    """Require a Transformer module at the start of the model, and a tokenizer with a vocabulary."""
    require_vocabulary(get_tokenizer(model), vocabulary_size(get_encoder(model)), "model")


def require_vocabulary(tokenizer: Any, rows: int | None, owner: str) -> None:
    """Require a tokenizer with words, and an embedding for each token. The error's message begins with ``owner``.

    ``rows`` is the number of embeddings; None skips that check.
    """
    # For a folder without tokenizer files, transformers makes a tokenizer that has only special tokens.
    if not isinstance(tokenizer, PreTrainedTokenizerBase) or len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ValueError(
            f"{owner} has no tokenizer with a vocabulary (got {type(tokenizer).__name__}): its folder has no tokenizer "
            "files. Save the tokenizer into the encoder's folder (tokenizer.save_pretrained(folder)) and load it again."
        )
    largest = max(tokenizer.get_vocab().values())
    if rows is not None and largest >= rows:
        raise ValueError(
            f"{owner} has the token id {largest}, but only {rows} embeddings. Take both from one checkpoint, or call "
            "model.transformers_model.resize_token_embeddings(len(model.tokenizer)) before you build the loss."
        )


def require_trainable(model: SentenceTransformer) -> None:
    """Refuse a model that training would not change, or would destroy."""
    require_unquantised(model)
    disabled = [module for module in model.modules() if getattr(module, "disable_adapters", False) is True]
    in_disabled = {id(weight) for module in disabled for weight in module.parameters()}
    if disabled and all(id(weight) in in_disabled for weight in model.parameters() if weight.requires_grad):
        raise ValueError(
            "model has disabled adapters and no other trainable weight, so training would not change it. Call "
            "model.enable_adapters()."
        )
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ValueError(
            "model has no trainable weight (requires_grad is False everywhere): only the loss's head would learn. Call "
            "model.requires_grad_(True), or append a Dense module to the frozen encoder. PEFT loads saved adapters "
            "frozen. Unfreeze them: [p.requires_grad_(True) for n, p in model.named_parameters() if 'lora_' in n]."
        )
    require_positions(model, get_encoder(model))
    require_no_half(model, "model has")


def require_unquantised(model: SentenceTransformer) -> None:
    """Refuse quantised weights. An encoder with adapters may have them if gradients pass through them."""
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
    """Warn about bfloat16 weights, and about a causal model with first-token pooling."""
    if any(weight.dtype == torch.bfloat16 for weight in model.parameters() if weight.requires_grad):
        warn(
            "model has bfloat16 weights, and most small updates are lost to rounding. Load it with "
            "model_kwargs={'dtype': torch.float32}; on a GPU, the trainer's bf16=True saves time."
        )
    if reads_first_token(model) and is_causal(model):
        warn(
            "model is a causal model with first-token pooling. The first token sees no other, and sentences with the "
            "same beginning get the same vector. Use Pooling(width, 'lasttoken') or 'mean'."
        )


def require_positions(model: nn.Module, network: PreTrainedModel) -> None:
    """Require that the model truncates texts to the number of position embeddings that ``network`` has learned.

    ``network`` is the model's encoder, or another one that reads the same tokens.
    """
    length, limit = unwrap(model).max_seq_length, learned_positions(network)
    if length is None or (limit is not None and length > limit):
        raise ValueError(
            f"model.max_seq_length is {length}, and longer texts than {type(network).__name__} can read would not be "
            f"truncated. Set it (--max_length) to {'a number' if limit is None else f'{limit}, or less'}."
        )


def require_no_half(part: nn.Module, complaint: str) -> None:
    """Refuse trainable float16 weights. ``complaint`` begins the message, such as "model has"."""
    if any(weight.dtype == torch.float16 for weight in part.parameters() if weight.requires_grad):
        raise ValueError(
            f"{complaint} float16 weights, in which an optimizer's squared gradients underflow and its steps become "
            "arbitrary. Load the model with model_kwargs={'dtype': torch.float32}, or call model.float(). On a GPU, "
            "the trainer's fp16=True or bf16=True saves time."
        )


def require_independent_rows(model: nn.Module, argument: str) -> None:
    """Refuse a model whose vector for a row depends on the batch's other rows."""
    if any(isinstance(module, _BatchNorm) for module in unwrap(model).modules()):
        raise ValueError(
            f"{argument} can't be used with a model that has BatchNorm, because its statistics would come from a "
            "mini-batch."
        )


def warn_without_dropout(model: nn.Module, name: str) -> None:
    """Warn if the encoder has no dropout. The loss ``name`` has no other augmentation."""
    if has_dropout(model):
        return
    setting = dropout_setting(model)
    remedy = "Its configuration has no setting for dropout. Use another encoder, or SimCSELoss with two columns."
    if setting is not None:
        remedy = f"Load the encoder with dropout, for instance Transformer(name, config_kwargs={{{setting!r}: 0.1}}). "
        remedy += "For the command line, save a model that was loaded this way."
    warn(
        f"{name} takes the encoder's dropout as its only augmentation. This encoder has none, so both views of a "
        f"sentence are the same. {remedy}"
    )


def require_plain_tokens(model: nn.Module, reader: str) -> None:
    """Refuse a model that changes the encoder's token vectors before pooling. The message begins with ``reader``."""
    adapters = getattr(get_encoder(model), "peft_config", None) or {}
    change = ""
    if any(getattr(adapter, "is_prompt_learning", False) for adapter in adapters.values()):
        change = "prompt tuning (PEFT) inserts others before them. Use LoRA"
    for module in list(unwrap(model))[1:]:
        if isinstance(module, Pooling):
            break
        if (kind := type(module).__name__) in ("Dense", "CNN", "LSTM", "WordWeights", "WeightedLayerPooling"):
            remedy = "Move it behind the Pooling" if kind == "Dense" else "Remove it"
            change = f"{kind} changes them before pooling. {remedy}"
    if change:
        raise ValueError(
            f"{reader} reads the encoder's token vectors, and {change}, or use a loss that only reads sentence "
            "vectors, such as SimCSELoss or ConIsILoss."
        )


def require_embeddings_as_input(encoder: PreTrainedModel) -> None:
    """Require an encoder that computes the same states from token embeddings as from token ids."""
    encoder = copy_sharing_weights(encoder).train(False)
    last = vocabulary_size(encoder) or 9  # the first tokens may be padding, which has no position in some families
    ids = last - torch.arange(2, 10, device=encoder.device).expand(2, -1)
    mask = torch.ones_like(ids)
    with trial_pass(encoder, "fed with embeddings, as the fraternal twin needs"):
        from_ids = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        embeddings = encoder.get_input_embeddings()(ids)
        from_embeddings = encoder(inputs_embeds=embeddings, attention_mask=mask).last_hidden_state
        if not torch.allclose(from_ids, from_embeddings, rtol=1e-2, atol=1e-3, equal_nan=True):
            raise ValueError("its states differ from those of the token ids")


@contextmanager
def trial_pass(network: PreTrainedModel, purpose: str) -> Iterator[None]:
    """Context of a trial forward pass before training. Any exception in it becomes a ValueError about the network."""
    flash = "flash" in str(network.config._attn_implementation)  # FlashAttention only takes half precision
    precision = torch.autocast(network.device.type, torch.bfloat16, cache_enabled=False) if flash else nullcontext()
    with family_errors(f"{type(network).__name__} can't be {purpose}"), torch.no_grad(), precision:
        yield


@contextmanager
def family_errors(complaint: str) -> Iterator[None]:
    """Turn any exception into a ValueError that begins with ``complaint`` and recommends families of encoders."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"{complaint} ({type(error).__name__}: {first_line(error)}). Use an encoder such as BERT, RoBERTa, MPNet, "
            "DistilBERT, ELECTRA or ModernBERT."
        ) from error
