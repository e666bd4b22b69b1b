"""The transformer layers of an encoder, whatever its family: reading and editing states, and narrowing a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from st_contrastive.encoder.model import encoder_of
from st_contrastive.encoder.probe import agree, probing


def layer_stack(encoder: PreTrainedModel) -> tuple[nn.Module, str]:
    """The module that owns the encoder's list of layers, and the list's name in it.

    Raises:
        ValueError: no list with one entry a layer exists, as in families whose layers share their weights (ALBERT).
    """
    depth = getattr(encoder.config, "num_hidden_layers", None)
    for owner in encoder.modules():
        names = [n for n, child in owner.named_children() if isinstance(child, nn.ModuleList) and len(child) == depth]
        if len(names) == 1:
            return owner, names[0]
        if names:
            raise ValueError(
                f"{type(encoder).__name__} keeps the parts of its layers in separate lists ({', '.join(names)}): "
                "no layer can be taken out. Take an encoder with one list of layers, such as BERT or RoBERTa."
            )
    raise ValueError(
        f"{type(encoder).__name__} has no list of {depth} transformer layers of its own: it may share one layer's "
        "weights among all, as ALBERT does. Take an encoder with separate layers, such as BERT or RoBERTa."
    )


def set_depth(config: PretrainedConfig, kept: Sequence[int]) -> None:
    """Make the configuration that of an encoder with these of its layers alone.

    Raises:
        NotImplementedError: the family's depth can't be set, as Funnel's, whose layers come in blocks.
    """
    config.num_hidden_layers = len(kept)
    for name in ("layer_types", "attention_window"):  # in some families one entry a layer
        if isinstance(own := getattr(config, name, None), list):
            setattr(config, name, [own[layer] for layer in kept])


def layers_of(encoder: PreTrainedModel) -> nn.ModuleList:
    """The encoder's transformer layers, lowest first."""
    owner, name = layer_stack(encoder)
    layers: nn.ModuleList = getattr(owner, name)
    return layers


def _lowest_layer(encoder: PreTrainedModel) -> tuple[nn.Module, int]:
    """The module that the embedding layer's output enters, and how many times a forward pass calls it."""
    for name, module in encoder.named_modules():
        if name.endswith("albert_layer_groups"):
            # ALBERT runs each of its groups several times in turn.
            groups = list(module.children())
            return groups[0], encoder.config.num_hidden_layers // len(groups)
    return layers_of(encoder)[0], 1


def entering_states(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The hidden states among the arguments that a layer is called with."""
    return cast(Tensor, args[0] if args else kwargs.get("hidden_states", next(iter(kwargs.values()))))


@contextmanager
def editing_input(layer: nn.Module, edit: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While open, ``edit`` replaces the hidden states that enter ``layer``."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        edited = edit(entering_states(args, kwargs))
        if args:
            return (edited, *args[1:]), kwargs
        name = "hidden_states" if "hidden_states" in kwargs else next(iter(kwargs))
        return args, {**kwargs, name: edited}

    handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def editing_embeddings(encoder: PreTrainedModel, edit: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While open, ``edit`` replaces the embedding layer's output, (rows, tokens, width), in every pass.

    That is what enters the lowest layer, with positions, token types, LayerNorm and dropout.
    """
    layer, calls_a_pass = _lowest_layer(encoder)
    calls = 0

    def edit_first(hidden: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return edit(hidden) if (calls - 1) % calls_a_pass == 0 else hidden

    with editing_input(layer, edit_first):
        yield


@contextmanager
def embedding_outputs(encoder: PreTrainedModel) -> Iterator[list[Tensor]]:
    """While open, the list collects the embedding layer's output of every forward pass, detached."""
    captured: list[Tensor] = []

    def record(hidden: Tensor) -> Tensor:
        captured.append(hidden.detach())
        return hidden

    with editing_embeddings(encoder, record):
        yield captured


@contextmanager
def capturing_states(encoder: PreTrainedModel, number: int) -> Iterator[list[Tensor]]:
    """While open, the list collects the hidden states after the lowest ``number`` layers, with their gradient.

    They are read where they enter the next layer, because some families compute something between two layers.
    """
    captured: list[Tensor] = []
    layers = layers_of(encoder)

    def record(hidden: Tensor) -> Tensor:
        captured.append(hidden)
        return hidden

    if number < len(layers):
        with editing_input(layers[number], record):
            yield captured
        return
    handle = layers[-1].register_forward_hook(
        lambda _, __, output: captured.append(output if isinstance(output, Tensor) else output[0])
    )
    try:
        yield captured
    finally:
        handle.remove()


#: Names of the query projection in an encoder's attention, and of the projection behind the attention.
_QUERIES = ("query", "q", "q_lin", "q_proj", "query_proj")
_OUTPUTS = ("o", "out_lin", "o_proj", "out_proj", "Wo")


@contextmanager
def narrowed(layer: nn.Module, places: Tensor | None = None) -> Iterator[None]:
    """While open, the position-wise parts of ``layer`` are computed at ``places`` only, and give 0 elsewhere.

    Keys and values need every position. The queries, the projection behind the attention and the feed-forward half are
    five sixths of a layer's arithmetic, and the last layer needs them only where its output is read. Shapes stay as
    they are. A part that is not found runs whole.

    Args:
        layer: a layer of a transformers encoder.
        places: indices into the (rows x tokens) positions, row after row; None takes the first of every row.
    """
    shape: list[torch.Size] = []  # (rows, tokens) of the pass

    def begin(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        shape[:] = [entering_states(args, kwargs).shape[:2]]

    def select(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(_picked(v, places) if isinstance(v, Tensor) and v.shape[:-1] == shape[0] else v for v in args)

    def restore(_: nn.Module, __: tuple[Any, ...], output: Any) -> Any:
        narrow = (shape[0][0], 1) if places is None else places.shape
        is_narrow = isinstance(output, Tensor) and output.shape[:-1] == narrow
        return _put_back(output, places, shape[0]) if is_narrow else output

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
    """The parts that treat each position by itself, each as its modules in their order."""
    feed_forward = _feed_forward(layer)
    inside = {id(module) for part in feed_forward for module in part.modules()}
    found = [feed_forward] if feed_forward else []
    for name, module in layer.named_modules():
        parents, _, own = name.rpartition(".")
        if id(module) in inside or not parents:
            continue
        # BERT's "attention.output" projects, adds the residual and normalises; others have a projection only.
        if own in _QUERIES or own in _OUTPUTS or name == "attention.output":
            found.append([module])
    return found


def _feed_forward(layer: nn.Module) -> list[nn.Module]:
    """The modules of the feed-forward half in their order: two in BERT, one in others."""
    children = dict(layer.named_children())
    if {"intermediate", "output"} <= children.keys():
        return [children["intermediate"], children["output"]]
    return [children[name] for name in ("ffn", "mlp") if name in children][:1]


def can_be_narrowed(model: nn.Module) -> bool:
    """Whether narrowing the encoder's last layer to the first tokens leaves their last states as they are.

    Two passes on a few tokens show it, whatever the encoder's family.
    """
    encoder = model if isinstance(model, PreTrainedModel) else encoder_of(model)
    try:
        last = layers_of(encoder)[-1]
    except ValueError:  # layers that share their weights
        return False
    if not _position_wise(last):
        return False
    if hasattr(encoder, "set_attention_type"):  # BigBird's attention depends on the length of the texts
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
