"""The checks before the first step. Each may refuse the run, or warn.

A check is a function of a ``Start`` that yields what it finds: an error, which is raised, or a ``UserWarning``.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.data_collator import BaseDataCollator
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import nn

from st_contrastive import distributed
from st_contrastive._checks import HELD_OUT, is_id, says_no, warn
from st_contrastive.components import NegativeQueue, TokenCorruption
from st_contrastive.encoder.checkpoint import foreign_kind
from st_contrastive.encoder.model_facts import get_encoder, unwrap
from st_contrastive.encoder.requirements import require_trainable
from st_contrastive.losses.owned_state import owned_state, trained_parameters
from st_contrastive.training.run_parts import ROWS, Part, Start, by_name, module_settings, tokenised_columns

#: What share of useless rows is worth a warning.
SHARE = 0.01
#: A column with a value for each so many rows, all of so few characters, holds languages, sources or labels.
_REPEATS, _SHORT = 10, 40
_HELD_OUT = re.compile(rf"({HELD_OUT})(set|[-_.\d].*)?", re.IGNORECASE)

Finding: TypeAlias = Exception
Check: TypeAlias = Callable[[Start], Iterable[Finding]]


def run(checks: Iterable[Check], start: Start) -> None:
    """Raise the first error that a check finds, and warn of the rest."""
    for check in checks:
        for finding in check(start):
            if not isinstance(finding, UserWarning):
                raise finding
            warn(str(finding))


# Of the arguments and the data.


def _unread_arguments(start: Start) -> Iterator[Finding]:
    """Arguments of transformers that are not read, or that fail with a SentenceTransformer."""
    unread = ("label_smoothing_factor", "train_sampling_strategy", "length_column_name", "neftune_noise_alpha")
    defaults = {field.name: field.default for field in dataclasses.fields(start.args)}
    for name in unread:
        if (value := getattr(start.args, name)) != defaults[name]:
            yield ValueError(f"{name}={value!r} has no effect on sentence encoders: leave it out.")


def _host_options(start: Start) -> Iterator[Finding]:
    """Options of the host under which something else would be trained."""
    if start.args.auto_find_batch_size:
        yield ValueError(
            "auto_find_batch_size changes the batch that sentences are contrasted in. Leave it out; the loss's "
            "mini_batch_size saves memory without changing the gradient."
        )
    if distributed.world_size() > 1 and start.trainer.accelerator.split_batches:
        yield ValueError(
            "accelerator_config: split_batches=True divides per_device_train_batch_size among the processes, so that "
            "fewer sentences are contrasted. Leave it out, and give each device its batch size."
        )
    if start.trainer.model_init is not None:
        yield ValueError("model_init makes a model for each run, and the loss has one. Build both for each run.")


def _slow_precision(start: Start) -> Iterator[Finding]:
    is_emulated = start.args.device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"
    if start.args.bf16 and is_emulated:
        yield UserWarning("bf16=True makes a step ten times as long or more: this CPU has no bfloat16. Leave it out.")


def _sharded_encoder(start: Start) -> Iterator[Finding]:
    trainer, by_deepspeed = start.trainer, start.trainer.is_deepspeed_enabled
    if start.args.fsdp or trainer.is_fsdp_enabled or (by_deepspeed and _own_parameters(start.losses)):
        yield ValueError(
            f"{'DeepSpeed' if by_deepspeed else 'FSDP'} shards the encoder: the loss's parameters are neither averaged "
            "nor clipped, and checkpoints not resumed. Train under plain DDP (torchrun)."
        )


def _unread_max_length(start: Start) -> Iterator[Finding]:
    length = start.trainer.max_length
    if length is not None and not isinstance(start.trainer.data_collator, BaseDataCollator):
        yield ValueError(f"max_length {length} would not cut the texts: your data_collator reads them. Cut them there.")


def _converted_checkpoint(start: Start) -> Iterator[Finding]:
    model = start.trainer.model
    if not start.texts:
        return
    if kind := foreign_kind(model):
        folder = get_encoder(model).config.name_or_path
        yield ValueError(
            f"model is made of {folder}, which is {kind}, not a sentence encoder. To start from its layers anyway, "
            f"save them alone: AutoModel.from_pretrained({folder!r}).save_pretrained(...)."
        )


def _another_similarity(start: Start) -> Iterator[Finding]:
    model = unwrap(start.trainer.model)
    name = getattr(model, "similarity_fn_name", None)
    if start.texts and name not in (None, "cosine") and not any(isinstance(part, Normalize) for part in model):
        yield UserWarning(
            f"model compares vectors by {name!r}, and the loss trains their cosine, whatever their length. Set "
            "model.similarity_fn_name = 'cosine', or judge the result by queries of your own."
        )


def _held_out_splits(start: Start) -> Iterator[Finding]:
    names = list(by_name(start.trainer.train_dataset))
    if held_out := [name for name in names if _HELD_OUT.fullmatch(name)]:
        yield ValueError(
            f"train_dataset has the parts {', '.join(names)}, and {held_out[0]} would be trained on too. Give one, "
            "such as train_dataset['train'], or those to train on under other names."
        )


def _unknown_prompts(start: Start) -> Iterator[Finding]:
    """Each prompt is of a dataset or of a column: sentence-transformers leaves out what has another name."""
    if not start.texts:
        return
    columns = set()
    for data in (start.trainer.train_dataset, start.trainer.eval_dataset):
        for name, part in by_name(data).items():
            columns |= {name, *tokenised_columns(start.trainer, getattr(part, "column_names", None) or ())} - {""}
    prompts = start.args.prompts if isinstance(start.args.prompts, dict) else {}
    inner = [name for prompt in prompts.values() if isinstance(prompt, dict) for name in prompt]
    for name in (*prompts, *inner):
        if name not in columns:
            yield ValueError(
                f"prompts has {name!r}, which is no column: {', '.join(sorted(columns))}. Name one of these, or give "
                "one prompt for all."
            )


def _cells_without_text(start: Start) -> Iterator[Finding]:
    for part in start.parts:
        first = ((row, column, part.rows[row][column]) for row in range(len(part.rows)) for column in part.columns)
        wrong = (cell for cell in first if not isinstance(cell[2], str))
        for row, column, cell in itertools.chain(wrong, ((row, column, None) for row, column in part.missing_texts())):
            yield ValueError(
                f"{part.name}[{row}][{column!r}] must be a text, got {cell!r:.80}. Leave such rows or columns out: "
                "dataset.filter(...), dataset.select_columns(...)."
            )


def _columns_of_no_text(start: Start) -> Iterator[Finding]:
    """No language or source: the loss would read it as another form of the text."""
    for part in start.parts:
        for column in part.columns if len(part.columns) > 1 else ():
            cells, others = part.cells(column), [name for name in part.data.column_names if name != column]
            values = set(cells)
            message = (
                f"The column {column!r} of {part.name} has only {len(values)} distinct value(s), such as "
                f"{cells[0]!r:.80}, and would be read as another form of the text: leave it out, "
                f"dataset.select_columns({others})."
            )
            if column.startswith("__index_level_"):
                yield ValueError(
                    f"{part.name} has the index of a DataFrame, {column!r}, which would be read as another form of the "
                    f"text: leave it out, dataset.select_columns({others})."
                )
            if len(values) == 1 and len(cells) > 2:
                yield ValueError(message)
            elif len(values) * _REPEATS <= len(cells) and max(map(len, values)) <= _SHORT:
                yield UserWarning(message)
            elif sum(map(is_id, cells)) > 0.9 * len(cells):
                yield UserWarning(
                    f"The column {column!r} of {part.name} holds ids or addresses, such as {cells[0]!r:.80}, and is "
                    f"read as another form of the text. If it is none, leave it out: dataset.select_columns({others})."
                )


def _wrong_number_of_columns(start: Start) -> Iterable[Finding]:
    for part in start.parts:
        for loss in part.texts if part.columns else ():
            loss.require_columns(len(part.columns))
    return ()


def _unread_labels(start: Start) -> Iterator[Finding]:
    for part in start.parts:
        if part.label is None or not part.rows or any(loss.reads_labels for loss in part.texts):
            continue
        labels = part.distinct(part.label)
        are_numbers = all(isinstance(label, (int, float)) for label in labels)
        if (len(part.columns) > 1 and len(labels) > 1) or not are_numbers:
            yield ValueError(
                f"{part.name} has labels such as {labels[0]!r:.40} and {labels[-1]!r:.40} in {part.label!r}, which "
                f"{type(part.texts[0]).__name__} does not read: all pairs would be positives. Keep the rows whose "
                f"texts belong together, dataset.filter(...).remove_columns({part.label!r}); a loss that reads labels, "
                "which are numbers, has reads_labels = True."
            )
        elif len(part.columns) > 1 and says_no(labels[0]):
            yield UserWarning(
                f"All rows of {part.name} have {labels[0]!r} in {part.label!r}, and are trained as pairs that belong "
                "together. If it says that they don't, train on the others."
            )


def _no_step(start: Start) -> Iterator[Finding]:
    size, processes = start.args.train_batch_size, distributed.world_size()
    if size < 1:  # which PyTorch refuses
        return
    drops, datasets = start.args.dataloader_drop_last, by_name(start.trainer.train_dataset).values()
    sizes = [len(data) for data in datasets if isinstance(data, Dataset)]
    batches = sum(rows // size if drops else -(-rows // size) for rows in sizes)
    for part in start.parts:
        if part.size is None and len(part.rows) < ROWS:  # a stream that has been read whole
            sizes, batches = [len(part.rows)], len(part.rows) // size if drops else 1
    if start.texts and sizes and batches < processes:
        yield ValueError(
            f"No step would be made: train_dataset has {sum(sizes)} rows, per_device_train_batch_size is {size} on "
            f"{processes} process(es), and dataloader_drop_last leaves out the rest: give a smaller batch."
        )


def _blank_and_repeated_rows(start: Start) -> Iterator[Finding]:
    for part in start.parts:
        whole = [tuple(row[column] for column in part.columns) for row in part.rows]
        blank = sum(any(not text.strip() for text in row) for row in whole)
        repeated = len(whole) - len(set(whole))
        if max(blank, repeated) > SHARE * len(whole):
            yield UserWarning(
                f"Of the first {len(whole)} rows of {part.name}, {blank / len(whole):.1%} have a blank text and "
                f"{repeated / len(whole):.1%} repeat an earlier row; they are each other's negatives. "
                "st_contrastive.inputs.load_sentences(dataset) leaves them out."
            )
        for column, cells in zip(part.columns, zip(*set(whole), strict=True), strict=True):
            for text, count in Counter(filter(str.strip, cells)).most_common(1):
                if count > max(2, SHARE * len(whole)):
                    yield UserWarning(
                        f"{count} different rows of the first {len(whole)} of {part.name} have one text in {column!r}, "
                        f"{text!r:.60}, and are each other's negatives. If it stands for a missing one, leave them out."
                    )


ARGUMENTS_AND_DATA: tuple[Check, ...] = (
    _unread_arguments,
    _host_options,
    _slow_precision,
    _sharded_encoder,
    _unread_max_length,
    _converted_checkpoint,
    _another_similarity,
    _held_out_splits,
    _unknown_prompts,
    _cells_without_text,
    _columns_of_no_text,
    _wrong_number_of_columns,
    _unread_labels,
    _no_step,
    _blank_and_repeated_rows,
)


# Of the run, when its optimizer and its batches are there.


def _wrapped_adapters(start: Start) -> Iterator[Finding]:
    wrapped = any(hasattr(part, "merge_and_unload") for part in start.trainer.model.modules())
    if wrapped and start.args.save_strategy != "no":
        yield ValueError(
            "The encoder is in PEFT's get_peft_model, which sentence-transformers saves under other names than it "
            "loads. Add the adapter with model.add_adapter(config), or set save_strategy='no'."
        )


def _loss_of_another_model(start: Start) -> Iterator[Finding]:
    for loss in start.losses:
        for name, part in loss.named_modules():
            attributes = [step for step in name.split(".") if step not in ("module", "_orig_mod")]
            is_model = isinstance(part, SentenceTransformer) and attributes[-1:] == ["model"]
            if is_model and part is not unwrap(start.trainer.model):
                yield ValueError(
                    f"The {name} of {type(loss).__name__} is not the trainer's model: build the loss with the model "
                    "that the trainer gets."
                )


def _changed_model(start: Start) -> Iterator[Finding]:
    """What was done to the model since the loss was built."""
    if start.texts:
        require_trainable(start.trainer.model)
    modules = list(unwrap(start.trainer.model))
    for loss in start.texts:
        copies = getattr(getattr(loss, "momentum_encoder", None), "copies", None)
        if copies is not None and module_settings(copies) != module_settings(modules):
            yield ValueError(
                f"The model's modules have changed since {type(loss).__name__} copied them for its momentum encoder: "
                "build the loss after."
            )
        for part in (part for part in loss.modules() if isinstance(part, TokenCorruption)):
            if max(start.trainer.model.tokenizer.get_vocab().values()) >= len(part.special):
                yield ValueError(
                    f"Tokens were added to the model since {type(loss).__name__} was built: build the loss after."
                )


def _optimizer_without_the_loss(start: Start) -> Iterator[Finding]:
    if not start.trainer.has_users_optimizer:
        return
    stepped = {id(weight) for group in start.trainer.optimizer.param_groups for weight in group["params"]}
    own = {name: weight for loss in start.losses for name, weight in owned_state(loss).items() if weight.requires_grad}
    if absent := [name for name, weight in own.items() if id(weight) not in stepped]:
        yield ValueError(
            f"optimizers: the optimizer lacks {len(absent)} parameter(s) of the loss, such as {absent[0]}. Build it of "
            "[p for p in loss.parameters() if p.requires_grad], which has the model's too."
        )


def _unlike_processes(start: Start) -> Iterator[Finding]:
    processes = distributed.world_size()
    if processes == 1:
        return
    shares = any(loss.gather_across_devices for loss in start.texts) or len({type(loss) for loss in start.texts}) > 1
    if len(start.losses) > 1 and (_own_parameters(start.losses) or shares):  # terms are gathered too
        yield ValueError(
            f"loss is a dict of {len(start.losses)} losses on {processes} devices, which may train different ones in "
            "the same step. Use one for all datasets, or several of one class, without parameters of their own and "
            "with gather_across_devices=False."
        )
    for loss in start.texts:
        counts = {len(part.columns) for part in start.parts if loss in part.texts}
        if len(counts) > 1 and loss.terms_depend_on_columns:
            yield ValueError(
                f"train_dataset holds datasets of {' and of '.join(map(str, sorted(counts)))} text columns, of which "
                f"{type(loss).__name__} makes different terms, and {processes} processes would wait for each other. "
                "Give all datasets as many columns."
            )
    if start.trainer.model_wrapped is start.trainer.model:
        yield ValueError(
            "The trainer has not wrapped the model for several devices, since evaluate() was called before train(). "
            "Evaluate after, set eval_on_start=True, or make a new trainer."
        )


def _contrasted_with_nothing(start: Start) -> Iterator[Finding]:
    size = start.args.per_device_train_batch_size
    for part in start.parts:
        rows = size if part.size is None else min(size, part.size)
        if not all(loss.has_negatives(rows) for loss in part.texts):
            yield ValueError(
                f"per_device_train_batch_size {size} of {part.name}, which has {part.size or 'many'} row(s), leaves no "
                "other sentence to contrast with: give 2 or more."
            )


def _one_text_to_the_model(start: Start) -> Iterator[Finding]:
    for part, column, equal in _many_equal_tokens(start):
        one, other, _ = equal[0]
        message = (
            f"In {len(equal) / len(part.rows):.0%} of the first {len(part.rows)} rows of {part.name}, the text in "
            f"{column!r} is the same to the model as another text before it, such as {other!r:.60} and {one!r:.60}. "
            f"{_remedy_of_equal_tokens(part, equal)}"
        )
        special = {*start.trainer.model.tokenizer.all_special_ids}  # the unknown token is one of them
        unread = sum({*memoryview(tokens).cast("q")} <= special for *_, tokens in equal)
        is_one = len(set(part.tokens(column))) == 1
        yield ValueError(message) if is_one or 2 * unread > len(part.rows) else UserWarning(message)


def _metric_without_dropout(start: Start) -> Iterator[Finding]:
    metric = str(start.args.metric_for_best_model).removeprefix("eval_")
    data = {f"{name}_loss".lstrip("_"): part for name, part in by_name(start.trainer.eval_dataset).items()}.get(metric)
    columns = tokenised_columns(start.trainer, getattr(data, "column_names", None) or ())
    if len(columns) == 1 and any(getattr(loss, "dropout_only", False) for loss in start.texts):
        yield UserWarning(
            f"metric_for_best_model is {start.args.metric_for_best_model!r}, and without dropout the loss compares "
            "each vector with itself: it prefers the last step. Use an evaluator's metric."
        )


def _queue_of_the_whole_data(start: Start) -> Iterator[Finding]:
    batch = start.args.train_batch_size * distributed.world_size()
    rows = sum(part.size or 0 for part in start.parts)
    for loss in start.texts if start.trainer.state.num_train_epochs > 1 else ():
        queue = getattr(loss, "queue", None)
        kept = queue.size or (queue.batches or 0) * batch if isinstance(queue, NegativeQueue) else 0
        if kept and 0 < rows <= kept + batch:
            yield UserWarning(
                f"train_dataset has {rows} rows, and {type(loss).__name__}'s queue and a batch {kept + batch}: from "
                "the second epoch on, sentences are their own negatives. Use a shorter queue, or one epoch."
            )


BEFORE_THE_FIRST_STEP: tuple[Check, ...] = (
    _wrapped_adapters,
    _loss_of_another_model,
    _changed_model,
    _optimizer_without_the_loss,
    _unlike_processes,
    _contrasted_with_nothing,
    _one_text_to_the_model,
    _metric_without_dropout,
    _queue_of_the_whole_data,
)


# What the checks share.


def remedy_of_collapse(trainer: Any) -> str | None:
    """What to change where texts are the same tokens; the cause of other collapses is the learning rate."""
    return next(
        (_remedy_of_equal_tokens(part, equal) for part, _, equal in _many_equal_tokens(Start.of(trainer))), None
    )


def _many_equal_tokens(start: Start) -> Iterator[tuple[Part, str, list[tuple[str, str, bytes]]]]:
    """Columns with many different texts that are the same tokens to the model: each with one before it, and these."""
    readable = isinstance(start.trainer.data_collator, BaseDataCollator)
    for part in start.parts if readable else ():
        for column in part.columns:
            first: dict[bytes, str] = {}  # the first text with these tokens
            read = zip(part.cells(column), part.tokens(column), strict=True)
            pairs = [(first.setdefault(tokens, text), text, tokens) for text, tokens in read]
            equal = [(one, other, tokens) for one, other, tokens in pairs if one != other]
            if len(equal) > SHARE * len(part.rows):
                yield part, column, equal


def _remedy_of_equal_tokens(part: Part, equal: list[tuple[str, str, bytes]]) -> str:
    trainer, tokenizer = part.trainer, part.trainer.model.tokenizer
    limit = trainer.max_length or trainer.model.max_seq_length
    longest = max(len(tokens) for *_, tokens in equal) // 8  # bytes of an integer
    if limit is not None and longest >= limit:
        setting = "model.max_seq_length" if trainer.max_length is None else "max_length"
        return f"Raise {setting} above {limit}, or leave out what the texts begin with."
    return (
        f"Its tokenizer ({type(tokenizer).__name__}) reads words that it doesn't know as one token, or leaves "
        "capitals, accents or spaces out. Use an encoder for these texts' language, or leave such texts out."
    )


def _own_parameters(losses: list[nn.Module]) -> bool:
    """Whether one of the losses trains parameters beside the encoder's."""
    return any(trained_parameters(owned_state(loss)) for loss in losses)
