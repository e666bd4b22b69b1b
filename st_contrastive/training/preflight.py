"""The checks before the first step. A check may refuse the run or warn about it.

Each check is a function of a ``TrainingRun``. It yields errors, which are raised, and instances of ``UserWarning``.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.data_collator import BaseDataCollator
from sentence_transformers.base.sampler import NoDuplicatesBatchSampler
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import nn
from torch.utils.data import ConcatDataset

from st_contrastive import distributed
from st_contrastive._checks import HELD_OUT, warn
from st_contrastive.components import NegativeQueue, TokenCorruption
from st_contrastive.encoder.checkpoint import foreign_kind
from st_contrastive.encoder.model_facts import get_encoder, unwrap
from st_contrastive.encoder.requirements import require_trainable
from st_contrastive.inputs.faults import (
    find_empty,
    find_ids,
    find_repeats,
    find_shared_text,
    is_negative_label,
    texts_with_same_tokens,
)
from st_contrastive.inputs.tables import columns_read
from st_contrastive.losses.owned_state import owned_state, trained_parameters
from st_contrastive.training.run_parts import (
    ROWS,
    TrainedDataset,
    TrainingRun,
    by_name,
    module_settings,
    tokenised_columns,
)

#: Warn above this fraction of useless rows.
SHARE = 0.01
#: A column holds languages, sources or labels if its values are repeated this often on average and are this short.
_REPEATS, _SHORT = 10, 40
_HELD_OUT = re.compile(rf"({HELD_OUT})(set|[-_.\d].*)?", re.IGNORECASE)

Finding: TypeAlias = Exception
Check: TypeAlias = Callable[[TrainingRun], Iterable[Finding]]


def run_checks(checks: Iterable[Check], run: TrainingRun) -> None:
    """Raise the first error that a check yields, and issue the warnings before it."""
    for check in checks:
        for finding in check(run):
            if not isinstance(finding, UserWarning):
                raise finding
            warn(str(finding))


# Checks of the arguments and the data.


def _ignored_arguments(run: TrainingRun) -> Iterator[Finding]:
    """Find arguments of transformers that are ignored or fail with a SentenceTransformer."""
    unread = ("label_smoothing_factor", "train_sampling_strategy", "length_column_name", "neftune_noise_alpha")
    defaults = {field.name: field.default for field in dataclasses.fields(run.args)}
    for name in unread:
        if (value := getattr(run.args, name)) != defaults[name]:
            yield ValueError(f"{name}={value!r} has no effect on sentence encoders. Remove it.")


def _host_options(run: TrainingRun) -> Iterator[Finding]:
    """Find options of transformers and accelerate that would change what the run trains."""
    if run.args.auto_find_batch_size:
        yield ValueError(
            "auto_find_batch_size changes the batch in which sentences are contrasted. Remove it. The loss's "
            "mini_batch_size saves memory without changing the gradient."
        )
    if distributed.world_size() > 1 and run.trainer.accelerator.split_batches:
        yield ValueError(
            "accelerator_config: split_batches=True divides per_device_train_batch_size among the processes, so "
            "fewer sentences are contrasted. Remove it, and set the batch size of each device."
        )
    if run.trainer.model_init is not None:
        yield ValueError(
            "model_init, and so hyperparameter_search, is not supported, because a loss is built with its model. Build "
            "a model, a loss and a ContrastiveTrainer for each trial."
        )


def _unsuitable_precision(run: TrainingRun) -> Iterator[Finding]:
    is_emulated = run.args.device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"
    if run.args.bf16 and is_emulated:
        yield UserWarning("bf16=True makes a step at least ten times as long: this CPU has no bfloat16. Remove it.")
    if run.args.fp16 and run.args.device.type == "cpu":
        yield UserWarning("fp16=True has no effect on a CPU: training uses float32. Remove it.")


def _sharded_encoder(run: TrainingRun) -> Iterator[Finding]:
    trainer, by_deepspeed = run.trainer, run.trainer.is_deepspeed_enabled
    if run.args.fsdp or trainer.is_fsdp_enabled or (by_deepspeed and _own_parameters(run.losses)):
        yield ValueError(
            f"{'DeepSpeed' if by_deepspeed else 'FSDP'} shards the encoder. The loss's parameters would not be "
            "averaged or clipped, and checkpoints could not be resumed. Train with plain DDP (torchrun)."
        )


def _unread_max_length(run: TrainingRun) -> Iterator[Finding]:
    length = run.trainer.max_length
    if length is not None and not isinstance(run.trainer.data_collator, BaseDataCollator):
        yield ValueError(
            f"max_length {length} would not truncate the texts, because your data_collator tokenizes them. Truncate "
            "them there."
        )


def _converted_checkpoint(run: TrainingRun) -> Iterator[Finding]:
    model = run.trainer.model
    if not run.text_losses:
        return
    if kind := foreign_kind(model):
        folder = get_encoder(model).config.name_or_path
        yield ValueError(
            f"model was loaded from {folder}, which is {kind}, not a sentence encoder. To start from its layers "
            f"anyway, save only the layers: AutoModel.from_pretrained({folder!r}).save_pretrained(...)."
        )


def _another_similarity(run: TrainingRun) -> Iterator[Finding]:
    model = unwrap(run.trainer.model)
    name = getattr(model, "similarity_fn_name", None)
    if run.text_losses and name not in (None, "cosine") and not any(isinstance(module, Normalize) for module in model):
        yield UserWarning(
            f"model compares vectors by {name!r}, and the loss trains their cosine, not their length. Set "
            "model.similarity_fn_name = 'cosine', or evaluate the result on your queries."
        )


def _held_out_splits(run: TrainingRun) -> Iterator[Finding]:
    names = list(by_name(run.trainer.train_dataset))
    if held_out := [name for name in names if _HELD_OUT.fullmatch(name)]:
        yield ValueError(
            f"train_dataset has the parts {', '.join(names)}, and {held_out[0]} would be trained on too. Pass one "
            "part, such as train_dataset['train'], or rename the parts to train on."
        )


def _unknown_prompts(run: TrainingRun) -> Iterator[Finding]:
    """Find prompts for unknown datasets or columns, which sentence-transformers ignores."""
    if not run.text_losses:
        return
    columns = set()
    for datasets in (run.trainer.train_dataset, run.trainer.eval_dataset):
        for name, data in by_name(datasets).items():
            columns |= {name, *tokenised_columns(run.trainer, columns_read(data))} - {""}
    prompts = run.args.prompts if isinstance(run.args.prompts, dict) else {}
    inner = [name for prompt in prompts.values() if isinstance(prompt, dict) for name in prompt]
    for name in (*prompts, *inner):
        if name not in columns:
            yield ValueError(
                f"prompts has {name!r}, which is not one of the columns {', '.join(sorted(columns))}. Use these names, "
                "or one prompt for all columns."
            )


def _cells_without_text(run: TrainingRun) -> Iterator[Finding]:
    for data in run.datasets:
        first = ((row, column, data.rows[row][column]) for row in range(len(data.rows)) for column in data.columns)
        wrong = (cell for cell in first if not isinstance(cell[2], str))
        for row, column, cell in itertools.chain(wrong, ((row, column, None) for row, column in data.missing_texts())):
            yield ValueError(
                f"{data.name}[{row}][{column!r}] must be a text, got {cell!r:.80}. Remove such rows or columns with "
                "dataset.filter(...) or dataset.select_columns(...)."
            )


def _columns_of_no_text(run: TrainingRun) -> Iterator[Finding]:
    """Find columns of languages, sources or ids, which the loss would read as another form of the text."""
    for data in run.datasets:
        for column in data.columns if len(data.columns) > 1 else ():
            cells, others = data.cells(column), [name for name in data.data.column_names if name != column]
            values = set(cells)
            message = (
                f"The column {column!r} of {data.name} has only {len(values)} distinct value(s), such as "
                f"{cells[0]!r:.80}, and would be read as another form of the text. Remove it: "
                f"dataset.select_columns({others})."
            )
            if column.startswith("__index_level_"):
                yield ValueError(
                    f"{data.name} has the index of a DataFrame, {column!r}, which would be read as another form of the "
                    f"text. Remove it: dataset.select_columns({others})."
                )
            if len(values) == 1 and len(cells) > 2:
                yield ValueError(message)
            elif len(values) * _REPEATS <= len(cells) and max(map(len, values)) <= _SHORT:
                yield UserWarning(message)
            elif (ids := find_ids(column, cells)) and ids.count > 0.9 * len(cells):
                yield UserWarning(
                    f"The column {column!r} of {data.name} holds ids or addresses, such as {cells[0]!r:.80}, and is "
                    f"read as another form of the text. If it is not, remove it: dataset.select_columns({others})."
                )


def _overlapping_names(run: TrainingRun) -> Iterator[Finding]:
    """Find columns whose name is another one's with an underscore and more: their tokens would be mixed up."""
    for data in run.datasets:
        for column, other in itertools.permutations(data.columns, 2):
            if other.startswith(f"{column}_"):
                yield ValueError(
                    f"The name of the column {other!r} of {data.name} begins with that of {column!r}, so their tokens "
                    f"would be mixed up. Rename it: dataset.rename_column({other!r}, 'other')."
                )


