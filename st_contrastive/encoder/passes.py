"""Forward passes: several views in one, pooling, rows in groups of similar length, and recomputed mini-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.gradcache import RandContext
from sentence_transformers.base.losses.merged_forward import merge_feature_batches
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from st_contrastive.encoder.model import unwrap, wrapper_chain
from st_contrastive.encoder.rows import CorruptedTokens, Rows

#: What a function of rows may be given: each part has an entry for each row.
Part = Rows | CorruptedTokens | Tensor
Function = Callable[..., tuple[Tensor, ...]]
#: What a function gave for each group of rows, and the group's row numbers; None stands for all rows.
Results = list[tuple[tuple[Tensor, ...], Tensor | None]]

#: What a pass through an encoder costs beside its tokens, as a number of tokens.
_PASS_COST = 64
_GROUP_COUNTS = (1, 2, 3, 4, 6, 8)
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
        vectors, tokens, mask = (output[key] for key in ("sentence_embedding", "token_embeddings", "attention_mask"))
        return cls(vectors, tokens, mask, output.get("prompt_length"))


def pool(model: nn.Module, encoded: Encoded, mode: str) -> Tensor:
    """Token vectors to one vector a sentence, (N, d); a prompt's tokens count where the model's own Pooling does so."""
    include_prompt = all(getattr(module, "include_prompt", True) for module in unwrap(model))
    return _pooled(Pooling(encoded.tokens.shape[-1], mode, include_prompt=include_prompt), encoded)


def pool_as_model(model: nn.Module, encoded: Encoded) -> Tensor:
    """The output of the model's own Pooling, (N, d), without the modules behind it; [CLS] where the widths differ."""
    for module in unwrap(model):
        if isinstance(module, Pooling) and module.get_embedding_dimension() == encoded.tokens.shape[-1]:
            return _pooled(module, encoded)
    return pool(model, encoded, "cls")


def _pooled(pooling: Pooling, encoded: Encoded) -> Tensor:
    features: dict[str, Any] = {"token_embeddings": encoded.tokens, "attention_mask": encoded.mask}
    if encoded.prompt_length is not None:
        features["prompt_length"] = encoded.prompt_length
    return cast(Tensor, pooling(features)["sentence_embedding"])


def forward_views(model: nn.Module, views: Sequence[Rows], *, hooked: bool = False) -> list[Encoded]:
    """All views in one forward pass where sentence-transformers can merge them, else in one pass each.

    Args:
        model: the model, with or without wrappers.
        views: each a batch of rows.
        hooked: set if the caller has hooks on the encoder's layers, which compiled code would ignore.
    """
    if _recomputing.get():  # bypasses DDP, which expects one backward pass for each forward pass
        inner = (SentenceTransformer, nn.DataParallel)
        model = next(module for module in wrapper_chain(model) if isinstance(module, inner))
    with _uncompiled() if hooked else nullcontext():
        merged = merge_feature_batches([view.features() for view in views]) if len(views) > 1 else None
        if merged is None:
            return [Encoded.of(model(view.features())) for view in views]
        # sentence-transformers hands on a list once for all views, where it is the same in each.
        merged |= {key: value * len(views) for key, value in views[0].per_row.items() if isinstance(value, list)}
        whole = Encoded.of(model(merged))
    parts = (tensor.chunk(len(views)) for tensor in (whole.sentences, whole.tokens, whole.mask))
    return [Encoded(s, t, mask, whole.prompt_length) for s, t, mask in zip(*parts, strict=True)]


def forward_modules(modules: Iterable[nn.Module], rows: Rows) -> Encoded:
    """The rows after other modules than the model's, such as copies of them."""
    features = rows.features()
    for module in modules:
        features = module(features)
    return Encoded.of(features)


@dataclass(frozen=True)
class Grouping:
    """How the rows of a batch go through the encoder: all at once, by similar length, or in mini-batches.

    Args:
        by_length: put rows of similar length together, each group padded to its own longest row, where that costs less.
        cut: whether rows may be cut to their group's longest.
        mini_batch_size: rows at a time, recomputed in the backward pass; None takes all.
    """

    by_length: bool = False
    cut: bool = False
    mini_batch_size: int | None = None

    def run(self, function: Function, parts: Sequence[Part]) -> Results:
        """The results of ``function(*parts)`` for each group of rows."""
        texts = [part for part in parts if isinstance(part, Rows)]
        recompute = self.mini_batch_size is not None and len(texts[0]) > self.mini_batch_size
        if not (recompute or self.by_length):
            return [(function(*parts), None)]
        lengths = np.array([part.lengths() for part in texts])
        widths = np.array([part.width for part in texts])
        longest = lengths.max(axis=0).tolist()
        groups = _chunks(longest, self.mini_batch_size or 1) if recompute else cheapest_groups(longest)
        if len(groups) < 2 and (lengths.max(axis=1) == widths).all():
            return [(function(*parts), None)]
        results: Results = []
        for numbers in groups:
            rows = torch.tensor(numbers, device=texts[0].mask.device)
            group = _sliced(parts, rows, lengths[:, numbers].max(axis=1) if self.cut else widths)
            run_twice = recompute and torch.is_grad_enabled()
            results.append((_recomputed(function, group) if run_twice else function(*group), rows))
        return results


def _sliced(parts: Sequence[Part], rows: Tensor, widths: Iterable[int]) -> list[Part]:
    """Some rows of each part; the ``widths`` are those of the Rows, and corrupted tokens are as wide as theirs."""
    sliced: list[Part] = []
    remaining, width = iter(widths), 0
    for part in parts:
        if isinstance(part, Tensor):
            sliced.append(part.index_select(0, rows))
            continue
        width = max(int(next(remaining)), 1) if isinstance(part, Rows) else width
        sliced.append(part.take(rows, width))
    return sliced


def in_order(results: Results) -> tuple[Tensor, ...]:
    """The groups' tensors, which have an entry for each row, put together in the batch's order."""
    if results[0][1] is None:
        return results[0][0]
    back = torch.cat([rows for _, rows in results if rows is not None]).argsort()
    columns = zip(*(tensors for tensors, _ in results), strict=True)
    return tuple(torch.cat(column).index_select(0, back) for column in columns)


def cheapest_groups(lengths: Sequence[int], pass_cost: int = _PASS_COST) -> list[list[int]]:
    """The rows in one to eight equal groups, shortest first; their number costs least in padded tokens and passes."""
    shortest_first, rows = np.sort(lengths), len(lengths)
    sizes = [math.ceil(rows / count) for count in _GROUP_COUNTS]
    costs = []
    for size in sizes:
        ends = np.minimum(np.arange(size, rows + size, size), rows)
        costs.append(pass_cost * len(ends) + (np.diff(ends, prepend=0) * shortest_first[ends - 1]).sum())
    return _chunks(lengths, sizes[int(np.argmin(costs))])


def _chunks(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Row numbers in chunks of ``size``, shortest rows first; the last chunk may be smaller."""
    order = np.argsort(lengths, kind="stable").tolist()
    return [order[start : start + size] for start in range(0, len(order), size)]


def _recomputed(function: Function, parts: Sequence[Part]) -> tuple[Tensor, ...]:
    """``function(*parts)`` under activation checkpointing: it runs again in the backward pass, with the same draws.

    Both runs are eager: compiled code may save other tensors in the second.
    """
    # torch's own snapshot of the random state leaves out MPS.
    draws = RandContext(*(part.mask for part in parts if isinstance(part, Rows)))

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return _uncompiled(), _second_run(draws)

    tensors = checkpoint(function, *parts, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
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
