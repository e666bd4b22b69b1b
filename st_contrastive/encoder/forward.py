"""Forward passes: several views in one pass where they can be merged, and pooling.

Written for sentence-transformers 6.2: this is the one module that uses its semi-private ``merge_feature_batches``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.merged_forward import merge_feature_batches
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn

from st_contrastive.encoder import unpadded
from st_contrastive.encoder.features import Features
from st_contrastive.encoder.model import unwrap, wrapper_chain
from st_contrastive.encoder.recompute import is_again, uncompiled


@dataclass(frozen=True)
class Encoded:
    """One view of a batch after the model: sentence vectors (N, d'), token vectors (N, L, d) and their mask (N, L)."""

    sentences: Tensor
    tokens: Tensor
    mask: Tensor
    prompt_length: Any = None


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


def encode(model: nn.Module, views: Sequence[Features], *, observed: bool = False) -> list[Encoded]:
    """All views in one forward pass where sentence-transformers can merge them, else in one pass each.

    Args:
        model: the model, in whatever wrapper.
        views: features of each.
        observed: hooks on the encoder's layers must see the pass: then torch.compile's code is not used, since what was
            compiled without a hook runs on without it.
    """
    if is_again():  # DDP, which waits for one backward pass after each forward pass, must not see this one
        model = next(
            module for module in wrapper_chain(model) if isinstance(module, (SentenceTransformer, nn.DataParallel))
        )
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
    features = {key: value for key, value in rows.items() if key != unpadded.FORM}
    for module in modules:
        features = module(features)
    return _of_output(features)


def _encoded(model: nn.Module, rows: Features, observed: bool) -> Encoded:
    if unpadded.FORM in rows and not observed:  # who looks on expects rows
        flat, places = unpadded.flattened(rows)
        output, mask = model(flat), rows["attention_mask"]
        tokens = unpadded.rows_of(output["token_embeddings"], places, mask)
        return Encoded(output["sentence_embedding"], tokens, mask, output.get("prompt_length"))
    return _of_output(model({key: value for key, value in rows.items() if key != unpadded.FORM}))


def _of_output(output: Features) -> Encoded:
    vectors, tokens, mask = (output[key] for key in ("sentence_embedding", "token_embeddings", "attention_mask"))
    return Encoded(vectors, tokens, mask, output.get("prompt_length"))
