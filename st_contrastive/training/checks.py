"""Checks before the first step: refuse a run that would not train what the user meant, or warn of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.data_collator import BaseDataCollator
from torch import nn

from st_contrastive import distributed
from st_contrastive._checks import warn
from st_contrastive.components import NegativeQueue
from st_contrastive.encoder.checks import require_trainable
from st_contrastive.encoder.model import unwrap
from st_contrastive.losses._owned import owned_state, trained
from st_contrastive.losses.base import TextLoss
from st_contrastive.losses.twins import TwinsLoss
from st_contrastive.training.loss_state import Losses, distinct_losses

#: How many rows of each training dataset are looked at, and what share of useless ones is worth a warning.
ROWS, SHARE = 1000, 0.01
#: A column with a value for each so many rows, all of so few characters, holds languages, sources or labels.
_REPEATS, _SHORT = 10, 40
#: How pandas names an index that it writes.
_INDEX = ("__index_level_", "Unnamed: ")


def check_arguments(trainer: Any) -> None:
    """The checks of the constructor's arguments."""
    given, length, own = trainer.given["loss"], trainer.max_length, trainer.model.max_seq_length
    if trainer.args.auto_find_batch_size:
        raise ValueError(
            "auto_find_batch_size changes the batch that sentences are contrasted in, and a queue outlives each try. "
            "Leave it out; the loss's mini_batch_size saves memory without changing the gradient."
        )
    owning = _own_parameters(distinct_losses(trainer.loss))
    if trainer.args.fsdp or trainer.is_fsdp_enabled or (trainer.is_deepspeed_enabled and owning):
        raise ValueError(
            f"{'DeepSpeed' if trainer.is_deepspeed_enabled else 'FSDP'} shards the encoder: the loss's parameters are "
            "neither averaged nor clipped, and checkpoints not resumed. Train under plain DDP (torchrun)."
        )
    for loss in distinct_losses(given) if isinstance(given, (nn.Module, dict)) and trainer.model_init else ():
        if isinstance(loss, nn.Module) and (text_losses(loss) or owned_state(loss)):
            raise ValueError(
                "loss was made for another model than model_init makes for each run. Give a function of the model: "
                f"loss=lambda model: {type(loss).__name__}(model)."
            )
    if length is not None and own is not None and length > own:
        raise ValueError(f"max_length is {length}, and model.max_seq_length {own}: give that or less.")
    if length is not None and not isinstance(trainer.data_collator, BaseDataCollator):
        raise ValueError(f"max_length {length} would not cut the texts: your data_collator reads them. Cut them there.")


def check_data(trainer: Any) -> None:
    """Look at the prompts and the first rows of the training data."""
    if text_losses(trainer.loss):
        _check_prompts(trainer)
    for where, part in _parts(trainer):
        _check_rows(trainer, part, where)


def check_run(trainer: Any) -> None:
    """The checks of model, losses, optimizer and batches, when all are there."""
    args, losses = trainer.args, distinct_losses(trainer.loss)
    wrapped = any(hasattr(part, "merge_and_unload") for part in trainer.model.modules())
    if wrapped and args.save_strategy != "no":
        raise ValueError(
            "The encoder is in PEFT's get_peft_model, which sentence-transformers saves under other names than it "
            "loads. Add the adapter with model.add_adapter(config), or set save_strategy='no'."
        )
    if 0 < args.max_steps < trainer.state.global_step:
        raise ValueError(
            f"resume_from_checkpoint is at step {trainer.state.global_step}, max_steps is {args.max_steps}: name an "
            "earlier checkpoint, or allow more steps."
        )
    _check_model(trainer.model, losses)
    if trainer.has_users_optimizer:
        _check_optimizer(trainer, losses)
    _check_processes(trainer, losses)
    _check_batches(trainer)
    _check_metric(trainer)
    if text_losses(trainer.loss):
        require_trainable(trainer.model)  # which may have been changed since the loss was built
        for where, part in _parts(trainer):
            _check_tokens(trainer, where, _texts(trainer, part))
        _check_queues(trainer)


def tokenised_columns(trainer: Any, columns: Iterable[str]) -> list[str]:
    """The columns that are tokenised: all but the labels, of which the data collator knows the names."""
    labels = getattr(trainer.data_collator, "valid_label_columns", ["label", "labels", "score", "scores"])
    return [name for name in columns if name not in labels and name not in ("dataset_name", "return_loss")]


