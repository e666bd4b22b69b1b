"""A recipe and what is given in place of its settings, as a ready Trainer."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformerTrainingArguments
from transformers import set_seed

from st_contrastive import inputs
from st_contrastive.augmentations import AntonymReplacement, WordRepetition
from st_contrastive.components import FraternalEmbedding
from st_contrastive.evaluation import CorpusEvaluator, STSEvaluator
from st_contrastive.methods import METHODS, Method
from st_contrastive.recipes._files import Recipe, load
from st_contrastive.recipes._model import load_model
from st_contrastive.training import ContrastiveTrainer

Data: TypeAlias = str | Path | Sequence[str] | Dataset

#: Settings that are neither the loss's nor the Trainer's, with their meaning.
INPUTS = {
    "model": "encoder to start from: a folder or a hub name",
    "pooling": "cls, mean or lasttoken; default: the model's own, or the paper's where it has none",
    "max_length": "tokens that are read of each text in training; default: the model's own",
    "column": "column of the data that holds the texts",
    "split": "'lines': each row is a text; 'sentences': rows are documents, split into sentences",
    "dev": "graded pairs (.jsonl: sentence1, sentence2, score), 'corpus' or 'stsb'; the best weights are saved",
    "translations": "twins: a file of pairs, in place of data",
    "languages": "twins: the two fields of the file of pairs, the trained language first",
    "antonyms": "conisi: construct sentences by WordNet's antonyms",
    "repetition": "simcse, momentum: repeat up to this share of the words in the second view",
    "card_examples": "let the model card show sentences of the training text",
}
#: Documents that are kept from training for dev="corpus": a tenth, and at most so many.
_HELD_OUT = 1000
_TRAINING = {field.name for field in dataclasses.fields(SentenceTransformerTrainingArguments) if field.init} - {
    "output_dir"
}


def trainer(
    recipe: str | Recipe, *, data: Data | None = None, output_dir: str | Path, **overrides: Any
) -> ContrastiveTrainer:
    """A ready Trainer: the recipe's model, loss, data and arguments, or those given in their place.

    The same seed gives the same run: it is set before the loss draws its head. With ``dev``, the Trainer evaluates and
    saves every ``eval_steps``, and loads the best weights at the end. Of a recipe with two stages, this is the second,
    which ``auxiliary`` continues from the first; :func:`run` trains both.

    Args:
        recipe: a recipe or its name.
        data: the training text, as ``st_contrastive.inputs.load_sentences`` takes it.
        output_dir: folder of the checkpoints.
        overrides: arguments of the loss or of SentenceTransformerTrainingArguments, or inputs of the run (``model``,
            ``pooling``, ``max_length``, ``column``, ``split``, ``dev``, ``translations``, ``languages``, ``antonyms``,
            ``repetition``, ``card_examples``). None takes a setting of the recipe away.

    Raises:
        TypeError: there is no such setting.
        OSError, ValueError: a file or a value can't be used.

    Example:
        >>> import tempfile
        >>> sentences = ["A cat sleeps.", "It rains.", "The train is late.", "She reads a book."]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trainer = trainer("mini-simcse", data=sentences, output_dir=folder, per_device_train_batch_size=2)
        >>> type(trainer.loss).__name__, trainer.args.learning_rate, trainer.args.train_batch_size
        ('SimCSELoss', 3e-05, 2)
    """
    return build(settings_of(recipe, overrides), data, output_dir)[0]


def settings_of(recipe: str | Recipe, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's settings with the overrides in their place, and its loss as "loss"; None takes a setting away."""
    chosen = load(recipe) if isinstance(recipe, str) else recipe
    loss = overrides.get("loss", chosen.loss)
    if loss not in METHODS or loss != chosen.loss:
        raise ValueError(f"loss must be one of {', '.join(METHODS)}, and that of the recipe; got {loss!r}.")
    if "num_train_epochs" in overrides and "max_steps" not in overrides:  # which would go first
        overrides = {**overrides, "max_steps": -1}
    settings = {**chosen.settings, **overrides, "loss": loss}
    unknown = [name for name in settings if name != "loss" and not takes(chosen, name)]
    if unknown:
        raise TypeError(
            f"{METHODS[loss].loss} has no argument {unknown[0]}, and SentenceTransformerTrainingArguments neither. The "
            f"loss takes {', '.join(_loss_arguments(METHODS[loss]))}; other inputs are {', '.join(INPUTS)}."
        )
    removable = {*INPUTS, *METHODS[loss].checkpoints}
    return {name: value for name, value in settings.items() if value is not None or name not in removable}


def takes(recipe: Recipe, name: str) -> bool:
    """Whether a run of the recipe has a setting of that name."""
    return name in INPUTS or name in _loss_arguments(METHODS[recipe.loss]) or name in _TRAINING


def _loss_arguments(method: Method) -> list[str]:
    return [name for name in inspect.signature(method.loss_class).parameters if name != "model"]


