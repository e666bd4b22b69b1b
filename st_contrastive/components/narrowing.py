"""A transformer layer whose position-wise half runs at some positions only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def narrowed(layer: nn.Module, places: Tensor, shape: tuple[int, int]) -> Iterator[None]:
    """While open, the feed-forward half of ``layer`` is computed at ``places`` alone; elsewhere its result is 0.

    Attention mixes positions and stays whole. What follows it is two thirds of a layer's arithmetic, and the last
    layer's is wanted only where something is predicted. The layer keeps its shapes, so that the code around it is as
    ever; its output counts at ``places`` only. A layer whose feed-forward half is not found runs whole.

    Args:
        layer: a layer of a transformers encoder.
        places: indices into the (rows x tokens) positions, row after row.
        shape: (rows, tokens).
    """

    def select(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            value.flatten(0, 1)[places] if isinstance(value, Tensor) and value.shape[:-1] == shape else value
            for value in args
        )

    def restore(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        if not isinstance(output, Tensor) or output.shape[:-1] != places.shape:
            return output
        whole = output.new_zeros(shape[0] * shape[1], output.shape[-1])
        return whole.index_copy(0, places, output).view(*shape, -1)

    parts = _feed_forward(layer)
    handles = [part.register_forward_pre_hook(select) for part in parts]
    handles += [part.register_forward_hook(restore) for part in parts[-1:]]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _feed_forward(layer: nn.Module) -> list[nn.Module]:
    """The modules of the feed-forward half in their order: BERT's two, or the one that others have."""
    children = dict(layer.named_children())
    if {"intermediate", "output"} <= children.keys():
        return [children["intermediate"], children["output"]]
    return [children[name] for name in ("ffn", "mlp") if name in children][:1]
