"""Saves and loads a loss's state (heads, queues, networks) and arguments, and finds complete checkpoints."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from sentence_transformers.base.modules import Module
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerState
from transformers.trainer import OPTIMIZER_NAME, TRAINER_STATE_NAME

from st_contrastive import distributed
from st_contrastive._files import complete_file
from st_contrastive.losses.described_loss import describe_argument
from st_contrastive.losses.owned_state import owned_state
from st_contrastive.training.fingerprints import tensors_fingerprint

#: A loss, or losses by dataset name.
Losses = nn.Module | Mapping[str, nn.Module]

FILE_NAME = "loss_state.safetensors"


class LossStateError(ValueError):
    """A file is not a loss state, or it does not fit the loss. The message names the differences."""


def save_loss_state(
    loss: Losses, path: str | os.PathLike[str], *, rank: int = 0, record: Mapping[str, Any] | None = None
) -> None:
    """Write the loss state, a loss's parameters and buffers, to ``loss_state.safetensors`` in a folder.

    :class:`ContrastiveTrainer` does this in each checkpoint. With another Trainer, call it in ``on_save`` of a
    ``TrainerCallback``; with ``fit``, in its ``callback``, as :func:`load_loss_state` shows.

    Args:
        loss: any sentence-transformers loss, or a dict of them.
        path: folder, such as a checkpoint's. It is created if it does not exist.
        rank: rank of this process. Ranks above 0 only write state that may differ from rank 0: queues and running
            statistics.
        record: a description of the run as JSON values.
    """
    named, file = _named(loss), Path(path) / _file_name(rank)
    # safetensors refuses tensors that share memory, so they are copied.
    tensors = {
        key: tensor.detach().to("cpu", copy=True).contiguous()
        for key, tensor in _state(named).items()
        if rank == 0 or not isinstance(tensor, nn.Parameter)
    }
    metadata = {"losses": json.dumps(_description(named)), "ranks": str(distributed.world_size())}
    metadata["record"] = json.dumps(record or {})
    with complete_file(file) as partial:
        save_file(tensors, partial, metadata)


def load_loss_state(loss: Losses, path: str | os.PathLike[str]) -> None:
    """Load the state that :func:`save_loss_state` or a :class:`ContrastiveTrainer` wrote.

    If the state does not fit the loss, the loss is not changed. To resume ``fit``::

        def save(score, epoch, step):  # fit calls it after each evaluation
            save_loss_state(loss, f"checkpoints/checkpoint-{step}")

        load_loss_state(loss, "checkpoints/checkpoint-500")
        model.fit([(loader, loss)], evaluator=evaluator, evaluation_steps=500, callback=save,
                  checkpoint_path="checkpoints", checkpoint_save_steps=500, resume_from_checkpoint=True)

    Args:
        loss: built with the same arguments as the saved loss.

    Raises:
        OSError: the loss state does not exist or can't be read.
        LossStateError: the state belongs to another loss, to a loss with other arguments, or to another encoder.
    """
    file, named = Path(path) / FILE_NAME, _named(loss)
    metadata, tensors = _contents(file)
    _require_same_losses(file, json.loads(metadata["losses"]), _description(named))
    rank_file = file.with_name(_file_name(distributed.rank()))
    if rank_file.is_file() and metadata["ranks"] == str(distributed.world_size()):
        tensors |= _contents(rank_file)[1]
    before = {key: tensor.detach().clone() for key, tensor in _state(named).items()}
    if tensors.keys() != before.keys():
        name = min(tensors.keys() ^ before.keys())
        fault = "does not belong to the loss" if name in tensors else "is missing"
        raise LossStateError(f"{file} does not fit: {name} {fault}.")
    try:
        _set_state(named, tensors)
    except RuntimeError as error:
        _set_state(named, before)
        reason = " ".join(str(error).split())
        raise LossStateError(f"{file} does not fit. Was it saved with another encoder? {reason}") from error


def load_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The description of the run in a folder's loss state, or an empty dict if there is none."""
    with _opened(Path(path) / FILE_NAME) as (metadata, _):
        return cast(dict[str, Any], json.loads(metadata.get("record", "{}")))


def distinct_losses(losses: Losses) -> list[nn.Module]:
    """The losses without repetitions."""
    return list({id(loss): loss for loss in _named(losses).values()}.values())


def missing_files(checkpoint: Path) -> list[str]:
    """Names of missing or incomplete files that are needed to resume training exactly."""
    absent = [name for name in (FILE_NAME, OPTIMIZER_NAME) if not (checkpoint / name).is_file()]
    try:
        TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))  # the Trainer writes this file last
    except (OSError, ValueError, TypeError):
        absent.append(TRAINER_STATE_NAME)
    return absent


