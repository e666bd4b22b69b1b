"""Forward passes: several views in one pass, chunks of rows with optional recomputation, and pooling."""

from __future__ import annotations

import functools
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

from st_contrastive.encoder.model_facts import unwrap, wrapper_chain
from st_contrastive.encoder.token_batch import CorruptedTokens, TokenBatch

#: An argument of a function of rows: a batch, corrupted tokens of the batch before it, or a tensor with N entries.
ChunkInput = TokenBatch | CorruptedTokens | Tensor
ChunkFunction = Callable[..., tuple[Any, ...]]

#: The fixed cost of a pass through an encoder, in tokens.
_PASS_COST = 64
_GROUP_COUNTS = (1, 2, 3, 4, 6, 8)

_recomputing: ContextVar[bool] = ContextVar("recomputing", default=False)


@dataclass(frozen=True)
class Encoded:
    """The model's output for a view of a batch: sentence vectors (N, d'), token vectors (N, L, d) and mask (N, L)."""

    sentences: Tensor
    tokens: Tensor
    mask: Tensor
    prompt_length: Any = None

    @classmethod
    def of(cls, output: dict[str, Any]) -> Encoded:
        """Read the output of a SentenceTransformer."""
        mask, length = output["attention_mask"], output.get("prompt_length")
        return cls(output["sentence_embedding"], output["token_embeddings"], mask, length)


def run_model(model: nn.Module, views: Sequence[TokenBatch], *, eager: bool = False) -> list[Encoded]:
    """Encode all views, in one forward pass if sentence-transformers can merge them, else in one pass each.

    Args:
        model: the model, with or without wrappers.
        views: batches of rows.
        eager: do not run compiled code, which would ignore hooks on the encoder's layers.
    """
    if eager and isinstance(model, nn.DataParallel):
        raise ValueError(
            "This loss reads the states of single layers, which DataParallel's replicas would mix. Start one process "
            "per device (torchrun), or show the trainer only one device (CUDA_VISIBLE_DEVICES=0)."
        )
    if _recomputing.get():  # skip DDP, which expects one backward pass for each forward pass
        inner = (SentenceTransformer, nn.DataParallel)
        model = next(module for module in wrapper_chain(model) if isinstance(module, inner))
    with _uncompiled() if eager else nullcontext():
        merged = merge_feature_batches([view.features() for view in views]) if len(views) > 1 else None
        if merged is None:
            return [Encoded.of(model(view.features())) for view in views]
        # A list that is equal in all views is merged only once by sentence-transformers.
        merged |= {key: value * len(views) for key, value in views[0].per_row.items() if isinstance(value, list)}
        whole = Encoded.of(model(merged))
    n = len(views)
    parts = zip(whole.sentences.chunk(n), whole.tokens.chunk(n), whole.mask.chunk(n), strict=True)
    return [Encoded(*part, whole.prompt_length) for part in parts]


def sentence_vectors(model: nn.Module, *views: TokenBatch, pooled: bool = False) -> tuple[Tensor, ...]:
    """Sentence vectors (N, d) of each view. With ``pooled``, the outputs of the model's Pooling follow."""
    encoded = run_model(model, views)
    pools = [pool_as_model(model, view) for view in encoded] if pooled else []
    return (*(view.sentences for view in encoded), *pools)


def pool(model: nn.Module, encoded: Encoded, mode: str) -> Tensor:
    """Pool token vectors to sentence vectors (N, d). A prompt is included if the model's Pooling includes it."""
    include_prompt = all(getattr(module, "include_prompt", True) for module in unwrap(model))
    return _pooled(Pooling(encoded.tokens.shape[-1], mode, include_prompt=include_prompt), encoded)


def pool_as_model(model: nn.Module, encoded: Encoded) -> Tensor:
    """The output (N, d) of the model's Pooling without later modules; that of the first token if the widths differ."""
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


@dataclass(frozen=True)
class ChunkResults:
    """Results of a function for each group of rows, and the row numbers of each group.

    ``numbers`` is None if the only group is the whole batch.
    """

    results: list[tuple[Any, ...]]
    numbers: list[Tensor] | None = None

    def in_order(self) -> tuple[Any, ...]:
        """Results with an entry for each row, concatenated in the order of the batch. None stays None."""
        if self.numbers is None:
            return self.results[0]
        order = torch.cat(self.numbers).argsort()
        columns = zip(*self.results, strict=True)
        first = self.results[0]
        tensors = (None if part[0] is None else torch.cat(part).index_select(0, order) for part in columns)
        return first._make(tensors) if hasattr(first, "_make") else tuple(tensors)  # a named tuple keeps its names

    def sums(self) -> list[Tensor]:
        """Sums over the groups of results that are 0-d tensors."""
        return [functools.reduce(torch.add, column) for column in zip(*self.results, strict=True)]


