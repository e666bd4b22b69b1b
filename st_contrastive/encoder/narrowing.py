"""A transformer layer whose position-wise parts run at some positions only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from st_contrastive.encoder.layers import layers_of
from st_contrastive.encoder.probe import agree, probing

#: What encoders call the projection of the queries in their attention, and the one behind the attention.
_QUERIES = ("query", "q", "q_lin", "q_proj", "query_proj")
_OUTPUTS = ("o", "out_lin", "o_proj", "out_proj", "Wo")


@contextmanager
def narrowed(layer: nn.Module, places: Tensor | None = None) -> Iterator[None]:
    """While open, the position-wise parts of ``layer`` are computed at ``places`` alone; elsewhere they give 0.

    Keys and values need every position. Queries, the projection behind the attention and the feed-forward half are five
    sixths of a layer's arithmetic, and the last layer's are wanted only where something is read. The layer keeps its
    shapes, so that the code around it is as ever; its output counts at ``places`` only. A part that is not found runs
    whole.

    Args:
        layer: a layer of a transformers encoder.
        places: indices into the (rows x tokens) positions, row after row; None takes the first of every row.
    """
    shape: list[torch.Size] = []  # (rows, tokens) of the pass

    def begin(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        shape[:] = [(args[0] if args else kwargs.get("hidden_states", next(iter(kwargs.values())))).shape[:2]]

    def select(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(_picked(v, places) if isinstance(v, Tensor) and v.shape[:-1] == shape[0] else v for v in args)

    def restore(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        narrow = (shape[0][0], 1) if places is None else places.shape
        return (
            _put_back(output, places, shape[0])
            if isinstance(output, Tensor) and output.shape[:-1] == narrow
            else output
        )

    with ExitStack() as stack:
        stack.callback(layer.register_forward_pre_hook(begin, with_kwargs=True).remove)
        for parts in _position_wise(layer):
            for part in parts:
                stack.callback(part.register_forward_pre_hook(select).remove)
            stack.callback(parts[-1].register_forward_hook(restore).remove)
        yield


def _picked(value: Tensor, places: Tensor | None) -> Tensor:
    return value[:, :1] if places is None else value.flatten(0, 1)[places]


def _put_back(output: Tensor, places: Tensor | None, shape: torch.Size) -> Tensor:
    if places is None:
        return F.pad(output, (0, 0, 0, shape[1] - 1))
    whole = output.new_zeros(shape[0] * shape[1], output.shape[-1])
    return whole.index_copy(0, places, output).view(*shape, -1)


def _position_wise(layer: nn.Module) -> list[list[nn.Module]]:
    """The parts that treat each position by itself, each as the modules that follow each other in it."""
    feed_forward = _feed_forward(layer)
    inside = {id(module) for part in feed_forward for module in part.modules()}
    found = [feed_forward] if feed_forward else []
    for name, module in layer.named_modules():
        parents, _, own = name.rpartition(".")
        if id(module) in inside or not parents:
            continue
        # BERT's is a module that adds what came in and normalises, others' a projection.
        if own in _QUERIES or own in _OUTPUTS or name == "attention.output":
            found.append([module])
    return found


def _feed_forward(layer: nn.Module) -> list[nn.Module]:
    """The modules of the feed-forward half in their order: BERT's two, or the one that others have."""
    children = dict(layer.named_children())
    if {"intermediate", "output"} <= children.keys():
        return [children["intermediate"], children["output"]]
    return [children[name] for name in ("ffn", "mlp") if name in children][:1]


def gives_first_states(encoder: PreTrainedModel) -> bool:
    """Whether the encoder's last state of every first token is the same when its last layer is narrowed to it.

    Two passes on a few tokens tell, so that no family has to be known.
    """
    try:
        last = layers_of(encoder)[-1]
    except ValueError:  # layers that share their weights
        return False
    if not _position_wise(last):
        return False
    if hasattr(encoder, "set_attention_type"):  # BigBird's short trial would change its attention for good
        return False

    def states() -> Tensor:
        vocabulary = cast(Tensor, encoder.get_input_embeddings().weight).shape[0]
        ids = (torch.arange(10, device=encoder.device).view(2, 5) * 7 + 5) % vocabulary
        mask = torch.ones_like(ids)
        mask[1, 3:] = 0
        found: Tensor = encoder(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        return found

    with probing(encoder, encoder.device):
        try:
            whole = states()
            with narrowed(last):
                alone = states()
        except Exception:  # whatever a family's code raises
            return False
    return whole.shape == alone.shape and agree(whole[:, 0], alone[:, 0])
