"""Which checkpoints of a run are whole, so that training can be resumed from them.

The Trainer writes ``trainer_state.json`` last. Cut short, it can't be read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from transformers import TrainerState
from transformers.trainer import OPTIMIZER_NAME, TRAINER_STATE_NAME

from st_contrastive.training.loss_state import FILE_NAME


def missing_files(checkpoint: Path) -> list[str]:
    """The files that are missing, or cut short, to continue training exactly."""
    absent = [name for name in (FILE_NAME, OPTIMIZER_NAME) if not (checkpoint / name).is_file()]
    try:
        TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    except (OSError, ValueError, TypeError):
        absent.append(TRAINER_STATE_NAME)
    return absent


def checkpoint_to_resume(run: Path, asked: str | Literal[True]) -> Path:
    """The checkpoint to resume from; for True, the newest whole one of the run's folder.

    Raises:
        FileNotFoundError: there is none, or the one that was asked for is not whole.
        ValueError: one of an earlier step was written later: two runs wrote here, or a copy changed the times.
    """
    steps = {int(entry.name[11:]): entry for entry in run.glob("checkpoint-*") if entry.name[11:].isdecimal()}
    whole = [steps[step] for step in sorted(steps, reverse=True) if not missing_files(steps[step])]
    names = ", ".join(entry.name for entry in whole) or "none"
    if asked is not True:
        checkpoint = Path(asked)
        if absent := missing_files(checkpoint):
            raise FileNotFoundError(
                f"resume_from_checkpoint {checkpoint} has no {', '.join(absent)}: it was saved by another trainer or "
                f"with save_only_model=True, or saving was interrupted. Whole checkpoints in {run}: {names}."
            )
        return checkpoint
    if not whole:
        raise FileNotFoundError(f"output_dir {run} holds no whole checkpoint to resume from, of {len(steps)}.")
    latest = max(whole, key=lambda entry: (entry / TRAINER_STATE_NAME).stat().st_mtime)
    if latest != whole[0]:
        raise ValueError(
            f"output_dir {run}: {latest.name} was written after {whole[0].name}, perhaps by another run. Give the one "
            f"to continue from as resume_from_checkpoint: {names}."
        )
    return latest
