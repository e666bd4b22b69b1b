"""Forward passes: merging views, pooling, rows in groups of similar length, and recomputed mini-batches.

Written for sentence-transformers 6.2. What the package uses of its semi-private parts: ``merge_feature_batches`` here,
``_flatten_position_offset`` in ``rows``, and in ``model`` which package a replaced ``forward`` comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.losses.merged_forward import merge_feature_batches
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from st_contrastive.encoder import flat_batches
from st_contrastive.encoder.layers import can_be_narrowed, layers_of, narrowed
from st_contrastive.encoder.model import Wrapping, embeds_first_token, encoder_of, unwrap, wrapper_chain
from st_contrastive.encoder.probe import ignores_padding
from st_contrastive.encoder.rows import Rows, cheapest_chunks, chunks, in_order

Function = Callable[..., tuple[Tensor, ...]]

_recomputing: ContextVar[bool] = ContextVar("recomputing", default=False)


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


def encode(model: nn.Module, views: Sequence[Rows], *, observed: bool = False) -> list[Encoded]:
    """All views in one forward pass where sentence-transformers can merge them, else in one pass each.

    Args:
        model: the model, with or without wrappers.
        views: each a batch of rows.
        observed: set if the caller has hooks on the encoder's layers. It switches torch.compile off, which ignores
            hooks that were registered after compilation.
    """
    if _recomputing.get():  # bypasses DDP, which expects one backward pass for each forward pass
        model = next(
            module for module in wrapper_chain(model) if isinstance(module, (SentenceTransformer, nn.DataParallel))
        )
    flat = None if observed else views[0].flat  # hooks expect rows
    with uncompiled() if observed else nullcontext():
        merged = merge_feature_batches([view.features() for view in views]) if len(views) > 1 else None
        if merged is None:
            return [_encoded(model, view.features(), flat) for view in views]
        together = _encoded(model, merged, flat)
    parts = (tensor.chunk(len(views)) for tensor in (together.sentences, together.tokens, together.mask))
    return [
        Encoded(sentences, tokens, mask, together.prompt_length) for sentences, tokens, mask in zip(*parts, strict=True)
    ]


def encode_with(modules: Iterable[nn.Module], rows: Rows) -> Encoded:
    """The rows after other modules than the model's, such as copies of them."""
    features = rows.features()
    for module in modules:
        features = module(features)
    return _from_output(features)


def _encoded(model: nn.Module, features: dict[str, Any], flat: flat_batches.FlatForm | None) -> Encoded:
    if flat is None:
        return _from_output(model(features))
    flat_features, places = flat_batches.flattened(features, flat)
    output, mask = model(flat_features), features["attention_mask"]
    tokens = flat_batches.rows_of(output["token_embeddings"], places, mask)
    return Encoded(output["sentence_embedding"], tokens, mask, output.get("prompt_length"))


def _from_output(output: dict[str, Any]) -> Encoded:
    vectors, tokens, mask = (output[key] for key in ("sentence_embedding", "token_embeddings", "attention_mask"))
    return Encoded(vectors, tokens, mask, output.get("prompt_length"))


def _recomputed(function: Function, *batches: Rows) -> tuple[Tensor, ...]:
    """``function(*batches)`` under activation checkpointing: it runs again in the backward pass.

    Both runs are eager: compiled code may save other tensors in the second run, which ``_recomputing`` marks.
    """

    def run(_: Tensor, *parts: Rows) -> tuple[Tensor, ...]:
        return function(*parts)

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return uncompiled(), _marked_as_recomputing()

    # torch saves the random state of the devices that its tensor arguments are on, and does not look into Rows. Without
    # it the second run would draw other dropout masks.
    found = checkpoint(run, batches[0].mask, *batches, use_reentrant=False, context_fn=contexts)
    return cast(tuple[Tensor, ...], found)


