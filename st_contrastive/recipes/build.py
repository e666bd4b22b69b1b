"""Builds the Trainer of a run."""

from __future__ import annotations

import math
import os
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from sentence_transformers import SentenceTransformerTrainingArguments as TrainingArguments
from transformers import set_seed

from st_contrastive._checks import warn
from st_contrastive.augmentations import AntonymReplacement
from st_contrastive.components import FraternalEmbedding
from st_contrastive.inputs.tables import Source
from st_contrastive.recipes.data import read_data
from st_contrastive.recipes.plan import RunPlan
from st_contrastive.recipes.recipe import Recipe
from st_contrastive.recipes.starting_model import load_model
from st_contrastive.training import ContrastiveTrainer


def trainer(
    recipe: str | Recipe, *, data: Source | None = None, output_dir: str | Path, **overrides: Any
) -> ContrastiveTrainer:
    """A Trainer with a recipe's model, loss, data and arguments. ``overrides`` replace its settings.

    The same seed gives the same run, because the seed is set before the loss initializes its head. With ``dev``, the
    Trainer evaluates and saves every ``eval_steps``, and loads the best weights at the end. With both ``max_steps`` and
    ``num_train_epochs``, the run ends at the first limit that it reaches. For a recipe with two stages, this returns
    the Trainer of the second stage; :func:`run` trains both.

    Args:
        data: as for ``st_contrastive.inputs.load_sentences``.
        overrides: arguments of the loss and of SentenceTransformerTrainingArguments, and the other options of
            ``st-contrastive train --help``, such as ``column=("title", "body")``. None removes an option, or a
            checkpoint that the loss would use.

    Raises:
        TypeError: a setting is unknown.
    """
    return build_trainer(RunPlan.from_recipe(recipe, {**overrides, "data": data, "output_dir": output_dir}))


def build_trainer(plan: RunPlan, *, prepared: Dataset | None = None) -> ContrastiveTrainer:
    """The Trainer of a plan. If the plan has two stages, the Trainer of the second.

    ``prepared`` is the training data of another Trainer with the same data settings, so that it is not read again.
    """
    run, method = plan.run, plan.method
    texts = run.data if run.translations is None else run.translations
    if run.model is None:
        raise ValueError("model is missing: name the encoder to start from, a folder or a hub name.")
    if texts is None:
        raise ValueError("data is missing: name the training text.")
    if not isinstance(run.model, (str, os.PathLike)):
        raise ValueError(
            f"model must be a folder or a name on the hub, got {type(run.model).__name__}. To train a loaded model, "
            "use ContrastiveTrainer."
        )
    replacement = None if run.antonyms is None else AntonymReplacement(run.antonyms)

    arguments = _training_arguments(plan)
    if prepared is None:
        with arguments.main_process_first(desc="reading"):  # the other processes of a node find the cached tables
            dataset, evaluator = read_data(run, method)
    else:
        dataset, evaluator = prepared, None
    if arguments.max_steps > 0 and "num_train_epochs" in plan.training:
        arguments.max_steps = _limit_steps(arguments, dataset)

    set_seed(arguments.seed)
    model = load_model(os.fspath(run.model), run.pooling, method)
    if model.max_seq_length is None:
        model.max_seq_length = run.max_length

    loss_options = dict(plan.loss)
    fraternal = loss_options.get("fraternal")
    if isinstance(fraternal, (str, Path)):
        length = run.max_length and min(run.max_length, model.max_seq_length or run.max_length)
        loss_options["fraternal"] = fraternal = FraternalEmbedding.from_pretrained(
            str(fraternal), model, max_length=length
        )
    if replacement is not None and loss_options.setdefault("strategy", "given") != "given":
        raise ValueError(
            f"antonyms creates a second sentence, and strategy={loss_options['strategy']!r} ignores it: remove one of "
            "them."
        )
    loss = method.loss_class(model, **loss_options)

    if prepared is None and replacement is not None:
        dataset = method.dataset(dataset, replacement, seed=arguments.seed)
    elif prepared is None and fraternal is not None:
        dataset = method.dataset(dataset, fraternal=fraternal)
    arguments.prompts = rename_prompts(arguments.prompts, plan, dataset.column_names)
    return ContrastiveTrainer(model, arguments, dataset, loss=loss, evaluator=evaluator, max_length=run.max_length)


