"""The one file that touches sentence-transformers where it is semi-private, or where its habits need care.

Read against sentence-transformers 6.2; what was found there is in the comments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.merged_forward import merge_feature_batches
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util import is_sentence_transformer_model
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from st_contrastive import _flat
from st_contrastive._recomputed import is_again, uncompiled

Features = dict[str, Any]

#: What the losses read of a batch of texts. A column's dict also holds strings and whatever a model writes into it.
TEXT_KEYS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Encoded:
    """One view of a batch after the model: sentence vectors (N, d'), token vectors (N, L, d) and their mask (N, L)."""

    sentences: Tensor
    tokens: Tensor
    mask: Tensor
    prompt_length: Any = None


def around(model: nn.Module) -> list[nn.Module]:
    """What stands around a SentenceTransformer, from outside, as DDP's ``module`` and torch.compile's ``_orig_mod``
    tell, and the SentenceTransformer itself, last.

    Raises:
        TypeError: there is none inside.
    """
    found = [model]
    while not isinstance(found[-1], SentenceTransformer):
        inner = getattr(found[-1], "module", None) or getattr(found[-1], "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            raise TypeError(f"model must be a SentenceTransformer, got {type(found[-1]).__name__}.")
        found.append(inner)
    return found


def unwrap(model: nn.Module) -> SentenceTransformer:
    """The SentenceTransformer inside whatever stands around it."""
    return cast(SentenceTransformer, around(model)[-1])


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


def most_positions(model: nn.Module) -> int | None:
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


def pool(model: nn.Module, encoded: Encoded, mode: str) -> Tensor:
    """Token vectors to one vector a sentence, (N, d), by sentence-transformers' own Pooling.

    The prompt's tokens count where the model's own Pooling counts them.
    """
    counts = all(getattr(module, "include_prompt", True) for module in unwrap(model))
    return _pooled(Pooling(encoded.tokens.shape[-1], mode, include_prompt=counts), encoded)


def pool_as_model(model: nn.Module, encoded: Encoded) -> Tensor:
    """The model's own Pooling alone, (N, d), without what follows it; [CLS] where its width is another."""
    for module in unwrap(model):
        if isinstance(module, Pooling) and module.get_embedding_dimension() == encoded.tokens.shape[-1]:
            return _pooled(module, encoded)
    return pool(model, encoded, "cls")


def _pooled(pooling: Pooling, encoded: Encoded) -> Tensor:
    features: Features = {"token_embeddings": encoded.tokens, "attention_mask": encoded.mask}
    if encoded.prompt_length is not None:
        features["prompt_length"] = encoded.prompt_length
    return cast(Tensor, pooling(features)["sentence_embedding"])


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


def text_features(features: Features, model: nn.Module) -> Features:
    """The text tensors of one column, right-padded, beside what is not a tensor.

    The model writes into the dict that it is given, so every view takes a copy of this one.

    Raises:
        ValueError: the batch is not text.
    """
    if _flat.is_flat(features):
        # A name of sentence-transformers' own, which its preprocessing reads.
        first_position = int(getattr(text_module(model), "_flatten_position_offset", 0))
        features = _flat.in_rows(features, tokenizer_of(model).pad_token_id or 0, first_position)
    ids, mask = features.get("input_ids"), features.get("attention_mask")
    if not isinstance(ids, Tensor) or ids.ndim != 2 or not isinstance(mask, Tensor):
        raise ValueError(
            f"Each column must be a batch of tokenised texts, with input_ids (N, L) and attention_mask; got the keys "
            f"{sorted(features)}. Give text, and let model.preprocess or the trainer's collator tokenise it."
        )
    tensors = {key: features[key] for key in TEXT_KEYS if key in features}
    # Sentences are composed, fused and read from their first token on, whichever side they were padded on.
    places = torch.arange(mask.shape[1], device=mask.device) + (mask != 0).to(torch.uint8).argmax(dim=1)[:, None]
    order = places % max(mask.shape[1], 1)
    tensors = {key: value.gather(1, order) for key, value in tensors.items()}
    carried = {key: value for key, value in features.items() if not isinstance(value, Tensor) or key == "prompt_length"}
    return {**carried, **tensors}


def runs_flat(rows: Features) -> bool:
    """Whether these rows go through the encoder end to end, without padding."""
    return _flat.FORM in rows


def with_texts(features: Features, texts: Features) -> Features:
    """``texts`` in place of the text tensors of ``features``; what is not a text tensor is carried along."""
    return {**{key: value for key, value in features.items() if key not in TEXT_KEYS}, **texts}


def token_arguments(features: Features) -> Features:
    """What of a column a transformers model takes itself."""
    return {key: features[key] for key in TEXT_KEYS if key in features}


def encode(model: nn.Module, views: Sequence[Features], *, observed: bool = False) -> list[Encoded]:
    """All views in one forward pass where sentence-transformers can merge them, else in one pass each.

    Args:
        model: the model, in whatever wrapper.
        views: features of each.
        observed: hooks on the encoder's layers must see the pass: then torch.compile's code is not used, since what was
            compiled without a hook runs on without it.
    """
    if is_again():  # DDP, which waits for one backward pass after each forward pass, must not see this one
        model = next(module for module in around(model) if isinstance(module, (SentenceTransformer, nn.DataParallel)))
    with uncompiled() if observed else nullcontext():
        return _encode(model, views, observed)


def _encode(model: nn.Module, views: Sequence[Features], observed: bool) -> list[Encoded]:
    merged = merge_feature_batches([dict(view) for view in views]) if len(views) > 1 else None
    if merged is None:
        return [_encoded(model, dict(view), observed) for view in views]
    together = _encoded(model, merged, observed)
    parts = (tensor.chunk(len(views)) for tensor in (together.sentences, together.tokens, together.mask))
    return [
        Encoded(sentences, tokens, mask, together.prompt_length) for sentences, tokens, mask in zip(*parts, strict=True)
    ]


def encode_with(modules: Iterable[nn.Module], rows: Features) -> Encoded:
    """The rows after other modules than the model's: copies of them, for instance."""
    features = {key: value for key, value in rows.items() if key != _flat.FORM}
    for module in modules:
        features = module(features)
    return _of_output(features)


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


def _encoded(model: nn.Module, rows: Features, observed: bool) -> Encoded:
    if _flat.FORM in rows and not observed:  # who looks on expects rows
        flat, places = _flat.flattened(rows)
        output, mask = model(flat), rows["attention_mask"]
        tokens = _flat.rows_of(output["token_embeddings"], places, mask)
        return Encoded(output["sentence_embedding"], tokens, mask, output.get("prompt_length"))
    return _of_output(model({key: value for key, value in rows.items() if key != _flat.FORM}))


def _of_output(output: Features) -> Encoded:
    vectors, tokens, mask = (output[key] for key in ("sentence_embedding", "token_embeddings", "attention_mask"))
    return Encoded(vectors, tokens, mask, output.get("prompt_length"))
