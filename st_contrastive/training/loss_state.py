"""Saves what a loss owns (heads, queues, networks) with the loss's configuration, and loads it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from st_contrastive import distributed
from st_contrastive._files import complete_file
from st_contrastive.losses._owned import owned_state
from st_contrastive.losses.base import TextLoss

#: A loss, or one for each of several datasets.
Losses = nn.Module | Mapping[str, nn.Module]

FILE_NAME = "loss_state.safetensors"
#: Prefixes of the names of a loss's tensors, and of the run's.
_LOSS, _RUN = "loss:", "run:"


class LossStateError(ValueError):
    """A file is not a loss state, or does not fit the loss; the message names what differs."""


def save_loss_state(
    loss: Losses, path: str | os.PathLike[str], run: Mapping[str, Tensor] | None = None, *, rank: int = 0
) -> None:
    """Write what a loss owns into ``loss_state.safetensors`` in a folder.

    :class:`ContrastiveTrainer` does this in each checkpoint. With another Trainer, call it in ``on_save`` of a
    ``TrainerCallback``; with ``fit``, in its ``callback``, as :func:`load_loss_state` shows.

    Args:
        loss: any sentence-transformers loss, or a dict of them.
        path: folder, such as a checkpoint's; it is made if it does not exist.
        run: further tensors to keep, by name, such as sums that are not logged yet.
        rank: the process; of one after the first, only what may be its own is written (queues, running statistics).

    Raises:
        OSError: it can't be written; an existing file stays as it was.
    """
    named, file = _named(loss), Path(path) / _file_name(rank)
    tensors = {f"{_RUN}{key}": tensor for key, tensor in (run or {}).items()}
    for prefix, part in named.items():
        for key, tensor in _saved_state(part).items():
            if rank == 0 or not isinstance(tensor, nn.Parameter):
                tensors[f"{prefix}{key}"] = tensor
    # Copies, since safetensors refuses tensors that share memory.
    tensors = {key: tensor.detach().to("cpu", copy=True).contiguous() for key, tensor in tensors.items()}
    metadata = {"losses": json.dumps(_description(named)), "ranks": str(distributed.world_size())}
    try:
        with complete_file(file) as partial:
            save_file(tensors, partial, metadata)
    except (OSError, SafetensorError) as error:
        raise OSError(f"The loss state can't be written to {file}: {error}") from error


def load_loss_state(loss: Losses, path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Load the state that :func:`save_loss_state` or a :class:`ContrastiveTrainer` wrote, and return its ``run``.

    If the state does not fit the loss, nothing is changed. To resume ``fit``::

        def save(score, epoch, step):  # fit calls it after each evaluation
            save_loss_state(loss, f"checkpoints/checkpoint-{step}")

        loss = TwinsLoss(model)
        load_loss_state(loss, "checkpoints/checkpoint-500")
        model.fit(
            [(loader, loss)], evaluator=evaluator, evaluation_steps=500, callback=save,
            checkpoint_path="checkpoints", checkpoint_save_steps=500, resume_from_checkpoint=True,
        )

    Args:
        loss: built with the arguments of the one that was saved.
        path: folder.

    Raises:
        FileNotFoundError: there is no loss state.
        OSError: the file can't be read.
        LossStateError: it belongs to another loss, to one with other arguments, or to another encoder.
    """
    file, named = Path(path) / FILE_NAME, _named(loss)
    if not file.is_file():
        raise FileNotFoundError(
            f"{path} holds no {FILE_NAME}: it was saved without save_loss_state or ContrastiveTrainer, or saving was "
            "interrupted."
        )
    metadata, tensors = _contents(file)
    _require_same_losses(file, json.loads(metadata["losses"]), _description(named))
    own = file.with_name(_file_name(distributed.rank()))
    if own.is_file() and metadata["ranks"] == str(distributed.world_size()):
        tensors |= _contents(own)[1]
    states = {prefix: _saved_state(part) for prefix, part in named.items()}
    saved = {key for key in tensors if key.startswith(_LOSS)}
    expected = {f"{prefix}{key}" for prefix, state in states.items() for key in state}
    if saved != expected:
        name = min(saved ^ expected)
        fault = "is not the loss's" if name in saved else "is missing"
        raise LossStateError(f"{file} does not fit: {name.removeprefix(_LOSS)} {fault}.")
    before = {
        prefix: {key: tensor.detach().clone() for key, tensor in state.items()} for prefix, state in states.items()
    }
    try:
        for prefix, part in named.items():
            part.load_state_dict({key: tensors[f"{prefix}{key}"] for key in states[prefix]}, strict=False)
    except RuntimeError as error:
        for prefix, part in named.items():
            part.load_state_dict(before[prefix], strict=False)
        reason = " ".join(str(error).split())
        raise LossStateError(f"{file} does not fit. Was it saved with another encoder? {reason}") from error
    # Copies, since a file that is mapped into memory can not be deleted on Windows.
    return {key.removeprefix(_RUN): part.clone() for key, part in tensors.items() if key.startswith(_RUN)}


def distinct_losses(losses: Losses) -> list[nn.Module]:
    """The losses, each once."""
    return list({id(loss): loss for loss in _named(losses).values()}.values())


def _saved_state(loss: nn.Module) -> dict[str, Tensor]:
    """What the loss owns, without what its modules name as ``derived_tensors``: training reads the encoder's there."""
    parts = loss.named_modules()
    derived = {f"{name}.{key}".lstrip(".") for name, part in parts for key in getattr(part, "derived_tensors", ())}
    return {key: tensor for key, tensor in owned_state(loss).items() if key not in derived}


def _file_name(rank: int) -> str:
    return FILE_NAME.replace(".", f".rank{rank}.") if rank else FILE_NAME


def _named(losses: Losses) -> dict[str, nn.Module]:
    """Losses by the prefix of their tensors' names."""
    if isinstance(losses, nn.Module):
        return {_LOSS: losses}
    return {f"{_LOSS}{name}/": loss for name, loss in losses.items()}


def _contents(file: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise OSError(f"{file} can't be read: {error}") from error
    if not metadata.keys() >= {"losses", "ranks"}:
        raise LossStateError(f"{file} is not a loss state of st_contrastive.")
    return metadata, tensors


def _description(named: dict[str, nn.Module]) -> dict[str, Any]:
    """Class and arguments of each loss, and of each loss in it, without what a resumed run may change."""
    described: dict[str, Any] = {}
    for prefix, loss in named.items():
        for name, part in loss.named_modules():
            if name == "" or isinstance(part, TextLoss):
                place = prefix.removeprefix(_LOSS) + name
                described[place] = type(part).__name__
                config: dict[str, Any] = getattr(part, "get_config_dict", dict)()
                kept = config.keys() - set(getattr(part, "may_change", ()))
                described |= {f"{place}.{key}": config[key] for key in kept}
    plain: dict[str, Any] = json.loads(json.dumps(described, default=_plain))
    return plain


def _plain(value: Any) -> Any:
    """A number of numpy, or what tells a module from another."""
    if hasattr(value, "item"):
        return value.item()
    return f"{type(value).__name__}({value.extra_repr() if isinstance(value, nn.Module) else ''})"


def _require_same_losses(file: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    differing = [
        f"{key.lstrip('.') or 'the loss'} is {now.get(key)!r}, saved with {saved.get(key)!r}"
        for key in sorted(now.keys() | saved.keys())
        if now.get(key) != saved.get(key)
    ]
    if differing:
        raise LossStateError(
            f"{file} does not fit: {'; '.join(differing[:3])}. Build the loss as it was, or start a new training from "
            "the saved model."
        )