def _limit_steps(arguments: TrainingArguments, dataset: Dataset | IterableDataset) -> int:
    """The smaller of ``max_steps`` and the steps of ``num_train_epochs``, counted as the Trainer counts them.

    In a stream, only the rows that ``max_steps`` needs are counted.
    """
    batch = arguments.train_batch_size * arguments.world_size
    if isinstance(dataset, Dataset):
        rows = len(dataset)
    else:
        enough = batch * arguments.gradient_accumulation_steps * (arguments.max_steps + 1)
        rows = sum(1 for _ in islice(dataset, math.ceil(enough / arguments.num_train_epochs)))
    batches = rows // batch if arguments.dataloader_drop_last else math.ceil(rows / batch)
    steps = max(1, math.ceil(batches / arguments.gradient_accumulation_steps))
    of_epochs: int = math.ceil(arguments.num_train_epochs * steps)
    return min(int(arguments.max_steps), of_epochs)


def _training_arguments(plan: RunPlan) -> Any:
    """The Trainer's arguments: the plan's, and defaults for runs that are evaluated or published."""
    settings = dict(plan.training)
    # The runs of a soup are averaged at their last step, so none of their steps is scored.
    dev = plan.run.dev if (plan.run.soup or 1) == 1 else None
    defaults: dict[str, Any] = {"logging_steps": 10, "logging_nan_inf_filter": False}  # the filter logs NaN as 0
    defaults["hub_strategy"] = "end"  # publish only the weights chosen at the end
    if not torch.accelerator.is_available():
        defaults |= {"use_cpu": True, "dataloader_pin_memory": False}  # without use_cpu, bf16 is refused
    if dev is None and settings.get("eval_steps") not in (None, plan.recipe.settings.get("eval_steps")):
        reason = "without dev" if plan.run.dev is None else "in a soup, whose runs are averaged at their last step"
        warn(f"eval_steps={settings['eval_steps']} has no effect {reason}.")
    if dev is None or settings.get("eval_steps", 0) is None:
        settings.pop("eval_steps", None)
    if dev is not None:
        saving = settings.get("save_strategy", "steps")
        steps = settings.get("eval_steps", 125)
        kind = settings.get("eval_strategy", saving if saving == "epoch" else "steps")
        metric = "eval_corpus_ndcg@10" if dev == "corpus" else "eval_dev_spearman"
        defaults |= {"eval_strategy": kind, "eval_steps": steps, "save_strategy": kind, "save_steps": steps}
        defaults |= {"save_total_limit": 2, "metric_for_best_model": metric, "greater_is_better": True}
        defaults["load_best_model_at_end"] = settings.get("save_strategy") != "no"
    arguments: Any = TrainingArguments(**{**defaults, **settings, "output_dir": str(plan.folder)})
    if arguments.n_gpu > 1:
        warn(
            f"{arguments.n_gpu} devices are visible to one process, which trains on one of them to keep the batch "
            "size. To train on all of them, use torchrun --nproc_per_node N or accelerate launch."
        )
        arguments._n_gpu = 1
    return arguments


def rename_prompts(prompts: Any, plan: RunPlan, columns: list[str]) -> Any:
    """Prompts keyed by the dataset's column names instead of the user's."""
    if not isinstance(prompts, dict):
        return prompts
    names = dict(zip(plan.columns, columns, strict=False))
    renamed = {names.get(name, name): text for name, text in prompts.items()}
    if plan.run.antonyms is not None:  # the second text is derived from the first
        renamed.setdefault(columns[-1], renamed.get(columns[0], ""))
    return renamed
