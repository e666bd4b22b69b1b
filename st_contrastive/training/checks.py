"""What ContrastiveTrainer refuses before the first step, or warns of: runs that would not train what was meant."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import Any

from datasets import Dataset
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_contrastive import distributed
from st_contrastive._checks import require_room, warn
from st_contrastive.encoder.model import unwrap
from st_contrastive.encoder.requirements import require_trainable
from st_contrastive.losses._owned import owned_state, trained
from st_contrastive.losses.base import TextLoss
from st_contrastive.training.loss_state import each

#: A word with a digit, such as "doc-12", or an address.
_ID = re.compile(r"\s*(?=\S*(\d|://))\S+\s*")
#: How many rows of each training dataset are looked at, and what share of blank or repeated ones is worth a warning.
ROWS, SHARE = 1000, 0.01


def check_rows(trainer: Any, data: Any) -> None:
    """Look at the first rows of the training data.

    Raises:
        ValueError: a cell that is to be a text is none, or there is one row.
    """
    for name, part in data.items() if isinstance(data, dict) else [("", data)]:
        loss = trainer.loss[name] if isinstance(trainer.loss, dict) else trainer.loss
        text_losses, where = _text_losses([loss]), f"train_dataset[{name!r}]" if name else "train_dataset"
        if isinstance(part, Dataset) and text_losses:  # a stream is read once
            if len(part) == 1 and not all(own.has_negatives(1) for own in text_losses):
                raise ValueError(f"{where} has one row, and no other to contrast it with: give more sentences.")
            _check_rows(trainer, part, where)


def check_run(trainer: Any) -> None:
    """The checks of model, losses, optimizer and batches, when all are there.

    Raises:
        ValueError: names the value and the remedy.
    """
    losses, args = each(trainer.loss), trainer.args
    wrapped = any(hasattr(part, "merge_and_unload") for part in trainer.model.modules())
    if wrapped and args.save_strategy != "no":
        raise ValueError(
            "The encoder is in PEFT's get_peft_model, which sentence-transformers saves under other names than it "
            "loads: checkpoints could not be resumed from. Add the adapter with model.add_adapter(config), or set "
            "save_strategy='no'."
        )
    if 0 < args.max_steps < trainer.state.global_step:
        raise ValueError(
            f"resume_from_checkpoint is at step {trainer.state.global_step}, max_steps is {args.max_steps}: name an "
            "earlier checkpoint, or allow more steps."
        )
    owned = [(name, part) for loss in losses for name, part in owned_state(loss).items() if part.requires_grad]
    _check_model(trainer.model, losses)
    _check_optimizer(trainer, owned)
    _check_processes(trainer, losses, owned)
    _check_batches(args, losses, evaluates=trainer.eval_dataset is not None and args.eval_strategy != "no")
    _check_metric(trainer, losses)
    if _text_losses(losses):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the constructor has warned
            require_trainable(trainer.model)  # which may have been changed since
        _check_prompt(trainer)


def text_columns(trainer: Any, columns: Iterable[str]) -> list[str]:
    """The columns that are tokenised: all but the labels, of which the data collator knows the names."""
    labels = getattr(trainer.data_collator, "valid_label_columns", ["label", "labels", "score", "scores"])
    return [name for name in columns if name not in labels and name not in ("dataset_name", "return_loss")]


def _text_losses(losses: list[nn.Module]) -> list[TextLoss]:
    return [part for loss in losses for part in loss.modules() if isinstance(part, TextLoss)]


def _check_rows(trainer: Any, data: Dataset, name: str) -> None:
    batch = trainer.args.train_batch_size * distributed.world_size()
    if trainer.args.dataloader_drop_last and len(data) < batch:
        raise ValueError(f"dataloader_drop_last leaves no batch: {name} has {len(data)} rows, and a batch {batch}.")
    rows = data[:ROWS]
    columns = text_columns(trainer, rows)
    for column in columns:
        for index, text in enumerate(rows[column]):
            if not isinstance(text, str):
                raise ValueError(
                    f"{name}[{index}][{column!r}] must be a text, got {text!r:.80}. Leave such rows or columns out: "
                    "dataset.filter(...), dataset.select_columns(...)."
                )
        if sum(bool(_ID.fullmatch(text)) for text in rows[column]) > 0.9 * len(rows[column]):
            warn(f"The column {column!r} of {name} holds ids or addresses, which the loss reads as text. Leave it out.")
    texts = list(zip(*(rows[column] for column in columns), strict=True))
    blank = sum(any(not text.strip() for text in row) for row in texts)
    repeated = len(texts) - len(set(texts))
    if max(blank, repeated) > SHARE * len(texts):
        warn(
            f"Of the first {len(texts)} rows of {name}, {blank / len(texts):.1%} have a blank text and "
            f"{repeated / len(texts):.1%} repeat an earlier row; they are each other's negatives. Leave them out: "
            "st_contrastive.inputs.load_sentences(dataset) does."
        )


def _check_model(model: nn.Module, losses: list[nn.Module]) -> None:
    for loss in losses:
        for name, part in loss.named_modules():
            attributes = [step for step in name.split(".") if step not in ("module", "_orig_mod")]
            if isinstance(part, SentenceTransformer) and attributes[-1:] == ["model"] and part is not unwrap(model):
                raise ValueError(
                    f"The {name} of {type(loss).__name__} is another object than the trainer's model, so that neither "
                    "would be trained. Build the loss with the model that the trainer gets."
                )


def _check_optimizer(trainer: Any, owned: list[tuple[str, Tensor]]) -> None:
    if not trainer.has_users_optimizer:
        return
    stepped = {id(weight) for group in trainer.optimizer.param_groups for weight in group["params"]}
    absent = [name for name, weight in owned if id(weight) not in stepped]
    if absent:
        raise ValueError(
            f"optimizers: the optimizer lacks {len(absent)} parameter(s) of the loss, such as {absent[0]}, which would "
            "never be trained. Build it of [p for p in loss.parameters() if p.requires_grad], which has the model's "
            "too, or leave the optimizer to the trainer."
        )


def _check_processes(trainer: Any, losses: list[nn.Module], owned: list[tuple[str, Tensor]]) -> None:
    if owned and (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
        raise ValueError(
            f"{'FSDP' if trainer.is_fsdp_enabled else 'DeepSpeed'} shards the encoder's parameters but not the loss's, "
            "which would be neither averaged over the devices nor clipped. Train under plain DDP (torchrun, or "
            "accelerate launch without it), or take a loss without parameters, such as TwinsLoss."
        )
    if distributed.world_size() == 1:
        return
    texts = _text_losses(losses)
    averaged = {id(weight) for text in texts for weight in trained(owned_state(text))}
    foreign = [name for name, weight in owned if id(weight) not in averaged]
    gathers = any(text.gather_across_devices for text in texts)
    if len(losses) > 1 and (owned or gathers or len({type(text) for text in texts}) > 1):  # terms are gathered too
        raise ValueError(
            f"loss is a dict of {len(losses)} losses on {distributed.world_size()} devices, which may have batches of "
            "different datasets in the same step, so that the losses can't communicate. Take one loss for all "
            "datasets, or losses of one class without parameters of their own and with gather_across_devices=False."
        )
    if foreign:
        raise ValueError(
            f"The gradient of the loss's parameter {foreign[0]} would not be averaged over the "
            f"{distributed.world_size()} devices: train on one, or take a loss of st_contrastive."
        )
    if trainer.model_wrapped is trainer.model and not trainer.is_fsdp_enabled:
        raise ValueError(
            "The trainer has not wrapped the model for several devices, because evaluate() was called before train(): "
            "its gradients would not be averaged. Evaluate after, set eval_on_start=True, or make a new trainer."
        )


def _check_batches(args: Any, losses: list[nn.Module], *, evaluates: bool) -> None:
    sizes = {"per_device_train_batch_size": args.per_device_train_batch_size}
    if evaluates:
        sizes["per_device_eval_batch_size"] = args.per_device_eval_batch_size
    for name, size in sizes.items():
        if not all(loss.has_negatives(size) for loss in _text_losses(losses)):
            raise ValueError(
                f"{name} {size} leaves no other sentence to contrast with, so that the loss is 0: give 2 or more, and "
                "leave repeated texts out."
            )


def _check_metric(trainer: Any, losses: list[nn.Module]) -> None:
    metric, data = str(trainer.args.metric_for_best_model).removeprefix("eval_"), trainer.eval_dataset
    parts = {f"{name}_loss": part for name, part in data.items()} if isinstance(data, dict) else {"loss": data}
    if getattr(parts.get(metric), "column_names", None) is None:
        return
    if len(text_columns(trainer, parts[metric].column_names)) == 1 and any(
        getattr(loss, "dropout_only", False) for loss in _text_losses(losses)
    ):
        warn(
            f"metric_for_best_model is {trainer.args.metric_for_best_model!r}, and an evaluation has no dropout: the "
            "loss compares each vector with itself there, and prefers the last step. Take an evaluator's metric."
        )


def _check_prompt(trainer: Any) -> None:
    given, model = trainer.args.prompts, unwrap(trainer.model)
    if given and isinstance(given, str):
        require_room(given, len(model.tokenizer(given, verbose=False)["input_ids"]), model.max_seq_length)
    prompt = model.prompts.get(model.default_prompt_name or "")
    if prompt and given is None:
        warn(
            f"model.encode puts its default prompt {prompt!r:.80} before each text, and the training data has none. "
            "Give the arguments prompts=model.prompts[model.default_prompt_name]."
        )
