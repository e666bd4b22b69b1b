"""Facts about a SentenceTransformer: its parts, widths, limits and family traits."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util import is_sentence_transformer_model
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase


def wrapper_chain(model: nn.Module) -> list[nn.Module]:
    """The wrappers around a SentenceTransformer, outermost first, and the SentenceTransformer itself, last.

    DDP has what it wraps as ``module``, torch.compile as ``_orig_mod``.

    Raises:
        TypeError: there is no SentenceTransformer inside.
    """
    found = [model]
    while not isinstance(found[-1], SentenceTransformer):
        inner = getattr(found[-1], "module", None) or getattr(found[-1], "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            raise TypeError(f"model must be a SentenceTransformer, got {type(found[-1]).__name__}.")
        found.append(inner)
    return found


def unwrap(model: nn.Module) -> SentenceTransformer:
    """The SentenceTransformer inside its wrappers."""
    return cast(SentenceTransformer, wrapper_chain(model)[-1])


def text_module(model: nn.Module) -> Transformer:
    """The token-level Transformer module that the model starts with.

    Raises:
        TypeError: the model has none, or it gives no token embeddings.
    """
    first = unwrap(model)[0]
    if not isinstance(first, Transformer) or first.module_output_name != "token_embeddings":
        raise TypeError(
            f"model must start with a token-level Transformer module, got {type(first).__name__}: these losses need "
            "dropout and token embeddings. Build the model as SentenceTransformer(modules=[Transformer(name), "
            "Pooling(width, 'cls')])."
        )
    return cast(Transformer, first)


def require_text_encoder(model: nn.Module) -> None:
    """Refuse what none of the losses can work with: looked at once, when a loss is built.

    Raises:
        TypeError: the model does not start with a token-level Transformer module.
        ValueError: it has no tokenizer, or one that knows no word.
    """
    first = text_module(model)
    if not isinstance(first.tokenizer, PreTrainedTokenizerBase):
        raise ValueError(
            "model has no tokenizer, which these losses need to tell words from special tokens. Load the Transformer "
            "module from a folder or name that holds one."
        )
    if len(first.tokenizer) <= len(set(first.tokenizer.all_special_ids)):
        # What transformers makes of a folder without tokenizer files: every word is unknown to it.
        raise ValueError(
            f"model's tokenizer ({type(first.tokenizer).__name__}) knows no word: its folder holds no tokenizer files. "
            "Save the tokenizer beside the encoder (tokenizer.save_pretrained(folder)) and load the model again."
        )


def encoder_of(model: nn.Module) -> PreTrainedModel:
    """The transformers model inside."""
    return text_module(model).model


def tokenizer_of(model: nn.Module) -> PreTrainedTokenizerBase:
    """The tokenizer inside."""
    return cast(PreTrainedTokenizerBase, text_module(model).tokenizer)


def embedding_width(model: nn.Module) -> int:
    """Width of the sentence embeddings in training, where ``truncate_dim`` does not cut them."""
    for module in reversed(list(unwrap(model))):
        width = getattr(module, "get_embedding_dimension", None)
        if callable(width):
            return int(width())
    raise ValueError("model does not tell its embedding dimension; end it with a Pooling or Dense module.")


def token_width(model: nn.Module) -> int:
    """Width of the token embeddings."""
    return int(text_module(model).get_embedding_dimension())


def input_embedding_width(model: nn.Module) -> int:
    """Width of the embedding matrix, which some families (ALBERT, ELECTRA) project to that of the layers."""
    return cast(Tensor, encoder_of(model).get_input_embeddings().weight).shape[1]


def is_saved_model(name: str) -> bool:
    """Whether a folder or hub name is a saved SentenceTransformer, and not a plain checkpoint."""
    return bool(is_sentence_transformer_model(name))


def max_positions(model: nn.Module) -> int | None:
    """Most tokens that the encoder has positions for; None where it tells no limit."""
    table = position_table(model)
    limit = getattr(encoder_of(model).config, "max_position_embeddings", None) if table is None else table
    return limit if isinstance(limit, int) and limit > 0 else None


def position_table(model: nn.Module) -> int | None:
    """Most tokens that the encoder's table of position embeddings has rows for: a longer text fails.

    None where it has no such table, as encoders with relative or rotary positions. Families with RoBERTa's position ids
    start counting behind the padding index, and lose that many rows.
    """
    for name, module in encoder_of(model).named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return None


def has_dropout(model: nn.Module) -> bool:
    """Whether two passes of the encoder in training can differ."""
    encoder = encoder_of(model)
    layers = any(isinstance(module, nn.Dropout) and module.p > 0 for module in encoder.modules())
    # Some families apply it to the attention weights without a module.
    return layers or bool(getattr(encoder.config, "attention_dropout", 0))


def dropout_setting(model: nn.Module) -> str:
    """What the encoder's family calls its layers' dropout in the configuration; BERT's word where none is known."""
    settings = encoder_of(model).config.to_dict()
    names = ("hidden_dropout_prob", "hidden_dropout", "dropout", "embedding_dropout", "attention_dropout")
    return next((name for name in names if name in settings), names[0])


