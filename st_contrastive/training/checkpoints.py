"""Folders of checkpoints: which are complete, and how one becomes so in one step."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME

from st_contrastive.training.loss_state import FILE_NAME

#: Where a checkpoint is written before it stands under its name. The hub leaves such names out of uploads.
WORK_FOLDER = "_checkpoint_in_work"
_REPLACED = "replaced"


def missing(checkpoint: Path) -> list[str]:
    """The files without which training can't go on exactly where it was."""
    names = [FILE_NAME, TRAINER_STATE_NAME, OPTIMIZER_NAME, SCHEDULER_NAME]
    absent = [name for name in names if not (checkpoint / name).is_file()]
    if TRAINER_STATE_NAME not in absent and log_history(checkpoint) is None:
        absent.append(TRAINER_STATE_NAME)  # cut short
    return absent


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a run, complete or not, the newest first."""
    found = [(re.fullmatch(r"checkpoint-(\d+)", entry.name), entry) for entry in folder.glob("checkpoint-*")]
    steps = {int(match[1]): entry for match, entry in found if match and entry.is_dir()}
    return [steps[step] for step in sorted(steps, reverse=True)]


def last_complete(folder: Path) -> Path | None:
    """The newest complete checkpoint of a run."""
    return next((entry for entry in checkpoints(folder) if not missing(entry)), None)


def log_history(checkpoint: Path) -> list[Any] | None:
    """What the trainer had logged when it wrote the checkpoint; None where that can't be read."""
    try:
        state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        history: list[Any] = state["log_history"]
    except (OSError, ValueError, KeyError):
        return None
    return history


def put_in_place(made: Path, target: Path) -> None:
    """Move a complete checkpoint to its name, for good: also after a power cut it is complete or absent.

    One of an earlier run under that name goes when the new one stands there.
    """
    for folder, _, files in os.walk(made):
        for name in (*files, "."):
            handle = os.open(os.path.join(folder, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
    old = made.parent / _REPLACED
    if target.exists():
        os.rename(target, old)
    os.rename(made, target)
    shutil.rmtree(made.parent)


def delete_old(folder: Path, limit: int | None, best: str | None) -> None:
    """Leave the newest ``limit`` checkpoints, and the best one's; None or 0 leaves all."""
    if limit:
        kept = {*checkpoints(folder)[:limit], *([Path(best)] if best else [])}
        for old in checkpoints(folder):
            if old not in kept:
                shutil.rmtree(old)