def text_losses(losses: Losses) -> list[TextLoss]:
    """The losses of this package, those in other losses included."""
    return [part for loss in distinct_losses(losses) for part in loss.modules() if isinstance(part, TextLoss)]


def _own_parameters(losses: list[nn.Module]) -> bool:
    """Whether one of the losses trains parameters beside the encoder's."""
    return any(trained(owned_state(loss)) for loss in losses)


def _texts(trainer: Any, data: Dataset) -> dict[str, list[str]]:
    """The first rows of each text column."""
    rows = data[:ROWS]
    return {column: rows[column] for column in tokenised_columns(trainer, rows)}


def _by_name(data: Any) -> dict[str, Any]:
    """Datasets by name; the name of a single one is empty."""
    return dict(data) if isinstance(data, dict) else {"": data}


def _parts(trainer: Any) -> Iterator[tuple[str, Dataset]]:
    """Each training dataset that losses of this package read, as messages name it; no stream, which is read once."""
    for name, part in _by_name(trainer.train_dataset).items():
        loss = trainer.loss[name] if isinstance(trainer.loss, dict) else trainer.loss
        if isinstance(part, Dataset) and text_losses(loss):
            yield f"train_dataset[{name!r}]" if name else "train_dataset", part


def _check_prompts(trainer: Any) -> None:
    """Each prompt is of a dataset or of a column: sentence-transformers leaves out what has another name."""
    columns = set()
    for data in (trainer.train_dataset, trainer.eval_dataset):
        for name, part in _by_name(data).items():
            columns |= {name, *tokenised_columns(trainer, getattr(part, "column_names", None) or ())} - {""}
    prompts = trainer.args.prompts if isinstance(trainer.args.prompts, dict) else {}
    inner = [name for prompt in prompts.values() if isinstance(prompt, dict) for name in prompt]
    for name in (*prompts, *inner):
        if name not in columns:
            raise ValueError(
                f"prompts has {name!r}, which is no column: {', '.join(sorted(columns))}. Name one of these, or give "
                "one prompt for all, prompts='...'."
            )


def _check_rows(trainer: Any, data: Dataset, name: str) -> None:
    texts = _texts(trainer, data)
    for column, cells in texts.items():
        for index, text in enumerate(cells):
            if not isinstance(text, str):
                raise ValueError(
                    f"{name}[{index}][{column!r}] must be a text, got {text!r:.80}. Leave such rows or columns out: "
                    "dataset.filter(...), dataset.select_columns(...)."
                )
        if len(texts) > 1:
            _check_column(name, column, cells, [other for other in data.column_names if other != column])
    whole = list(zip(*texts.values(), strict=True))
    blank = sum(any(not text.strip() for text in row) for row in whole)
    repeated = len(whole) - len(set(whole))
    if max(blank, repeated) > SHARE * len(whole):
        warn(
            f"Of the first {len(whole)} rows of {name}, {blank / len(whole):.1%} have a blank text and "
            f"{repeated / len(whole):.1%} repeat an earlier row; they are each other's negatives. Leave them out: "
            "st_contrastive.inputs.load_sentences(dataset) does."
        )


def _check_column(name: str, column: str, cells: list[str], others: list[str]) -> None:
    """No index, language or source: the loss would read it as another form of the text."""
    values, column_of = set(cells), f"The column {column!r} of {name}"
    remedy = f"and would be read as another form of the text: leave it out, dataset.select_columns({others})."
    if column.startswith(_INDEX):
        raise ValueError(f"{column_of} is an index of pandas, {remedy}")
    if len(values) == 1 and len(cells) > 2:
        raise ValueError(f"{column_of} is {cells[0]!r:.80} in all rows, {remedy}")
    if len(values) * _REPEATS <= len(cells) and max(map(len, values)) <= _SHORT:
        warn(f"{column_of} has {len(values)} values alone, such as {cells[0]!r}, {remedy}")


def _check_tokens(trainer: Any, name: str, texts: dict[str, list[str]]) -> None:
    """Find different texts that are the same to the model, which reads no more than their beginning."""
    limit = trainer.max_length or trainer.model.max_seq_length
    if not isinstance(trainer.data_collator, BaseDataCollator):
        return
    setting = "model.max_seq_length" if trainer.max_length is None else "max_length"
    remedy = f"Raise {setting} above {limit}, or leave out what the texts begin with."
    batch = trainer.data_collator([dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)])
    for column, cells in texts.items():
        first: dict[bytes, str] = {}  # the first text with these tokens
        lengths = batch[f"{column}_attention_mask"].sum(dim=1).tolist()
        rows = zip(cells, batch[f"{column}_input_ids"].numpy(), lengths, strict=True)
        equal = sum(first.setdefault(ids.tobytes(), text) != text for text, ids, length in rows if length >= limit)
        if equal > SHARE * len(cells):
            rows_of = f"{equal / len(cells):.0%} of the first {len(cells)} rows of {name}"
            message = f"In {rows_of}, {column!r} is cut to the same tokens as another text before it. {remedy}"
            if equal == len(cells) - 1:
                raise ValueError(message)
            trainer.remedy = remedy
            warn(message)


