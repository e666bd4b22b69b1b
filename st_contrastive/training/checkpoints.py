"""The checkpoints in a run's folder: which are complete, and how a new one gets its name in one step."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME

from st_contrastive._files import synchronise
from st_contrastive.training.loss_state import FILE_NAME

#: Where a checkpoint is written before it gets its name.
WORK_FOLDER = "_checkpoint_in_work"
_REPLACED = "replaced"


def missing(checkpoint: Path) -> list[str]:
    """The files that are missing to continue training exactly."""
    names = [FILE_NAME, TRAINER_STATE_NAME, OPTIMIZER_NAME, SCHEDULER_NAME]
    absent = [name for name in names if not (checkpoint / name).is_file()]
    if TRAINER_STATE_NAME not in absent and log_history(checkpoint) is None:
        absent.append(TRAINER_STATE_NAME)  # cut short
    if not any(checkpoint.glob("rng_state*.pth")):
        absent.append("rng_state.pth")
    return absent


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, complete or not, the latest step first."""
    found = [(re.fullmatch(r"checkpoint-(\d+)", entry.name), entry) for entry in folder.glob("checkpoint-*")]
    steps = {int(match[1]): entry for match, entry in found if match and entry.is_dir()}
    return [steps[step] for step in sorted(steps, reverse=True)]


def complete(folder: Path) -> list[Path]:
    """The complete checkpoints of a run, the latest step first."""
    return [entry for entry in checkpoints(folder) if not missing(entry)]


def last_complete(folder: Path) -> Path | None:
    """The complete checkpoint of the latest step.

    Raises:
        ValueError: one of an earlier step was written later: two runs wrote here, or a copy changed the times.
    """
    found = complete(folder)
    if not found:
        return None
    newest = max(found, key=lambda entry: (entry / TRAINER_STATE_NAME).stat().st_mtime)
    if newest != found[0]:
        raise ValueError(
            f"{folder}: {newest.name} was written after {found[0].name}, perhaps by another run. Move the unwanted "
            "ones away, or, in Python, name one as resume_from_checkpoint."
        )
    return newest


def log_history(checkpoint: Path) -> list[Any] | None:
    """What the trainer had logged when it wrote the checkpoint; None if that can't be read."""
    try:
        state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        history: list[Any] = state["log_history"]
    except (OSError, ValueError, KeyError):
        return None
    return history


def put_in_place(written: Path, target: Path) -> None:
    """Rename a complete checkpoint to its name, so that even a power cut leaves it complete or absent.

    An earlier run's checkpoint of that name is removed once the new one is there.
    """
    for folder, _, files in os.walk(written):
        for name in (*files, "."):
            synchronise(Path(folder, name))
    old = written.parent / _REPLACED / target.name
    if target.exists():
        old.parent.mkdir()
        os.rename(target, old)
    os.rename(written, target)
    synchronise(target.parent)
    shutil.rmtree(written.parent)


def clear_work(folder: Path) -> None:
    """Remove the work folder of a killed run. A complete checkpoint in it, between two renames, is given its name."""
    work = folder / WORK_FOLDER
    for entry in (*work.glob("checkpoint-*"), *(work / _REPLACED).glob("checkpoint-*")):
        if not missing(entry) and not (folder / entry.name).exists():
            os.rename(entry, folder / entry.name)
    shutil.rmtree(work, ignore_errors=True)
