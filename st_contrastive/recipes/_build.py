"""A recipe, and what is given in place of its settings, as a ready Trainer."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainingArguments as TrainingArguments
from transformers import set_seed

from st_contrastive import inputs
from st_contrastive._checks import require_choice, require_count, require_number, warn
from st_contrastive.augmentations import augmentation
from st_contrastive.components import FraternalEmbedding
from st_contrastive.evaluation import CorpusEvaluator, STSEvaluator
from st_contrastive.inputs.readers import Reading, get_language, get_reading, set_reading
from st_contrastive.methods import METHODS, Method, find_method
from st_contrastive.recipes._model import load_model
from st_contrastive.recipes._recipe import Recipe, load
from st_contrastive.training import ContrastiveTrainer

Data: TypeAlias = str | Path | Sequence[str] | Dataset

#: Settings that are neither the loss's nor the Trainer's.
INPUTS = (
    "model pooling max_length data column pairs segment repeats translations languages augment dev mix margin "
    "card_examples"
).split()
_TRAINING = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
_NUMBERS = {name: kind for name, kind in get_type_hints(TrainingArguments).items() if kind in (int, float, bool)}


def trainer(
    recipe: str | Recipe, *, data: Data | None = None, output_dir: str | Path, **overrides: Any
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


def resolve_settings(recipe: str | Recipe, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's settings with the overrides in their place, and its loss; None removes a setting."""
    chosen = load(recipe) if isinstance(recipe, str) else recipe
    method = find_method(chosen.loss)
    settings = {**chosen.settings, **overrides}
    for name, other in (("max_steps", "num_train_epochs"), ("num_train_epochs", "max_steps")):
        if name in overrides and other not in overrides:  # the recipe's, which might end the run first
            settings.pop(other, None)
    for name, value in settings.items():
        if isinstance(value, str) and not value.strip() and name != "prompts":  # as a path, the current folder
            raise ValueError(f"{name} is empty: give a value, or leave it out.")
        if (value is None or isinstance(value, str)) and name in _NUMBERS:  # of a YAML file
            raise ValueError(f"{name} must be of type {_NUMBERS[name].__name__}, got {value!r}.")
        if not takes(chosen, name):
            raise TypeError(
                f"{name} is no argument of {method.loss} ({', '.join(loss_arguments(method))}), nor of "
                f"SentenceTransformerTrainingArguments, nor one of {', '.join(INPUTS)}."
            )
    steps, epochs = settings.get("max_steps", -1), settings.get("num_train_epochs", 1)
    if steps == 0 or (steps < 0 and epochs <= 0):  # the Trainer would make no step, or take 0 steps for all
        raise ValueError(f"max_steps {steps} and num_train_epochs {epochs} leave nothing to train: give one above 0.")
    removable = {*INPUTS, *method.checkpoints}
    kept = {name: value for name, value in settings.items() if value is not None or name not in removable}
    return {"loss": chosen.loss, **kept}


def takes(recipe: Recipe, name: str) -> bool:
    """Whether a run of the recipe has a setting of that name."""
    return name in INPUTS or name in _TRAINING or name in loss_arguments(find_method(recipe.loss))


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_GIVEN = ("self", "model")


def loss_arguments(method: Method) -> list[str]:
    """The arguments of the method's loss, beside the model; where it takes ``**options``, those of its base too."""
    names: dict[str, None] = {}
    for constructor in (vars(each)["__init__"] for each in method.loss_class.__mro__ if "__init__" in vars(each)):
        parameters = inspect.signature(constructor).parameters
        kinds = {name: parameter.kind for name, parameter in parameters.items()}
        names |= dict.fromkeys(name for name, kind in kinds.items() if kind not in _REST and name not in _GIVEN)
        if inspect.Parameter.VAR_KEYWORD not in kinds.values():
            break
    return [*names]


