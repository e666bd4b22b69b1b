"""Forward passes: several views in one, pooling, and passes that are recomputed in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.gradcache import RandContext
from sentence_transformers.base.losses.merged_forward import merge_feature_batches
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from st_contrastive.encoder.model import unwrap, wrapper_chain
from st_contrastive.encoder.token_batch import TokenBatch

_recomputing: ContextVar[bool] = ContextVar("recomputing", default=False)


@dataclass(frozen=True)
class Encoded:
    """One view of a batch after the model: sentence vectors (N, d'), token vectors (N, L, d) and their mask (N, L)."""

    sentences: Tensor
    tokens: Tensor
    mask: Tensor
    prompt_length: Any = None

    @classmethod
    def of(cls, output: dict[str, Any]) -> Encoded:
        """From what a SentenceTransformer returns."""
        mask, length = output["attention_mask"], output.get("prompt_length")
        return cls(output["sentence_embedding"], output["token_embeddings"], mask, length)


def run_model(model: nn.Module, views: Sequence[TokenBatch], *, eager: bool = False) -> list[Encoded]:
    """All views in one forward pass where sentence-transformers can merge them, else in one pass each.

    Args:
        model: the model, with or without wrappers.
        views: each a batch of rows.
        eager: run no compiled code, which would ignore the caller's hooks on the encoder's layers.

    Raises:
        ValueError: ``eager`` under DataParallel.
    """
    if eager and isinstance(model, nn.DataParallel):
        raise ValueError(
            "This loss reads the states of single layers, which DataParallel's replicas would mix. Start one process "
            "for each device (torchrun), or show the trainer one device (CUDA_VISIBLE_DEVICES=0)."
        )
    if _recomputing.get():  # bypasses DDP, which expects one backward pass for each forward pass
        inner = (SentenceTransformer, nn.DataParallel)
        model = next(module for module in wrapper_chain(model) if isinstance(module, inner))
    with _uncompiled() if eager else nullcontext():
        merged = merge_feature_batches([view.features() for view in views]) if len(views) > 1 else None
        if merged is None:
            return [Encoded.of(model(view.features())) for view in views]
        # sentence-transformers hands on a list once for all views, where it is the same in each.
        merged |= {key: value * len(views) for key, value in views[0].per_row.items() if isinstance(value, list)}
        whole = Encoded.of(model(merged))
    n = len(views)
    parts = zip(whole.sentences.chunk(n), whole.tokens.chunk(n), whole.mask.chunk(n), strict=True)
    return [Encoded(*part, whole.prompt_length) for part in parts]


def sentence_vectors(model: nn.Module, *views: TokenBatch) -> tuple[Tensor, ...]:
    """The sentence vectors (N, d) of each view."""
    return tuple(view.sentences for view in run_model(model, views))


def run_modules(modules: Iterable[nn.Module], rows: TokenBatch) -> Encoded:
    """The rows after other modules than the model's, such as copies of them."""
    features = rows.features()
    for module in modules:
        features = module(features)
    return Encoded.of(features)


def pool(model: nn.Module, encoded: Encoded, mode: str) -> Tensor:
    """Token vectors to one vector a sentence, (N, d); a prompt's tokens count where the model's own Pooling does so."""
    include_prompt = all(getattr(module, "include_prompt", True) for module in unwrap(model))
    return _pooled(Pooling(encoded.tokens.shape[-1], mode, include_prompt=include_prompt), encoded)


def pool_as_model(model: nn.Module, encoded: Encoded) -> Tensor:
    """The output of the model's own Pooling, (N, d), without the modules behind it; [CLS] where the widths differ."""
    modules = list(unwrap(model))
    for module in reversed(modules):
        if isinstance(module, Pooling) and module.get_embedding_dimension() == encoded.tokens.shape[-1]:
            return encoded.sentences if module is modules[-1] else _pooled(module, encoded)
    return pool(model, encoded, "cls")


def _pooled(pooling: Pooling, encoded: Encoded) -> Tensor:
    features: dict[str, Any] = {"token_embeddings": encoded.tokens, "attention_mask": encoded.mask}
    if encoded.prompt_length is not None:
        features["prompt_length"] = encoded.prompt_length
    return cast(Tensor, pooling(features)["sentence_embedding"])


def recomputed(function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Any]) -> tuple[Tensor, ...]:
    """``function(*inputs)`` under activation checkpointing: it runs again in the backward pass, with the same draws.

    Both runs are eager: compiled code may save other tensors in the second.
    """
    # torch's own snapshot of the random state leaves out MPS.
    draws = RandContext(*(part.mask for part in inputs if isinstance(part, TokenBatch)))

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return _uncompiled(), _second_run(draws)

    tensors = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
    return cast(tuple[Tensor, ...], tensors)


@contextmanager
def _second_run(draws: RandContext) -> Iterator[None]:
    token = _recomputing.set(True)
    try:
        with _uncompiled(), draws:
            yield
    finally:
        _recomputing.reset(token)


def _uncompiled() -> AbstractContextManager[Any]:
    """While open, code that torch.compile made is not used."""
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