def build(
    settings: Mapping[str, Any], data: Data | None, output_dir: str | Path
) -> tuple[ContrastiveTrainer, int | None]:
    """The Trainer of what :func:`settings_of` gives, and the number of tokens that its model reads by itself."""
    method = METHODS[settings["loss"]]
    given = {name: settings[name] for name in INPUTS if name in settings}
    if "model" not in given:
        raise ValueError("model is missing: name the encoder to start from, a folder or a hub name.")
    of_loss = {name: settings[name] for name in _loss_arguments(method) if name in settings}
    dataset, evaluator = _read(given, of_loss, method, data)
    arguments = _arguments({name: settings[name] for name in _TRAINING if name in settings}, output_dir, evaluator)
    set_seed(arguments.seed)
    model = load_model(
        str(given["model"]),
        given.get("pooling"),
        default=method.pooling,
        with_examples=given.get("card_examples", False),
    )
    own_length: int | None = model.max_seq_length
    if "max_length" in given:
        model.max_seq_length = given["max_length"]
    prompt = model.prompts.get(model.default_prompt_name or "")
    if prompt and arguments.prompts is None:  # as encode reads a text
        arguments.prompts = prompt
    if isinstance(of_loss.get("fraternal"), (str, Path)):
        of_loss["fraternal"] = FraternalEmbedding.from_pretrained(
            str(of_loss["fraternal"]), model, max_length=given.get("max_length")
        )
    if given.get("antonyms"):
        of_loss.setdefault("strategy", "given")
    loss = method.loss_class(model, **of_loss)
    if not loss.has_negatives(arguments.per_device_train_batch_size):
        raise ValueError(
            f"per_device_train_batch_size={arguments.per_device_train_batch_size} leaves no other sentence to contrast "
            "with: give 2 or more."
        )
    trainer = ContrastiveTrainer(
        model=model,
        args=arguments,
        train_dataset=_with_second_column(dataset, given, of_loss, method, arguments.seed),
        loss=loss,
        evaluator=evaluator,
    )
    return trainer, own_length


def _read(given: Mapping[str, Any], of_loss: Mapping[str, Any], method: Method, data: Data | None) -> tuple[Any, Any]:
    """The texts to train on, and the evaluator."""
    columns = {"translations": "translation", "antonyms": "constructed", "repetition": "other"}
    for name, column in columns.items():
        if given.get(name) and column not in method.columns:
            takers = [other.name for other in METHODS.values() if column in other.columns]
            raise ValueError(f"{name} goes with the losses {', '.join(takers)}, not {method.name}.")
    if "fraternal" in of_loss and "translations" not in given:
        raise ValueError(
            f"fraternal={of_loss['fraternal']!r} reads translations: give translations=FILE (st-contrastive translate "
            "makes them), or take fraternal away."
        )
    dev = given.get("dev")
    if "translations" in given:
        if data is not None or dev == "corpus":
            raise ValueError("translations holds the sentences too: leave data, and dev='corpus', out.")
        languages = {"languages": tuple(given["languages"])} if "languages" in given else {}
        return inputs.load_translations(given["translations"], **languages), _evaluator(dev)
    if data is None:
        raise ValueError("data is missing: name the training text.")
    reading = {"split": given["split"]} if "split" in given else {}
    if dev != "corpus":
        return inputs.load_sentences(data, column=given.get("column"), **reading), _evaluator(dev)
    documents = inputs.load_sentences(data, column=given.get("column"))
    held_out = min(_HELD_OUT, len(documents) // 10)
    shuffled = documents.shuffle(seed=42)
    texts = shuffled.select(range(held_out))["sentence"]
    rest = shuffled.select(range(held_out, len(documents)))
    return inputs.load_sentences(rest, column="sentence", **reading), CorpusEvaluator(list(texts))


def _evaluator(dev: str | Path | None) -> Any:
    if dev is None:
        return None
    return STSEvaluator(dev, "dev")


def _with_second_column(
    dataset: Dataset, given: Mapping[str, Any], of_loss: Mapping[str, Any], method: Method, seed: int
) -> Dataset:
    """The data set with the column that is made from its sentences, or the translations as labels."""
    if given.get("antonyms"):
        return method.dataset(dataset["sentence"], AntonymReplacement(), seed=seed)
    if given.get("repetition"):
        return method.dataset(dataset["sentence"], WordRepetition(given["repetition"]), seed=seed)
    if "fraternal" in of_loss:
        return method.dataset(dataset["sentence"], dataset["translation"], fraternal=of_loss["fraternal"])
    return dataset


def _arguments(
    training: dict[str, Any], output_dir: str | Path, evaluator: Any
) -> SentenceTransformerTrainingArguments:
    """The Trainer's arguments: what a run with an evaluator needs is set where nothing else is given."""
    defaults: dict[str, Any] = {"logging_steps": 10, "logging_nan_inf_filter": False}  # which logs NaN as 0
    if not torch.accelerator.is_available():
        defaults |= {"use_cpu": True, "dataloader_pin_memory": False}  # without the first, bf16 is refused
    if evaluator is None:
        training.pop("eval_steps", None)
    else:
        defaults |= {"eval_strategy": "steps", "save_total_limit": 2, "eval_steps": 125}
        defaults["save_strategy"] = training.get("eval_strategy", "steps")
        defaults["save_steps"] = training.get("eval_steps", 125)
        if training.get("save_strategy") != "no":
            defaults |= {"load_best_model_at_end": True, "metric_for_best_model": f"eval_{metric_of(evaluator)}"}
    arguments = SentenceTransformerTrainingArguments(str(output_dir), **{**defaults, **training})
    if arguments.n_gpu > 1:
        warnings.warn(
            f"{arguments.n_gpu} devices are visible to one process, which trains on one, so that the batch keeps its "
            "size. To train on all: torchrun --nproc_per_node N, or accelerate launch.",
            stacklevel=2,
        )
        arguments._n_gpu = 1
    return arguments


def metric_of(evaluator: Any) -> str:
    """The name of the evaluator's primary metric in what it returns."""
    prefix = f"{evaluator.name}_" if getattr(evaluator, "name", "") else ""
    metric = str(evaluator.primary_metric)
    return metric if metric.startswith(prefix) else prefix + metric