def is_causal(model: nn.Module) -> bool:
    """Whether the encoder's tokens see those before them alone, as far as its configuration and layers tell."""
    encoder = encoder_of(model)
    if getattr(encoder.config, "is_causal", None) is False or getattr(
        encoder.config, "use_bidirectional_attention", None
    ):
        return False
    return any(getattr(module, "is_causal", False) is True for module in encoder.modules())


POOLING_MODES: tuple[str, ...] = tuple(Pooling.POOLING_MODES)


#: What sentence-transformers puts behind a pooling that reads the pooled vector alone.
_BEHIND_POOLING = ("Normalize", "Dense", "LayerNorm", "Dropout")
_HOSTS = "sentence_transformers."


def embeds_first_token(model: nn.Module) -> bool:
    """Whether the sentence embedding is made of the first token's last state alone."""
    behind = list(unwrap(model))[1:]
    if not behind or type(behind[0]) is not Pooling or behind[0].pooling_mode not in ("cls", ("cls",), ["cls"]):
        return False
    kinds = [type(module) for module in behind[1:]]
    return all(kind.__name__ in _BEHIND_POOLING and kind.__module__.startswith(_HOSTS) for kind in kinds)


def require_trainable(model: SentenceTransformer) -> None:
    """Refuse weights that training destroys; warn of a first token that sees no other, and of weights that hardly move.

    Raises:
        ValueError: weights that are trained are float16, or the model has no limit to cut texts at.
    """
    if unwrap(model).max_seq_length is None:
        limit = max_positions(model)
        raise ValueError(
            "model.max_seq_length is None, and the tokenizer needs a number to cut texts at: set model.max_seq_length"
            + (f", at most {limit}, the positions that the encoder has." if limit else ".")
        )
    kinds = {weight.dtype for weight in model.parameters() if weight.requires_grad}
    if torch.float16 in kinds:
        raise ValueError(
            "model has float16 weights: an optimizer's squared gradients underflow in them, and its steps become "
            "arbitrary. Load it with model_kwargs={'dtype': torch.float32}, or take model.float(); to save time, give "
            "the trainer fp16=True or bf16=True."
        )
    if torch.bfloat16 in kinds:
        warnings.warn(
            "model has bfloat16 weights, in which most small updates round away. Load it with model_kwargs={'dtype': "
            "torch.float32}, and give the trainer bf16=True to save time.",
            stacklevel=5,
        )
    if embeds_first_token(model) and is_causal(model):
        warnings.warn(
            "model is a decoder that is read at its first token, which sees no other: sentences that begin alike get "
            "one vector. End it with Pooling(width, 'lasttoken') or 'mean'.",
            stacklevel=5,
        )


def require_positions(columns: Sequence[dict[str, Any]], limit: int | None) -> None:
    """Refuse texts that are longer than the encoder's table of positions.

    They are not cut here: the model that is trained would still fail on such a text when it encodes.

    Args:
        columns: text tensors, ``input_ids`` and ``attention_mask`` (N, L) each.
        limit: rows of the table; None where there is none.

    Raises:
        ValueError: a text is longer.
    """
    for place, column in enumerate(columns, start=1):
        if limit is None or column["input_ids"].shape[1] <= limit:
            continue
        longest = int((column["attention_mask"] != 0).sum(dim=1).max())  # the rest may be padding
        if longest > limit:
            raise ValueError(
                f"Text column {place} has a text of {longest} tokens, and the encoder has positions for {limit}. Set "
                f"model.max_seq_length = {limit}, or less, so that longer texts are cut when they are tokenised."
            )