def _check_queues(trainer: Any) -> None:
    """Warn where a sentence is still in the queue when its turn comes again."""
    batch = trainer.args.train_batch_size * distributed.world_size()
    rows = sum(len(part) for _, part in _parts(trainer))
    for loss in text_losses(trainer.loss) if trainer.state.num_train_epochs > 1 else ():
        queue = getattr(loss, "queue", None)
        kept = queue.size or (queue.batches or 0) * batch if isinstance(queue, NegativeQueue) else 0
        if kept and 0 < rows <= kept + batch:
            warn(
                f"train_dataset has {rows} rows, and {type(loss).__name__}'s queue and a batch {kept + batch}: from "
                "the second epoch on, sentences are their own negatives. Take a shorter queue, or one epoch."
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


def _check_optimizer(trainer: Any, losses: list[nn.Module]) -> None:
    stepped = {id(weight) for group in trainer.optimizer.param_groups for weight in group["params"]}
    state = {name: weight for loss in losses for name, weight in owned_state(loss).items() if weight.requires_grad}
    if absent := [name for name, weight in state.items() if id(weight) not in stepped]:
        raise ValueError(
            f"optimizers: the optimizer lacks {len(absent)} parameter(s) of the loss, such as {absent[0]}, which would "
            "never be trained. Build it of [p for p in loss.parameters() if p.requires_grad], which has the model's "
            "too, or leave the optimizer to the trainer."
        )


def _check_processes(trainer: Any, losses: list[nn.Module]) -> None:
    if distributed.world_size() == 1:
        return
    texts = text_losses(trainer.loss)
    owning = _own_parameters(losses)
    gathers = any(text.gather_across_devices for text in texts)
    if len(losses) > 1 and (owning or gathers or len({type(text) for text in texts}) > 1):  # terms are gathered too
        raise ValueError(
            f"loss is a dict of {len(losses)} losses on {distributed.world_size()} devices, which may train different "
            "ones in the same step. Take one loss for all datasets, or several of one class without parameters of "
            "their own and with gather_across_devices=False."
        )
    counts = {len(tokenised_columns(trainer, part.column_names)) for _, part in _parts(trainer)}
    if len(counts) > 1 and any(isinstance(text, TwinsLoss) for text in texts):
        raise ValueError(
            f"train_dataset holds datasets of {' and of '.join(map(str, sorted(counts)))} text columns, of which "
            f"TwinsLoss makes different terms: {distributed.world_size()} processes may train different ones in the "
            "same step, and would wait for each other. Give all datasets translations, or none."
        )
    if trainer.model_wrapped is trainer.model:
        raise ValueError(
            "The trainer has not wrapped the model for several devices, because evaluate() was called before train(): "
            "its gradients would not be averaged. Evaluate after, set eval_on_start=True, or make a new trainer."
        )


def _check_batches(trainer: Any) -> None:
    size = trainer.args.per_device_train_batch_size
    if not all(loss.has_negatives(size) for loss in text_losses(trainer.loss)):
        raise ValueError(
            f"per_device_train_batch_size {size} leaves no other sentence to contrast with, so that the loss is 0: "
            "give 2 or more, and leave repeated texts out."
        )


def _check_metric(trainer: Any) -> None:
    metric = str(trainer.args.metric_for_best_model).removeprefix("eval_")
    data = {f"{name}_loss".lstrip("_"): part for name, part in _by_name(trainer.eval_dataset).items()}.get(metric)
    columns = tokenised_columns(trainer, getattr(data, "column_names", None) or ())
    if len(columns) == 1 and any(getattr(loss, "dropout_only", False) for loss in text_losses(trainer.loss)):
        warn(
            f"metric_for_best_model is {trainer.args.metric_for_best_model!r}, and an evaluation has no dropout: the "
            "loss compares each vector with itself there, and prefers the last step. Take an evaluator's metric."
        )