def build(settings: Mapping[str, Any]) -> ContrastiveTrainer:
    """The Trainer of what :func:`resolve_settings` gives."""
    method = find_method(settings["loss"])
    given = {name: settings[name] for name in INPUTS if name in settings}
    if "model" not in given:
        raise ValueError("model is missing: name the encoder to start from, a folder or a hub name.")
    if "max_length" in given:
        require_count("max_length", given["max_length"], least=3)  # a token between two special ones
    if "mix" in given:
        require_number("mix", given["mix"], above=0, most=1)
    if "margin" in given:
        require_number("margin", given["margin"])
    augment = augmentation(given["augment"]) if "augment" in given else None
    arguments = _arguments({name: settings[name] for name in _TRAINING if name in settings}, given.get("dev"))
    with arguments.main_process_first(desc="reading"):  # a node's other processes find the tables that it has cached
        dataset, evaluator = _read(given, method)
    if arguments.max_steps > 0 and "num_train_epochs" in settings:
        rows = arguments.train_batch_size * arguments.world_size * arguments.gradient_accumulation_steps
        most = math.ceil(arguments.num_train_epochs * math.ceil(len(dataset) / rows))
        arguments.max_steps = min(arguments.max_steps, most)
    set_seed(arguments.seed)
    model = load_model(str(given["model"]), given.get("pooling"), method)
    length, longest = given.get("max_length"), model.max_seq_length
    if length and longest and length > longest:
        warn(f"max_length is {length}, and {given['model']} reads {longest} tokens at most: training reads as many.")
        length = longest
    prompt = model.prompts.get(model.default_prompt_name or "")
    if prompt and arguments.prompts is None:  # as encode reads a text
        arguments.prompts = prompt
    of_loss = {name: settings[name] for name in loss_arguments(method) if name in settings}
    fraternal = of_loss.get("fraternal")
    if isinstance(fraternal, (str, Path)):
        of_loss["fraternal"] = fraternal = FraternalEmbedding.from_pretrained(str(fraternal), model, max_length=length)
    if augment is not None and "constructed" in method.columns:
        of_loss.setdefault("strategy", "given")
    loss = method.loss_class(model, **of_loss)
    if augment is not None:
        dataset = method.dataset(dataset, augment, seed=arguments.seed)
    elif fraternal is not None:
        dataset = method.dataset(dataset, fraternal=fraternal)
    if isinstance(arguments.prompts, dict):
        own = {"sentence" if name == given.get("column") else name: text for name, text in arguments.prompts.items()}
        again = {dataset.column_names[-1]: own.get("sentence", "")} if augment is not None else {}
        arguments.prompts = {**again, **own}
    return ContrastiveTrainer(
        model, arguments, dataset, loss=loss, evaluator=evaluator, max_length=length,
        card_examples=given.get("card_examples", False),
    )  # fmt: skip


def read_texts(
    source: Data, column: str | Sequence[str] | None = None, *, segment: str = "lines", pairs: str | None = None,
    repeats: bool = False,
) -> Dataset:  # fmt: skip
    """Texts in the column ``sentence``, or pairs in ``sentence`` and ``other``, as the settings of these names ask."""
    require_choice("pairs", pairs, (None, "columns", "first"))
    if pairs is None and (column is None or isinstance(column, str)):
        try:
            return inputs.load_sentences(source, column=column, segment=segment, repeats=repeats)
        except ValueError:
            if "," not in (column or ""):  # which is in a column's name, or stands between two
                raise
    language = get_language(segment)
    if pairs == "first":
        return inputs.load_pairs(source, columns=column or (), pairs=pairs, language=language or "en")
    if language is not None:
        raise ValueError(f"segment={segment!r} cuts one column: two are read as they are. Leave it out.")
    return inputs.load_pairs(source, columns=column or ("title", "body"))