@contextmanager
def _marked_as_recomputing() -> Iterator[None]:
    token = _recomputing.set(True)
    try:
        with uncompiled():
            yield
    finally:
        _recomputing.reset(token)


def uncompiled() -> AbstractContextManager[Any]:
    """While open, code that torch.compile made is not used."""
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


@dataclass(frozen=True)
class _Groups:
    """The rows of one or more batches in groups.

    Args:
        order: row numbers, group after group.
        sizes: rows of each group.
        widths: for each group, the tokens of its longest row in each of the batches.
    """

    order: Tensor
    sizes: list[int]
    widths: list[list[int]]


class EncoderPasses(nn.Module):
    """The encoder passes that a loss makes, without padding and without last-layer states that nobody reads.

    Values stay the same up to rounding. With dropout, the same batch draws other random numbers.
    """

    model: SentenceTransformer
    #: Sentences that go through the encoder at a time, recomputed in the backward pass; None takes all.
    mini_batch_size: int | None = None
    #: Encode rows of like length together, each group padded to its own longest row, where that costs less. None does
    #: so on a CPU: a GPU would have to wait for the lengths, and small passes leave much of it idle.
    saves_padding: bool | None = None
    #: Compute the last layer for the first token of each row only, where nothing else of it is read.
    narrows_last_layer: bool = True

    def __init__(self) -> None:
        super().__init__()
        self._wrapping = Wrapping()
        self._probed: dict[Callable[[nn.Module], bool], tuple[nn.Module, Any, bool]] = {}

    @property
    def reads(self) -> Literal["sentences", "first token", "tokens"]:
        """What the loss reads of an encoded view: the sentence vectors and the token vectors that they are made of, the
        first token's vectors, or all token vectors."""
        return "sentences"

    def encode(self, views: Sequence[Rows], *, observed: bool = False) -> list[Encoded]:
        """:func:`encode`, with the last layer narrowed to the first tokens where nothing else is read."""
        # Pooling may skip a prompt's tokens, and in a flat batch first tokens lie anywhere.
        plain = all("prompt_length" not in view.extras and view.flat is None for view in views)
        if observed and self._wrapping.parallel:
            raise ValueError(
                "This loss reads the states of single layers, which DataParallel's replicas would mix. Start one "
                "process for each device (torchrun), or show the trainer one device (CUDA_VISIBLE_DEVICES=0)."
            )
        narrow = plain and self._may_narrow and self._probe(can_be_narrowed)
        with narrowed(layers_of(encoder_of(self.model))[-1]) if narrow else nullcontext():
            return encode(self.model, views, observed=observed)

    def sentences_of(self, *views: Rows) -> tuple[Tensor, ...]:
        """The sentence vectors of each view."""
        return tuple(view.sentences for view in self.encode(views))

    def by_rows(self, function: Function, *batches: Rows) -> tuple[Tensor, ...]:
        """``function(*batches)``, whose results have one entry for each row, in groups of rows where that saves time.

        Args:
            function: takes the batches, and treats each row by itself. It may run again in the backward pass.
            batches: all with the same number of rows.
        """
        groups = self._groups(batches)
        if groups is None:
            return function(*batches)
        return in_order(self._each(function, batches, groups), groups.order)

    def by_groups(self, function: Function, *batches: Rows) -> list[tuple[Tensor, ...]]:
        """As :meth:`by_rows`, but returns each group's results, not merged."""
        groups = self._groups(batches)
        return [function(*batches)] if groups is None else self._each(function, batches, groups)

    def _each(self, function: Function, batches: Sequence[Rows], groups: _Groups) -> list[tuple[Tensor, ...]]:
        recompute = self._needs_mini_batches(batches[0]) and torch.is_grad_enabled()
        found = []
        for rows, widths in zip(torch.split(groups.order, groups.sizes), groups.widths, strict=True):
            parts = [batch.take(rows, width) for batch, width in zip(batches, widths, strict=True)]
            found.append(_recomputed(function, *parts) if recompute else function(*parts))
        return found

    def _groups(self, batches: Sequence[Rows]) -> _Groups | None:
        """The groups, or None where the whole batch is the only one."""
        mini_batches = self._needs_mini_batches(batches[0])
        if mini_batches:
            self._require_mini_batches()
        elif not (self._may_group and self._probe(ignores_padding)):
            return None
        lengths = [batch.lengths() for batch in batches]
        longest = [max(row) for row in zip(*lengths, strict=True)]
        groups = chunks(longest, self.mini_batch_size or 1) if mini_batches else cheapest_chunks(longest)
        if len(groups) < 2 and all(max(own) == batch.width for own, batch in zip(lengths, batches, strict=True)):
            return None
        if mini_batches and not self._probe(ignores_padding):
            lengths = [[batch.width] * len(batch) for batch in batches]
        return _Groups(
            order=torch.tensor([row for rows in groups for row in rows], device=batches[0].mask.device),
            sizes=[len(rows) for rows in groups],
            widths=[[max(own[row] for row in rows) for own in lengths] for rows in groups],
        )

    def _needs_mini_batches(self, batch: Rows) -> bool:
        return self.mini_batch_size is not None and len(batch) > self.mini_batch_size

    def _inspect_encoder(self) -> None:
        """Find out which shortcuts are valid. Called at every step: the encoder may have been wrapped meanwhile."""
        self._wrapping = Wrapping.of(self.model)
        # Probed here, before any hook of a pass is set.
        if self._may_narrow:
            self._probe(can_be_narrowed)
        if self._may_group or self.mini_batch_size is not None:
            self._probe(ignores_padding)

    def _probe(self, question: Callable[[nn.Module], bool]) -> bool:
        """The answer of ``question(model)``, kept for each encoder and attention implementation."""
        encoder = encoder_of(self.model)
        attention = getattr(encoder.config, "_attn_implementation", None)
        probed = self._probed.get(question)
        if probed is None or probed[0] is not encoder or probed[1] != attention:
            probed = self._probed[question] = encoder, attention, question(self.model)
        return probed[2]

    @property
    def device(self) -> torch.device:
        """The encoder's device."""
        return unwrap(self.model).device

    @property
    def _may_narrow(self) -> bool:
        wrapping = self._wrapping
        reads_first = self.reads == "first token" or (self.reads == "sentences" and embeds_first_token(self.model))
        # Compiled code ignores new hooks, a checkpointed layer would be recomputed whole, hooks of others would see
        # other states, and DataParallel's replicas share their hooks.
        return self.narrows_last_layer and reads_first and not (wrapping.intercepted or wrapping.checkpointed)

    @property
    def _may_group(self) -> bool:
        wrapping = self._wrapping
        # Code would be compiled again for every width; hooks, and other ranks that wait for each pass, expect one pass;
        # and rows that depend on each other must stay together.
        if wrapping.intercepted or wrapping.synchronises_buffers or wrapping.batch_statistics:
            return False
        return self.device.type == "cpu" if self.saves_padding is None else self.saves_padding

    def _require_mini_batches(self) -> None:
        """Refuse mini-batches where their result would not be that of the whole batch.

        Raises:
            ValueError: the message says why.
        """
        wrapping = self._wrapping
        reasons = {
            "each row is encoded twice, which a loss around this one, such as MatryoshkaLoss, does not allow for": (
                wrapping.replayed
            ),
            "the model has BatchNorm, whose statistics would be those of a mini-batch": wrapping.batch_statistics,
            "DistributedDataParallel broadcasts the model's buffers in each pass, and the ranks may make different "
            "numbers of passes: give it broadcast_buffers=False": wrapping.synchronises_buffers,
        }
        for reason, met in reasons.items():
            if met:
                raise ValueError(f"mini_batch_size={self.mini_batch_size} can't be used: {reason}.")