def _wrong_number_of_columns(run: TrainingRun) -> Iterable[Finding]:
    for data in run.datasets:
        for loss in data.text_losses if data.columns else ():
            loss.require_columns(len(data.columns))
    return ()


def _ignored_labels(run: TrainingRun) -> Iterator[Finding]:
    for data in run.datasets:
        if data.label is None or not data.rows or any(loss.reads_labels for loss in data.text_losses):
            continue
        labels = data.distinct(data.label)
        if isinstance(labels[0], list):
            yield ValueError(
                f"{data.name} has lists in {data.label!r}, which {type(data.text_losses[0]).__name__} does not read. "
                "Remove the column. If twins_dataset(..., fraternal=...) made it, pass TwinsLoss the same fraternal."
            )
            continue
        are_numbers = all(isinstance(label, (int, float)) for label in labels)
        if (len(data.columns) > 1 and len(labels) > 1) or not are_numbers:
            yield ValueError(
                f"{data.name} has labels such as {labels[0]!r:.40} and {labels[-1]!r:.40} in {data.label!r}, which "
                f"{type(data.text_losses[0]).__name__} does not read. All pairs would be positives. Keep only "
                f"pairs that belong together: dataset.filter(...).remove_columns({data.label!r}). If your loss reads "
                "labels, set its reads_labels to True and use numbers as labels."
            )
        elif len(data.columns) > 1 and is_negative_label(labels[0]):
            yield UserWarning(
                f"All rows of {data.name} have {labels[0]!r} in {data.label!r}, and are trained as pairs that belong "
                "together. If this label means that they don't, train on other rows."
            )


