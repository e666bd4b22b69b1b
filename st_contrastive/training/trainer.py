"""A SentenceTransformerTrainer that clips, saves and restores the loss's parameters and buffers too."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.base.data_collator import BaseDataCollator
from sentence_transformers.sentence_transformer.training_args import BatchSamplers
from torch import nn
from transformers import TrainerCallback, TrainerState
from transformers import trainer as _trainer_module
from transformers.trainer import TRAINER_STATE_NAME, TRAINING_ARGS_NAME
from transformers.trainer_utils import HubStrategy

from st_contrastive import distributed
from st_contrastive._arguments import TextLength, checked
from st_contrastive._checks import warn
from st_contrastive.inputs.tables import columns_read
from st_contrastive.losses import BatchFacts
from st_contrastive.training import preflight
from st_contrastive.training.card import prepare_card
from st_contrastive.training.collapse import find_collapse, find_vector_fault
from st_contrastive.training.fingerprints import data_fingerprints, encoder_fingerprint
from st_contrastive.training.loss_state import (
    checkpoint_to_resume,
    distinct_losses,
    load_loss_state,
    load_record,
    save_loss_state,
)
from st_contrastive.training.prompts import column_prompts, simplest
from st_contrastive.training.run_parts import TrainingRun, by_name, losses_of, text_losses, tokenised_columns
from st_contrastive.training.same_run import describe_run, require_same_run

#: transformers.trainer as Any, for names without type annotations.
_host: Any = _trainer_module
#: Files of a checkpoint that are not needed to load its model.
_TRAINING_FILES = (
    "optimizer.*", "scheduler.pt", "scaler.pt", "rng_state*", "global_step*", "loss_state.*", TRAINER_STATE_NAME,
    TRAINING_ARGS_NAME,
)  # fmt: skip


class ContrastiveTrainer(SentenceTransformerTrainer):
    """sentence-transformers' Trainer for losses with parameters or buffers (heads, queues, networks).

    It is used like ``SentenceTransformerTrainer`` and works with any loss. ``max_grad_norm`` clips the gradients of the
    encoder and of the loss's parameters by their common norm. Each checkpoint contains the loss state, that is, the
    loss's parameters and buffers. The loss state is restored when training is resumed and when the best model is loaded
    (``load_best_model_at_end``).

    ``train(resume_from_checkpoint=True)`` resumes a killed run from its newest complete checkpoint. The run then ends
    with the weights and the loss state of an uninterrupted run, bit for bit on a deterministic device. For this,
    augmentations must not use global random generators while rows are read. A run can also be resumed on a different
    number of devices, but then the order of the rows changes. Changed settings, such as the learning rate or the data,
    are refused. Only the number of steps or epochs may grow.

    If ``args.prompts`` is None, the losses of this package train each text with the prompt with which the model encodes
    it. A single column takes the prompt of ``encode``. With two columns, the first one takes the prompt of
    ``encode_query`` and the second one the prompt of ``encode_document``. Sentences and their translations take one
    prompt.

    After :meth:`train`, ``collapsed`` is None, or a sentence that describes how the run collapsed.

    Args:
        args: as in sentence-transformers.
        kwargs: as in sentence-transformers, except ``model_init``.
        max_length: maximum number of tokens of a text in training and in the loss of ``eval_dataset``. None uses the
            model's ``max_seq_length``, which evaluators, checkpoints and the trained model always use.

    Example::

        trainer = ContrastiveTrainer(model, arguments, data, loss=TwinsLoss(model), max_length=32)
        trainer.train(resume_from_checkpoint=True)
    """

    collapsed: str | None = None
    #: A fault in the vectors before the first step. It does not count as a collapse of the run.
    fault_at_start: str | None = None
    #: Fingerprint of the initial weights.
    initial_weights: str | None = None
    #: Fingerprints of the training data by dataset, computed once in each run.
    data_read: Mapping[str, str] = {}
    #: Fingerprints of ``eval_dataset``, if its loss chooses the best checkpoint.
    eval_data_read: Mapping[str, str] | None = None

    @checked
    def __init__(self, *args: Any, max_length: TextLength | None = None, **kwargs: Any) -> None:
        self.max_length = max_length
        self._prompts: dict[str, dict[str, str]] = {}
        self._sets_prompts: bool | None = None  # whether the prompts are the model's; known with the first dataset
        self._is_evaluating = False
        self._published: str | None = None  # the folder that is being uploaded
        self._uploaded: list[tempfile.TemporaryDirectory[str]] = []  # links to checkpoints that are being uploaded
        super().__init__(*args, **kwargs)
        self._resumed_from: Path | None = None
        self._resumed_record: dict[str, Any] = {}
        self._limit_max_length()
        preflight.run_checks(preflight.ARGUMENTS_AND_DATA, TrainingRun.of(self))
        if self.max_length is not None:
            self.data_collator.max_length = self.max_length
        self._tell_losses()
        # The model card reads the data, so it comes after the checks.
        prepare_card(self.model)
        super().add_model_card_callback(self._default_arguments)
        has_streams = any(isinstance(data, IterableDataset) for data in (self.train_dataset, self.eval_dataset))
        if has_streams and self.accelerator.dispatch_batches is None:
            # The first process would send batches of one size to all processes, but the lengths of texts differ.
            self.accelerator.dataloader_config.dispatch_batches = False
        self.add_callback(_BeforeFirstStep(self))

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Keep the arguments. sentence-transformers' constructor calls this; ours adds the callback later."""
        self._default_arguments = default_args_dict

    def _limit_max_length(self) -> None:
        longest = self.model.max_seq_length
        if self.max_length and longest and self.max_length > longest:
            warn(f"max_length is {self.max_length}, but the model reads {longest} tokens. Training uses {longest}.")
            self.max_length = longest

    def _tell_losses(self, *, have_equal_rows: bool = False) -> None:
        for loss in text_losses(self.loss):
            loss.expect_batches(BatchFacts(self.max_length, have_equal_rows))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        self._resumed_from, self._resumed_record = None, {}
        self.initial_weights = self.initial_weights or encoder_fingerprint(self.model)
        self.data_read = data_fingerprints(self.train_dataset)
        if self.args.load_best_model_at_end and str(self.args.metric_for_best_model).endswith("loss"):
            self.eval_data_read = data_fingerprints(self.eval_dataset, "eval_dataset")
        checkpoint = None
        if resume_from_checkpoint is None:
            resume_from_checkpoint = self.args.resume_from_checkpoint
        if resume_from_checkpoint:
            checkpoint = checkpoint_to_resume(Path(self.args.output_dir or ""), resume_from_checkpoint)
            self._resumed_from, self._resumed_record = checkpoint, load_record(checkpoint)
            if self._resumed_record:
                require_same_run(self, self._resumed_record, checkpoint)
                self.initial_weights = self._resumed_record["initial_weights"]
        try:
            result = super().train(None if checkpoint is None else str(checkpoint), *args, **kwargs)
            self.collapsed = find_collapse(self)
        finally:
            self._remove_uploaded()  # transformers waits for the uploads at the end of training
            self._reset_truncation()
            self._tell_losses()  # the loss may be used outside this trainer
        return result

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As in sentence-transformers, but without changing the random numbers and the prompts of training."""
        collator: Any = self.data_collator
        kept, prompts = self._prompts, getattr(collator, "prompts", None)
        self._prompts, self._is_evaluating = {}, True
        try:
            with torch.random.fork_rng(devices=[]):
                return super().evaluate(*args, **kwargs)
        finally:
            self._prompts, self._is_evaluating = kept, False
            if self._sets_prompts:
                collator.prompts = prompts

    def _has_equal_rows(self) -> bool:
        """Whether all batches of training have the same number of rows."""
        is_stored = all(isinstance(data, Dataset) for data in by_name(self.train_dataset).values())
        is_plain = self.args.batch_sampler == BatchSamplers.BATCH_SAMPLER
        return is_stored and is_plain and self.args.dataloader_drop_last

    def preprocess_dataset(self, dataset: Any = None, dataset_name: str | None = None) -> Any:
        """As in sentence-transformers. Columns without a prompt get the model's prompts."""
        for part in by_name(dataset).values():
            if isinstance(part, (list, tuple)):
                raise TypeError(
                    f"{dataset_name}_dataset must be a Dataset, got {type(part).__name__}. Use "
                    "st_contrastive.text_dataset(sentences)."
                )
        self._set_prompts(dataset)
        if isinstance(dataset, dict) and not hasattr(dataset, "_sentence_transformers_preprocessed"):
            # sentence-transformers adds a column to each part in place, which are the user's Datasets.
            has_streams = any(isinstance(part, IterableDataset) for part in dataset.values())
            if has_streams and dataset_name == "train":
                raise ValueError(
                    "train_dataset: sentence-transformers can't train on several data sets if one is a stream. Load "
                    "them whole, or pass a single stream."
                )
            kind = IterableDatasetDict if has_streams else DatasetDict
            dataset = kind({name: copy.copy(part) for name, part in dataset.items()})
        return super().preprocess_dataset(dataset, dataset_name)

    def _set_prompts(self, dataset: Any) -> None:
        collator: Any = self.data_collator
        if self._sets_prompts is None:  # only set prompts if neither the arguments nor the collator have any
            has_none = self.args.prompts is None and isinstance(collator, BaseDataCollator)
            self._sets_prompts = has_none and not collator.prompts
        is_part = self._is_evaluating and not isinstance(dataset, dict) and "dataset_name" in columns_read(dataset)
        if not self._sets_prompts or is_part:  # the prompts of the whole dict are set
            return
        for name, prompts in self.prompts_by_dataset(dataset).items():
            self._prompts[name] = {**prompts, **self._prompts.get(name, {})}
        collator.prompts = simplest(self._prompts)

    def prompts_by_dataset(self, dataset: Any) -> dict[str, dict[str, str]]:
        """The prompts of the text columns that losses of this package read, by dataset and column.

        A single dataset has an empty name.
        """
        found = {}
        for name, part in by_name(dataset).items():
            losses = losses_of(self, name)
            columns = tokenised_columns(self, columns_read(part))
            if losses and columns:
                same_kind = any(loss.columns_of_one_kind for loss in losses)
                found[name] = column_prompts(self.model, columns, same_kind=same_kind)
        return found

    def should_dataset_name_column_be_added(self, dataset: Any, args: Any, loss: Any) -> bool:
        """As in sentence-transformers. Prompts by dataset also need the dataset's name."""
        has_prompts = isinstance(dataset, DatasetDict) and isinstance(
            getattr(self.data_collator, "prompts", None), dict
        )
        return has_prompts or bool(super().should_dataset_name_column_be_added(dataset, args, loss))

    def _before_first_step(self) -> None:
        """Check the run, and restore the state that transformers does not restore."""
        preflight.run_checks(preflight.BEFORE_THE_FIRST_STEP, TrainingRun.of(self))
        self._tell_losses(have_equal_rows=self._has_equal_rows())
        if self._resumed_from is None:
            self.fault_at_start = find_vector_fault(self)
        else:  # a fault that arose during the run is a collapse
            self.fault_at_start = self._resumed_record.get("fault_at_start")
            # transformers would log and save as often as the checkpoint's run did.
            self.state.compute_steps(self.args, self.state.max_steps)  # type: ignore[no-untyped-call]
            # The file has the old path of the best model, and the folder may have been moved.
            best = TrainerState.load_from_json(str(self._resumed_from / TRAINER_STATE_NAME)).best_model_checkpoint
            if best and (here := self._resumed_from.parent / Path(best).name).is_dir():
                self.state.best_model_checkpoint = str(here)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # transformers only checks max_steps after a step, so it would take one step too many.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*args, **kwargs)  # type: ignore[no-untyped-call]

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        return super()._clip_grad_norm(self._with_losses(model))  # type: ignore[no-untyped-call]

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        return super()._get_grad_norm(self._with_losses(model), grad_norm=grad_norm)  # type: ignore[no-untyped-call]

    def _with_losses(self, model: nn.Module) -> nn.Module:
        return nn.ModuleList([model, *distinct_losses(self.loss)])

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}")
        if self.args.should_save:  # a checkpoint is incomplete while it is replaced
            (folder / TRAINER_STATE_NAME).unlink(missing_ok=True)
        self.accelerator.wait_for_everyone()
        if self.args.should_save or distributed.rank() > 0:
            rank = 0 if self.args.should_save else distributed.rank()
            save_loss_state(self.loss, folder, rank=rank, record=describe_run(self))
        super()._save_checkpoint(model, trial)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        self._reset_truncation()
        super()._save(output_dir, state_dict)
        if self._published is not None:
            Path(self._published, TRAINING_ARGS_NAME).unlink(missing_ok=True)
            if hasattr(self.loss, "save_auxiliary"):
                self.loss.save_auxiliary(self._published)

    def _reset_truncation(self) -> None:
        """Make the tokenizer truncate as the model does. A fast tokenizer saves the length of its last truncation."""
        if self.max_length is not None:
            self.model.preprocess(["a"])

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        self.accelerator.wait_for_everyone()  # rank 0 then writes the last file, which marks a complete checkpoint

    def push_to_hub(  # type: ignore[override]  # "private" is among the options
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **options: Any,
    ) -> Any:
        """Upload the model, its card and an auxiliary network, and wait until they are uploaded.

        transformers uploads all of ``output_dir``, which may contain other models, settings and local paths.
        ``options`` are its other arguments, such as ``private``, which the oldest supported version does not have.
        """
        if self.hub_model_id is None:  # named after output_dir
            private = {"private": options["private"]} if "private" in options else {}
            self.init_hf_repo(token=token, **private)
        output_dir = self.args.output_dir
        with tempfile.TemporaryDirectory() as folder:
            self.args.output_dir = self._published = folder
            try:
                return super().push_to_hub(commit_message, True, token, revision, **options)
            finally:
                self.args.output_dir, self._published = output_dir, None

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """As in transformers, but directly from the checkpoint and without files that only training needs."""
        progress: Any = self.push_in_progress
        is_free = progress is None or progress.is_done()
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        if not (is_free or self.args.hub_always_push):
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if is_free:
            self._remove_uploaded()
        # The checkpoint may be deleted (save_total_limit) before it is uploaded.
        links = tempfile.TemporaryDirectory(prefix=".upload-", dir=self.args.output_dir, ignore_cleanup_errors=True)
        shutil.copytree(checkpoint_folder, links.name, copy_function=_link, dirs_exist_ok=True)
        self._uploaded.append(links)
        upload = partial(
            _host.hf_api().upload_folder,
            repo_id=self.hub_model_id,
            folder_path=links.name,
            commit_message=f"Training in progress, step {self.state.global_step}",
            token=self.args.hub_token,
            revision=self.args.hub_revision,
            run_as_future=True,
        )
        jobs = [upload(ignore_patterns=[*_TRAINING_FILES])]
        if self.args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            is_last = self.args.hub_strategy == HubStrategy.CHECKPOINT
            path = "last-checkpoint" if is_last else Path(checkpoint_folder).name
            jobs.append(upload(path_in_repo=path, ignore_patterns=[TRAINING_ARGS_NAME]))
        if is_free:
            self.push_in_progress = _host.PushInProgress(jobs)
        else:
            progress.jobs.extend(jobs)

    def _remove_uploaded(self) -> None:
        while self._uploaded:
            self._uploaded.pop().cleanup()

    def _load_from_checkpoint(self, checkpoint_path: str) -> None:  # type: ignore[override]
        load_loss_state(self.loss, checkpoint_path)  # before the encoder, because the loss state may not fit
        super()._load_from_checkpoint(checkpoint_path)


def _link(source: str, target: str) -> None:
    """A hard link to the file, or a copy where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


class _BeforeFirstStep(TrainerCallback):
    """Runs the checks before the first step. transformers has no other hook between preparing a run and this step."""

    def __init__(self, trainer: ContrastiveTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._before_first_step()