def _read(given: Mapping[str, Any], method: Method) -> tuple[Any, Any]:
    """The texts to train on, and the evaluator."""
    dev = given.get("dev")
    evaluator = None if dev is None or dev == "corpus" else STSEvaluator(dev, "dev")
    if "augment" in given:
        _require_column("constructed" if "antonyms" in given["augment"] else "other", "augment", given, method)
    if "translations" in given:
        _require_column("translation", "translations", given, method)
        if "data" in given or dev == "corpus":
            raise ValueError("translations holds the sentences too: leave data, and dev='corpus', out.")
        languages = {"languages": tuple(given["languages"])} if "languages" in given else {}
        return inputs.load_translations(given["translations"], **languages), evaluator
    if "data" not in given:
        raise ValueError("data is missing: name the training text.")
    options = {name: given[name] for name in ("column", "pairs", "segment", "repeats") if name in given}
    if dev == "corpus" and "pairs" not in given:
        options.pop("segment", None)  # whole documents are held out
    dataset = read_texts(given["data"], **options)
    if "other" in dataset.column_names:
        _require_column("other", "pairs" if "pairs" in given else "column", given, method)
        if "augment" in given:
            raise ValueError(f"augment={given['augment']!r} makes a second column, and pairs have one: leave it out.")
    return _held_out(dataset, given) if dev == "corpus" else (dataset, evaluator)


def _require_column(column: str, setting: str, given: Mapping[str, Any], method: Method) -> None:
    """Require a method that takes the column which the setting makes."""
    if column not in method.columns:
        takers = ", ".join(other.name for other in METHODS.values() if column in other.columns)
        remedy = "Name one column, or take another loss." if setting == "column" else "Leave it out."
        raise ValueError(f"{setting}={given[setting]!r} goes with the loss {takers}, not {method.name}. {remedy}")


def _held_out(documents: Dataset, given: Mapping[str, Any]) -> tuple[Dataset, CorpusEvaluator]:
    """The documents to train on, and an evaluator on others: a tenth, and more of few documents."""
    read = get_reading(documents) or Reading(len(documents), {})
    documents = documents.shuffle(seed=42)
    count = min(1000, max(len(documents) // 10, min(200, len(documents) // 3)))
    own, body = documents.select(range(count)), documents.column_names[-1]
    texts = ["\n\n".join(row.values()) for row in own]
    evaluator = CorpusEvaluator(texts, language=get_language(given.get("segment", "sentences")) or "en")
    bodies = set(own[body])  # another row may repeat one
    rest = documents.select(range(count, len(documents))).filter(
        lambda rows: [row not in bodies for row in rows], input_columns=body, batched=True, load_from_cache_file=False
    )
    # For describe: what the first reading left out, and the second.
    left_out = {**read.left_out, "held out": len(documents) - len(rest)}
    if "segment" in given and body == "sentence":
        rest = inputs.load_sentences(rest, column=body, segment=given["segment"], repeats=given.get("repeats", False))
        again = get_reading(rest)
        left_out = {**(again.left_out if again else {}), **left_out}
    set_reading(rest, dataclasses.replace(read, left_out=left_out))
    return rest, evaluator


def _arguments(training: dict[str, Any], dev: str | Path | None) -> Any:
    """The Trainer's arguments; what a run with a dev needs is set where nothing else is given."""
    defaults: dict[str, Any] = {"logging_steps": 10, "logging_nan_inf_filter": False}  # which logs NaN as 0
    if not torch.accelerator.is_available():
        defaults |= {"use_cpu": True, "dataloader_pin_memory": False}  # without the first, bf16 is refused
    if dev is None:
        training.pop("eval_steps", None)
    else:
        often, kind = training.get("eval_steps", 125), training.get("eval_strategy", "steps")
        metric = "eval_corpus_ndcg@10" if dev == "corpus" else "eval_dev_spearman"
        defaults |= {"eval_strategy": kind, "eval_steps": often, "save_strategy": kind, "save_steps": often}
        defaults |= {"save_total_limit": 2, "metric_for_best_model": metric, "greater_is_better": True}
        defaults["load_best_model_at_end"] = training.get("save_strategy") != "no"
    training["output_dir"] = os.path.expanduser(training["output_dir"])
    arguments: Any = TrainingArguments(**{**defaults, **training})
    if arguments.n_gpu > 1:
        warn(
            f"{arguments.n_gpu} devices are visible to one process, which trains on one of them, so that batches keep "
            "their size. To train on all: torchrun --nproc_per_node N, or accelerate launch."
        )
        arguments._n_gpu = 1
    return arguments
