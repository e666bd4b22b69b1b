"""Builds the Trainer of a recipe, with other settings in place of the recipe's where they are given."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from sentence_transformers import SentenceTransformerTrainingArguments as TrainingArguments
from transformers import set_seed

from st_contrastive._arguments import check_arguments
from st_contrastive._checks import warn
from st_contrastive.augmentations import AntonymReplacement
from st_contrastive.components import FraternalEmbedding
from st_contrastive.inputs.tables import Source
from st_contrastive.methods import find_method
from st_contrastive.recipes._data import read_data
from st_contrastive.recipes._model import load_model
from st_contrastive.recipes._recipe import Recipe
from st_contrastive.recipes._settings import RUN, TRAINING, loss_arguments, resolve_settings
from st_contrastive.settings import RunSettings
from st_contrastive.training import ContrastiveTrainer


def trainer(
    recipe: str | Recipe, *, data: Source | None = None, output_dir: str | Path, **overrides: Any
) -> ContrastiveTrainer:
    """A ready Trainer with the recipe's model, loss, data and arguments, or those given in their place.

    The same seed gives the same run: it is set before the loss draws its head. With ``dev``, the Trainer evaluates and
    saves every ``eval_steps``, and loads the best weights at the end. With ``max_steps`` and ``num_train_epochs``, the
    first to be reached ends the run. Of two stages, this is the second; :func:`run` trains both, and mixes.

    ``data`` is what ``st_contrastive.inputs.load_sentences`` takes. ``overrides`` are arguments of the loss and of
    SentenceTransformerTrainingArguments, and the other options of ``st-contrastive train --help`` by their names, such
    as ``column=("title", "body")``. None removes one of these, or a checkpoint. An unknown one is a TypeError.
    """
    return build(resolve_settings(recipe, {**overrides, "data": data, "output_dir": output_dir}))


def build(settings: Mapping[str, Any]) -> ContrastiveTrainer:
    """The Trainer of what :func:`resolve_settings` gives."""
    method = find_method(settings["loss"])
    run = RunSettings(**{name: settings[name] for name in RUN if name in settings})
    texts = run.data if run.translations is None else run.translations
    encoder = "the encoder to start from, a folder or a hub name"
    for name, given, what in (("model", run.model, encoder), ("data", texts, "the training text")):
        if given is None:
            raise ValueError(f"{name} is missing: name {what}.")
    check_arguments(RunSettings, {"mix": run.mix, "antonyms": run.antonyms})
    replacement = None if run.antonyms is None else AntonymReplacement(run.antonyms)

    arguments = _arguments({name: settings[name] for name in TRAINING if name in settings}, run.dev)
    with arguments.main_process_first(desc="reading"):  # a node's other processes find the tables that it has cached
        dataset, evaluator = read_data(run, method)
    if arguments.max_steps > 0 and "num_train_epochs" in settings:
        arguments.max_steps = _capped_steps(arguments, dataset)

    set_seed(arguments.seed)
    model = load_model(os.fspath(settings["model"]), run.pooling, method)

    of_loss = {name: settings[name] for name in loss_arguments(method) if name in settings}
    fraternal = of_loss.get("fraternal")
    if isinstance(fraternal, (str, Path)):
        length = run.max_length and min(run.max_length, model.max_seq_length or run.max_length)
        of_loss["fraternal"] = fraternal = FraternalEmbedding.from_pretrained(str(fraternal), model, max_length=length)
    if replacement is not None and of_loss.setdefault("strategy", "given") != "given":
        raise ValueError(
            f"antonyms makes a second sentence, and strategy={of_loss['strategy']!r} reads none: leave one out."
        )
    loss = method.loss_class(model, **of_loss)

    if replacement is not None:
        dataset = method.dataset(dataset, replacement, seed=arguments.seed)
    elif fraternal is not None:
        dataset = method.dataset(dataset, fraternal=fraternal)
    arguments.prompts = _prompts(arguments.prompts, run, dataset.column_names)
    return ContrastiveTrainer(model, arguments, dataset, loss=loss, evaluator=evaluator, max_length=run.max_length)


def _capped_steps(arguments: Any, dataset: Dataset | IterableDataset) -> int:
    """The smaller of ``max_steps`` and the steps of ``num_train_epochs``, counted as the Trainer counts them.

    Of a stream, only as many rows are counted as ``max_steps`` needs.
    """
    batch = arguments.train_batch_size * arguments.world_size
    if isinstance(dataset, Dataset):
        rows = len(dataset)
    else:
        enough = batch * arguments.gradient_accumulation_steps * (arguments.max_steps + 1)
        rows = sum(1 for _ in islice(dataset, math.ceil(enough / arguments.num_train_epochs)))
    batches = rows // batch if arguments.dataloader_drop_last else math.ceil(rows / batch)
    steps = max(1, math.ceil(batches / arguments.gradient_accumulation_steps))
    return min(arguments.max_steps, math.ceil(arguments.num_train_epochs * steps))


def _arguments(given: dict[str, Any], dev: str | Path | None) -> Any:
    """The Trainer's arguments; what a run with a dev needs is set where nothing else is given."""
    defaults: dict[str, Any] = {"logging_steps": 10, "logging_nan_inf_filter": False}  # which logs NaN as 0
    if not torch.accelerator.is_available():
        defaults |= {"use_cpu": True, "dataloader_pin_memory": False}  # without the first, bf16 is refused
    if dev is None:
        given.pop("eval_steps", None)
    else:
        often, kind = given.get("eval_steps", 125), given.get("eval_strategy", "steps")
        metric = "eval_corpus_ndcg@10" if dev == "corpus" else "eval_dev_spearman"
        defaults |= {"eval_strategy": kind, "eval_steps": often, "save_strategy": kind, "save_steps": often}
        defaults |= {"save_total_limit": 2, "metric_for_best_model": metric, "greater_is_better": True}
        defaults["load_best_model_at_end"] = given.get("save_strategy") != "no"
    given["output_dir"] = os.path.expanduser(given["output_dir"])
    arguments: Any = TrainingArguments(**{**defaults, **given})
    if arguments.n_gpu > 1:
        warn(
            f"{arguments.n_gpu} devices are visible to one process, which trains on one of them, so that batches keep "
            "their size. To train on all: torchrun --nproc_per_node N, or accelerate launch."
        )
        arguments._n_gpu = 1
    return arguments


def _prompts(given: Any, run: RunSettings, columns: list[str]) -> Any:
    """Prompts by the names of the user's columns, as prompts by those of the data set."""
    if not isinstance(given, dict):
        return given
    own = run.column.split(",") if isinstance(run.column, str) else [*(run.column or ())]
    names = dict(zip((name.strip() for name in own), columns, strict=False))
    prompts = {names.get(name, name): text for name, text in given.items()}
    if run.antonyms is not None:  # the second text is made of the first
        prompts.setdefault(columns[-1], prompts.get(columns[0], ""))
    return prompts