def checkpoint_to_resume(run: Path, asked: str | Literal[True]) -> Path:
    """The checkpoint from which to resume. True means the newest complete checkpoint in the run's folder."""
    steps = {int(entry.name[11:]): entry for entry in run.glob("checkpoint-*") if entry.name[11:].isdecimal()}
    whole = [steps[step] for step in sorted(steps, reverse=True) if not missing_files(steps[step])]
    names = ", ".join(entry.name for entry in whole) or "none"
    if asked is not True:
        checkpoint = Path(asked).expanduser()
        if not checkpoint.is_dir():
            raise FileNotFoundError(
                f"resume_from_checkpoint {checkpoint} does not exist. Complete checkpoints in {run}: {names}."
            )
        if absent := missing_files(checkpoint):
            raise FileNotFoundError(
                f"resume_from_checkpoint {checkpoint} has no {', '.join(absent)}. Another trainer saved it, it was "
                f"saved with save_only_model=True, or saving was interrupted. Complete checkpoints in {run}: {names}."
            )
        return checkpoint
    if not whole:
        raise FileNotFoundError(
            f"resume_from_checkpoint: none of the {len(steps)} checkpoints in output_dir {run} is complete. They may "
            "have been saved with save_only_model=True. Train again in another folder, without resume_from_checkpoint."
        )
    latest = max(whole, key=lambda entry: (entry / TRAINER_STATE_NAME).stat().st_mtime)
    if latest != whole[0]:  # two runs used this folder, or copying changed the times
        raise ValueError(
            f"output_dir {run}: {latest.name} was written after {whole[0].name}, perhaps by another run. Name the "
            f"checkpoint with resume_from_checkpoint: {names}."
        )
    return latest


def _state(named: dict[str, nn.Module]) -> dict[str, Tensor]:
    """The state of the losses without their ``derived_tensors``, which can be computed from the encoder."""
    state: dict[str, Tensor] = {}
    for prefix, loss in named.items():
        parts = loss.named_modules()
        derived = {f"{name}.{key}".lstrip(".") for name, part in parts for key in getattr(part, "derived_tensors", ())}
        state |= {f"{prefix}{key}": tensor for key, tensor in owned_state(loss).items() if key not in derived}
    return state


def _set_state(named: dict[str, nn.Module], state: dict[str, Tensor]) -> None:
    for prefix, loss in named.items():
        tensors = {key.removeprefix(prefix): tensor for key, tensor in state.items() if key.startswith(prefix)}
        loss.load_state_dict(tensors, strict=False)


def _file_name(rank: int) -> str:
    return FILE_NAME.replace(".", f".rank{rank}.") if rank else FILE_NAME


def _named(losses: Losses) -> dict[str, nn.Module]:
    """The losses by the prefix of their tensors' names."""
    return {"": losses} if isinstance(losses, nn.Module) else {f"{name}/": loss for name, loss in losses.items()}


@contextmanager
def _opened(file: Path) -> Iterator[tuple[dict[str, str], Any]]:
    """The metadata of a loss state file, and the open file from which tensors can be read."""
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            if not metadata.keys() >= {"losses", "ranks"}:
                raise LossStateError(f"{file} is not a loss state of st_contrastive.")
            yield metadata, opened
    except (OSError, SafetensorError) as error:
        raise OSError(f"{file} can't be read: {error}") from error


def _contents(file: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    with _opened(file) as (metadata, opened):
        return metadata, {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118


def _description(named: dict[str, nn.Module]) -> dict[str, Any]:
    """The class and arguments of each loss and of the losses inside it, except those that a resumed run may change."""
    description: dict[str, Any] = {}
    for prefix, loss in named.items():
        for name, part in loss.named_modules():
            # The modules of an encoder also have get_config_dict.
            if name == "" or (hasattr(part, "get_config_dict") and not isinstance(part, Module)):
                description[prefix + name] = type(part).__name__
                config: dict[str, Any] = getattr(part, "get_config_dict", dict)()
                kept = config.keys() - set(getattr(part, "may_change", ()))
                description |= {f"{prefix}{name}.{key}": config[key] for key in kept}
        if unsaved := _unsaved_buffers(loss):
            description[f"{prefix}.fingerprint of {', '.join(sorted(unsaved))}"] = tensors_fingerprint(unsaved)
    return cast(dict[str, Any], json.loads(json.dumps(description, default=describe_argument)))


def _unsaved_buffers(loss: nn.Module) -> dict[str, Tensor]:
    """The loss's buffers that no checkpoint contains, such as the matrix of a fraternal embedding.

    The resumed run must build the loss with the same values. Buffers of encoders are not included, because encoders
    compute them.
    """
    encoders = [part for part in loss.modules() if isinstance(part, (PreTrainedModel, Module))]
    computed = {id(buffer) for encoder in encoders for buffer in encoder.buffers()}
    saved = loss.state_dict(keep_vars=True).keys()
    buffers = loss.named_buffers()
    return {name: buffer for name, buffer in buffers if name not in saved and id(buffer) not in computed}


def _require_same_losses(file: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    differing = [
        f"{key.lstrip('.') or 'the loss'} is {now.get(key)!r}, saved with {saved.get(key)!r}"
        for key in sorted(now.keys() | saved.keys())
        if now.get(key) != saved.get(key)
    ]
    if differing:
        raise LossStateError(
            f"{file} does not fit: {'; '.join(differing[:3])}. Build the loss with the saved settings, or start a new "
            "run from the saved model."
        )