def _no_step(run: TrainingRun) -> Iterator[Finding]:
    size, processes = run.args.train_batch_size, distributed.world_size()
    if size < 1 or not run.text_losses:  # PyTorch refuses a batch of 0
        return
    datasets = by_name(run.trainer.train_dataset)
    if datasets and all(isinstance(data, Dataset) for data in datasets.values()):
        batches, rows = _count_batches(run.trainer, datasets, processes)
    elif run.datasets and all(data.size is None and len(data.rows) < ROWS for data in run.datasets):  # short streams
        rows = {data.name: len(data.rows) for data in run.datasets}
        batches = sum(count // size if run.args.dataloader_drop_last else 1 for count in rows.values())
    else:
        return
    if batches < processes:
        samplers = f"batch_sampler={run.args.batch_sampler}" + (
            f" and multi_dataset_batch_sampler={run.args.multi_dataset_batch_sampler}" if len(datasets) > 1 else ""
        )
        yield ValueError(
            f"Training would take no steps: {', '.join(f'{name} has {count} rows' for name, count in rows.items())}, "
            f"and with {samplers}, per_device_train_batch_size {size} and dataloader_drop_last="
            f"{run.args.dataloader_drop_last} an epoch has {batches} batches for {processes} process(es). Use a "
            "smaller batch or more rows."
        )


def _count_batches(trainer: Any, datasets: dict[str, Dataset], most: int) -> tuple[int, dict[str, int]]:
    """The number of batches in an epoch, at most ``most``, and the rows of the datasets that limit it."""
    rows = {f"train_dataset[{name!r}]" if name else "train_dataset": len(data) for name, data in datasets.items()}
    if not all(rows.values()):
        return 0, {name: count for name, count in rows.items() if not count}
    samplers = [_batch_sampler(trainer, data) for data in datasets.values()]
    if len(samplers) == 1:
        return sum(1 for _ in islice(samplers[0], most)), rows
    sampler = trainer.get_multi_dataset_batch_sampler(
        dataset=ConcatDataset(datasets.values()), batch_samplers=samplers, generator=torch.Generator(), seed=0
    )
    batches = sum(1 for _ in islice(sampler, most))
    empty = {
        name: count for (name, count), part in zip(rows.items(), samplers, strict=True) if not any(True for _ in part)
    }
    return batches, empty or rows


def _batch_sampler(trainer: Any, data: Dataset) -> Any:
    """The batch sampler of a dataset, with a random generator that training does not use."""
    sampler = trainer.get_batch_sampler(
        data,
        batch_size=trainer.args.train_batch_size,
        drop_last=trainer.args.dataloader_drop_last,
        valid_label_columns=getattr(trainer.data_collator, "valid_label_columns", None),
        generator=torch.Generator(),
        seed=0,
    )
    if isinstance(sampler, NoDuplicatesBatchSampler):
        sampler.precompute_hashes = False  # the batches are the same without it, and hashing reads all rows
    return sampler


def _blank_and_repeated_rows(run: TrainingRun) -> Iterator[Finding]:
    for data in run.datasets:
        whole = [tuple(row[column] for column in data.columns) for row in data.rows]
        empty, repeats = find_empty(whole), find_repeats("", whole)
        blank, repeated = (fault.count if fault else 0 for fault in (empty, repeats))
        if max(blank, repeated) > SHARE * len(whole):
            yield UserWarning(
                f"Of the first {len(whole)} rows of {data.name}, {blank / len(whole):.1%} have a blank text and "
                f"{repeated / len(whole):.1%} repeat an earlier row. Equal rows are each other's negatives. "
                "st_contrastive.inputs.load_sentences(dataset) drops them."
            )
        for column, cells in zip(data.columns, zip(*set(whole), strict=True), strict=True):
            shared = find_shared_text(column, cells)
            if shared and shared.count > max(2, SHARE * len(whole)):
                yield UserWarning(
                    f"{shared.count} different rows of the first {len(whole)} of {data.name} have the same text in "
                    f"{column!r}, {shared.example[0]!r:.60}, and are each other's negatives. {shared.remedy}"
                )


ARGUMENTS_AND_DATA: tuple[Check, ...] = (
    _ignored_arguments,
    _host_options,
    _unsuitable_precision,
    _sharded_encoder,
    _unread_max_length,
    _converted_checkpoint,
    _another_similarity,
    _held_out_splits,
    _unknown_prompts,
    _cells_without_text,
    _columns_of_no_text,
    _overlapping_names,
    _wrong_number_of_columns,
    _ignored_labels,
    _no_step,
    _blank_and_repeated_rows,
)


# Checks of the run, once its optimizer and batches exist.


def _wrapped_adapters(run: TrainingRun) -> Iterator[Finding]:
    wrapped = any(hasattr(module, "merge_and_unload") for module in run.trainer.model.modules())
    if wrapped and run.args.save_strategy != "no":
        yield ValueError(
            "The encoder is wrapped by PEFT's get_peft_model, and sentence-transformers saves it under other names "
            "than it loads. Add the adapter with model.add_adapter(config), or set save_strategy='no'."
        )


def _loss_of_another_model(run: TrainingRun) -> Iterator[Finding]:
    for loss in run.losses:
        for name, module in loss.named_modules():
            attributes = [step for step in name.split(".") if step not in ("module", "_orig_mod")]
            is_model = isinstance(module, SentenceTransformer) and attributes[-1:] == ["model"]
            if is_model and module is not unwrap(run.trainer.model):
                yield ValueError(
                    f"The {name} of {type(loss).__name__} is not the trainer's model. Build the loss with the model "
                    "that you pass to the trainer."
                )


def _changed_model(run: TrainingRun) -> Iterator[Finding]:
    """Find changes to the model since the loss was built."""
    if run.text_losses:
        require_trainable(run.trainer.model)
    modules = list(unwrap(run.trainer.model))
    for loss in run.text_losses:
        copies = getattr(getattr(loss, "momentum_encoder", None), "copies", None)
        if copies is not None and module_settings(copies) != module_settings(modules):
            yield ValueError(
                f"The model's modules have changed since {type(loss).__name__} copied them for its momentum encoder. "
                "Build the loss after the change."
            )
        for module in (module for module in loss.modules() if isinstance(module, TokenCorruption)):
            if max(run.trainer.model.tokenizer.get_vocab().values()) >= len(module.special):
                yield ValueError(
                    f"Tokens were added to the model since {type(loss).__name__} was built. Build the loss afterwards."
                )


def _optimizer_without_the_loss(run: TrainingRun) -> Iterator[Finding]:
    """Find parameters of the losses that the optimizer does not have. The Trainer adds them to its own optimizer."""
    if run.trainer.optimizer is None:
        return
    stepped = {id(weight) for group in run.trainer.optimizer.param_groups for weight in group["params"]}
    trained = {
        name: weight for loss in run.losses for name, weight in owned_state(loss).items() if weight.requires_grad
    }
    if absent := [name for name, weight in trained.items() if id(weight) not in stepped]:
        yield ValueError(
            f"The optimizer is missing {len(absent)} parameter(s) of the loss, such as {absent[0]}. Build it from [p "
            "for p in loss.parameters() if p.requires_grad], which includes the model's parameters, and pass it as "
            "optimizers=(optimizer, None). With optimizer_cls_and_kwargs, the Trainer only adds the model's."
        )


def _mismatched_processes(run: TrainingRun) -> Iterator[Finding]:
    processes = distributed.world_size()
    if processes == 1:
        return
    shares = (
        any(loss.gather_across_devices for loss in run.text_losses) or len({type(loss) for loss in run.text_losses}) > 1
    )
    if len(run.losses) > 1 and (_own_parameters(run.losses) or shares):  # the terms are gathered too
        yield ValueError(
            f"loss is a dict of {len(run.losses)} losses on {processes} devices, which may use different losses in "
            "the same step. Use one loss for all datasets, or several losses of one class without trainable parameters "
            "and with gather_across_devices=False."
        )
    for loss in run.text_losses:
        counts = {len(data.columns) for data in run.datasets if loss in data.text_losses}
        if len(counts) > 1 and loss.terms_depend_on_columns:
            yield ValueError(
                f"train_dataset holds datasets of {' and of '.join(map(str, sorted(counts)))} text columns. "
                f"{type(loss).__name__} computes different terms for them, and {processes} processes would wait for "
                "each other. Use the same number of columns in all datasets."
            )
    if run.trainer.model_wrapped is run.trainer.model:
        yield ValueError(
            "The trainer has not wrapped the model for several devices, because evaluate() was called before "
            "train(). Evaluate after training, set eval_on_start=True, or build a new trainer."
        )


def _no_negatives(run: TrainingRun) -> Iterator[Finding]:
    size = run.args.per_device_train_batch_size
    for data in run.datasets:
        rows = size if data.size is None else min(size, data.size)
        if not all(loss.has_negatives(rows) for loss in data.text_losses):
            yield ValueError(
                f"per_device_train_batch_size {size} ({data.name}: {data.size or 'unknown number of'} rows) leaves no "
                "other sentence to contrast with. Use a batch and a dataset of 2 or more rows."
            )


def _same_tokens(run: TrainingRun) -> Iterator[Finding]:
    for data, column, equal in _many_equal_tokens(run):
        one, other, _ = equal[0]
        message = (
            f"In {len(equal) / len(data.rows):.0%} of the first {len(data.rows)} rows of {data.name}, the text in "
            f"{column!r} has the same tokens as a different earlier text, such as {other!r:.60} and {one!r:.60}. "
            f"{_remedy_of_equal_tokens(data, equal)}"
        )
        special = {*run.trainer.model.tokenizer.all_special_ids}  # the unknown token is one of them
        unread = sum({*memoryview(tokens).cast("q")} <= special for *_, tokens in equal)
        is_one = len(set(data.tokens(column))) == 1
        yield ValueError(message) if is_one or 2 * unread > len(data.rows) else UserWarning(message)


def _metric_without_dropout(run: TrainingRun) -> Iterator[Finding]:
    metric = str(run.args.metric_for_best_model).removeprefix("eval_")
    data = {f"{name}_loss".lstrip("_"): data for name, data in by_name(run.trainer.eval_dataset).items()}.get(metric)
    columns = tokenised_columns(run.trainer, columns_read(data))
    if len(columns) == 1 and any(getattr(loss, "dropout_only", False) for loss in run.text_losses):
        yield UserWarning(
            f"metric_for_best_model is {run.args.metric_for_best_model!r}. Without dropout this loss compares "
            "each vector with itself, so it prefers the last step. Use an evaluator's metric."
        )


def _queue_covers_data(run: TrainingRun) -> Iterator[Finding]:
    batch = run.args.train_batch_size * distributed.world_size()
    rows = sum(data.size or 0 for data in run.datasets)
    for loss in run.text_losses if run.trainer.state.num_train_epochs > 1 else ():
        queue = getattr(loss, "queue", None)
        kept = queue.size or (queue.batches or 0) * batch if isinstance(queue, NegativeQueue) else 0
        if kept and 0 < rows <= kept + batch:
            yield UserWarning(
                f"train_dataset has {rows} rows, and {type(loss).__name__}'s queue and a batch hold {kept + batch}. "
                "From the second epoch on, sentences are their own negatives. Use a shorter queue or one epoch."
            )


BEFORE_THE_FIRST_STEP: tuple[Check, ...] = (
    _wrapped_adapters,
    _loss_of_another_model,
    _changed_model,
    _optimizer_without_the_loss,
    _mismatched_processes,
    _no_negatives,
    _same_tokens,
    _metric_without_dropout,
    _queue_covers_data,
)


# Helpers of the checks.


def remedy_of_collapse(trainer: Any) -> str | None:
    """The remedy if many texts have the same tokens; otherwise None, because the learning rate is then the cause."""
    return next(
        (_remedy_of_equal_tokens(data, equal) for data, _, equal in _many_equal_tokens(TrainingRun.of(trainer))),
        None,
    )


def _many_equal_tokens(run: TrainingRun) -> Iterator[tuple[TrainedDataset, str, list[tuple[str, str, bytes]]]]:
    """Columns in which many texts have the same tokens, with (earlier text, later text, token ids) for each."""
    readable = isinstance(run.trainer.data_collator, BaseDataCollator)
    for data in run.datasets if readable else ():
        for column in data.columns:
            equal = texts_with_same_tokens(data.cells(column), data.tokens(column))
            if len(equal) > SHARE * len(data.rows):
                yield data, column, equal


def _remedy_of_equal_tokens(data: TrainedDataset, equal: list[tuple[str, str, bytes]]) -> str:
    trainer, tokenizer = data.trainer, data.trainer.model.tokenizer
    limit = trainer.max_length or trainer.model.max_seq_length
    longest = max(len(tokens) for *_, tokens in equal) // 8  # bytes of an integer
    if limit is not None and longest >= limit:
        longest_read = trainer.model.max_seq_length
        setting = "max_length" if trainer.max_length and trainer.max_length != longest_read else "model.max_seq_length"
        return f"Raise {setting} above {limit}, or remove the shared beginning of the texts."
    return (
        f"The tokenizer ({type(tokenizer).__name__}) reads unknown words as one token, or drops capitals, accents or "
        "spaces. Use an encoder for the language of these texts, or remove such texts."
    )


def _own_parameters(losses: list[nn.Module]) -> bool:
    """Whether any of the losses trains parameters in addition to the encoder's."""
    return any(trained_parameters(owned_state(loss)) for loss in losses)