@dataclass(frozen=True)
class RowChunks:
    """The way in which the rows of a batch are split into groups for the encoder."""

    by_length: bool = False  # group rows of similar length if that costs less
    may_cut: bool = False  # cut each group's padding to the longest row of the group
    mini_batch_size: int | None = None  # rows per group; each group is recomputed in the backward pass

    def are_cheaper_apart(self, views: Sequence[TokenBatch]) -> bool:
        """Whether encoding each view by itself costs less than padding all views of a row to one length."""
        if not self.by_length or all(view is views[0] for view in views):
            return False
        lengths = np.array([view.lengths for view in views])
        together = pass_costs(lengths.max(axis=0).tolist(), len(views))
        return sum(pass_costs(row.tolist()) for row in lengths) < together

    def map(self, function: ChunkFunction, inputs: Sequence[ChunkInput]) -> ChunkResults:
        """Call ``function`` with each group of rows of the inputs."""
        batches = [part for part in inputs if isinstance(part, TokenBatch)]
        recompute = self.mini_batch_size is not None and len(batches[0]) > self.mini_batch_size
        if not (recompute or self.by_length):
            return ChunkResults([function(*inputs)])
        lengths = np.array([part.lengths for part in batches])
        widths = np.array([part.width for part in batches])
        longest = lengths.max(axis=0).tolist()
        groups = _chunks(longest, self.mini_batch_size or 1) if recompute else cheapest_groups(longest)
        if len(groups) < 2 and (lengths.max(axis=1) == widths).all():
            return ChunkResults([function(*inputs)])
        results, numbers = [], [torch.tensor(group, device=batches[0].mask.device) for group in groups]
        for group, rows in zip(groups, numbers, strict=True):
            part = _selected(inputs, rows, lengths[:, group].max(axis=1) if self.may_cut else widths)
            run_twice = recompute and torch.is_grad_enabled()
            results.append(run_checkpointed(function, part) if run_twice else function(*part))
        return ChunkResults(results, numbers)


def cheapest_groups(lengths: Sequence[int], pass_cost: int = _PASS_COST) -> list[list[int]]:
    """Row numbers in one to eight groups of equal size, shortest rows first.

    The number of groups minimises the cost of padded tokens and of passes; a pass costs ``pass_cost`` tokens.
    """
    shortest_first, rows = np.sort(lengths), len(lengths)
    sizes = [math.ceil(rows / count) for count in _GROUP_COUNTS]
    costs = []
    for size in sizes:
        ends = np.minimum(np.arange(size, rows + size, size), rows)
        costs.append(pass_cost * len(ends) + (np.diff(ends, prepend=0) * shortest_first[ends - 1]).sum())
    return _chunks(lengths, sizes[int(np.argmin(costs))])


def pass_costs(lengths: Sequence[int], views: int = 1) -> int:
    """Cost of encoding rows of these lengths in the cheapest groups, in tokens. Each row has a text per view."""
    groups = cheapest_groups(lengths)
    return sum(_PASS_COST + views * len(rows) * lengths[rows[-1]] for rows in groups)


def _chunks(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Row numbers in chunks of ``size``, shortest rows first. The last chunk may be smaller."""
    order = np.argsort(lengths, kind="stable").tolist()
    return [order[start : start + size] for start in range(0, len(order), size)]


def _selected(inputs: Sequence[ChunkInput], rows: Tensor, widths: Iterable[int]) -> list[ChunkInput]:
    """The given rows of each input. Each batch, and corrupted tokens that follow it, are cut to the batch's width."""
    selected: list[ChunkInput] = []
    remaining, width = iter(widths), 0
    for part in inputs:
        if isinstance(part, Tensor):
            selected.append(part.index_select(0, rows))
            continue
        width = int(next(remaining)) if isinstance(part, TokenBatch) else width
        selected.append(part.take(rows, width))
    return selected


def run_checkpointed(function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Any]) -> tuple[Tensor, ...]:
    """Call ``function`` under activation checkpointing: the backward pass runs it again with the same random numbers.

    Both runs are eager, because compiled code may save other tensors in the second run.
    """
    # torch's snapshot of the random state ignores MPS.
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
    """Context in which compiled code is not used."""
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
