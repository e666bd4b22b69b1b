"""A recipe, and what is given in place of its settings, as a ready Trainer."""

from __future__ import annotations

import dataclasses
import inspect
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast, get_type_hints

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator
from transformers import set_seed

from st_contrastive import inputs
from st_contrastive._checks import require_choice, require_count
from st_contrastive.augmentations import AntonymReplacement, WordRepetition
from st_contrastive.components import FraternalEmbedding
from st_contrastive.evaluation import CorpusEvaluator, STSEvaluator
from st_contrastive.inputs.sentences import language_of
from st_contrastive.methods import METHODS, Method
from st_contrastive.recipes._model import load_model
from st_contrastive.recipes._recipe import Recipe, load
from st_contrastive.training import ContrastiveTrainer

Data: TypeAlias = str | Path | Sequence[str] | Dataset

#: Settings that are neither the loss's nor the Trainer's.
INPUTS = "model pooling max_length column split dev translations languages antonyms repetition card_examples".split()
#: Inputs that make a second column, and its name.
_SECOND = {"translations": "translation", "antonyms": "constructed", "repetition": "other"}
#: Documents that dev="corpus" keeps from training: a tenth, and at most so many.
_HELD_OUT = 1000
_TRAINING = {field.name for field in dataclasses.fields(SentenceTransformerTrainingArguments) if field.init}
_TRAINING.remove("output_dir")
_HINTS = get_type_hints(SentenceTransformerTrainingArguments)
_NUMBERS = {name: kind for name, kind in _HINTS.items() if kind in (int, float, bool)}


def trainer(
    recipe: str | Recipe, *, data: Data | None = None, output_dir: str | Path, **overrides: Any
) -> ContrastiveTrainer:
    """A ready Trainer with the recipe's model, loss, data and arguments, or those given in their place.

    The same seed gives the same run: it is set before the loss draws its head. With ``dev``, the Trainer evaluates and
    saves every ``eval_steps``, and loads the best weights at the end. Of two stages, this is the second, which
    ``auxiliary`` continues from the first; :func:`run` trains both.

    Args:
        recipe: a recipe or its name.
        data: the training text, as ``st_contrastive.inputs.load_sentences`` takes it.
        output_dir: folder of the checkpoints.
        overrides: arguments of the loss and of SentenceTransformerTrainingArguments; ``model``; ``pooling`` ("cls",
            "mean", "lasttoken"); ``max_length``, the tokens that training reads of a text; ``column`` and ``split``,
            as ``load_sentences`` takes them; ``dev``, a file of graded pairs, "stsb" or "corpus"; ``translations``, a
            file of pairs in place of ``data``, and their ``languages``; ``antonyms`` (True); ``repetition`` (a share);
            ``card_examples`` (True: the model card quotes training text). None takes one of these settings away,
            or a checkpoint.

    Raises:
        TypeError: there is no such setting.
        OSError, ValueError: a file or a value can't be used.

    Example:
        >>> import tempfile
        >>> sentences = ["A cat sleeps.", "It rains.", "The train is late.", "She reads a book."]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     built = trainer("mini-simcse", data=sentences, output_dir=folder, per_device_train_batch_size=2)
        >>> type(built.loss).__name__, built.args.learning_rate, built.args.train_batch_size
        ('SimCSELoss', 3e-05, 2)
    """
    return build(settings_of(recipe, overrides), data, output_dir)[0]


def settings_of(recipe: str | Recipe, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's settings with the overrides in their place, and its loss; None takes a setting away."""
    chosen = load(recipe) if isinstance(recipe, str) else recipe
    require_choice("loss", chosen.loss, tuple(METHODS))
    settings = {**chosen.settings, **overrides}
    if "num_train_epochs" in overrides and "max_steps" not in overrides:  # which would go first
        settings.pop("max_steps", None)
    for name, value in settings.items():
        if isinstance(value, str) and name in _NUMBERS:  # of a YAML file
            raise ValueError(f"{name} must be of type {_NUMBERS[name].__name__}, got {value!r}.")
        if not takes(chosen, name):
            method = METHODS[chosen.loss]
            raise TypeError(
                f"{name} is no argument of {method.loss} ({', '.join(_loss_arguments(method))}), nor of "
                f"SentenceTransformerTrainingArguments, nor one of {', '.join(INPUTS)}."
            )
    removable = {*INPUTS, *METHODS[chosen.loss].checkpoints}
    kept = {name: value for name, value in settings.items() if value is not None or name not in removable}
    return {**kept, "loss": chosen.loss}


def takes(recipe: Recipe, name: str) -> bool:
    """Whether a run of the recipe has a setting of that name."""
    return name in INPUTS or name in _TRAINING or name in _loss_arguments(METHODS[recipe.loss])


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
    if given.get("max_length") is not None:
        require_count("max_length", given["max_length"], least=3)  # a token between two special ones
    of_loss = {name: settings[name] for name in _loss_arguments(method) if name in settings}
    dataset, evaluator = _read(given, method, data)
    training = {name: settings[name] for name in _TRAINING if name in settings}
    arguments = _arguments(training, output_dir, evaluator)
    set_seed(arguments.seed)
    model = load_model(str(given["model"]), given.get("pooling"), method)
    own_length: int | None = model.max_seq_length
    model.max_seq_length = given.get("max_length", own_length)
    if evaluator is not None:
        evaluator = _Uncut(evaluator, own_length)
    prompt = model.prompts.get(model.default_prompt_name or "")
    if prompt and arguments.prompts is None:  # as encode reads a text
        arguments.prompts = prompt
    if isinstance(of_loss.get("fraternal"), (str, Path)):
        name, length = str(of_loss["fraternal"]), given.get("max_length")
        of_loss["fraternal"] = FraternalEmbedding.from_pretrained(name, model, max_length=length)
    if given.get("antonyms"):
        of_loss.setdefault("strategy", "given")
    loss = method.loss_class(model, **of_loss)
    dataset = _with_second_column(dataset, given, of_loss.get("fraternal"), method, arguments.seed)
    built = ContrastiveTrainer(
        model, arguments, dataset, loss=loss, evaluator=evaluator, card_examples=given.get("card_examples", False)
    )
    return built, own_length


def _read(given: Mapping[str, Any], method: Method, data: Data | None) -> tuple[Any, Any]:
    """The texts to train on, and the evaluator."""
    for name, column in _SECOND.items():
        if given.get(name) and column not in method.columns:
            takers = ", ".join(other.name for other in METHODS.values() if column in other.columns)
            raise ValueError(f"{name}={given[name]!r} goes with the loss {takers}, not {method.name}.")
    dev = given.get("dev")
    if "translations" in given:
        if data is not None or dev == "corpus":
            raise ValueError("translations holds the sentences too: leave data, and dev='corpus', out.")
        languages = {"languages": tuple(given["languages"])} if "languages" in given else {}
        return inputs.load_translations(given["translations"], **languages), _evaluator(dev)
    if data is None:
        raise ValueError("data is missing: name the training text.")
    split = {"split": given["split"]} if "split" in given else {}
    if dev != "corpus":
        return inputs.load_sentences(data, column=given.get("column"), **split), _evaluator(dev)
    documents = inputs.load_sentences(data, column=given.get("column")).shuffle(seed=42)
    held_out = min(_HELD_OUT, len(documents) // 10)
    own, rest = documents.select(range(held_out)), documents.select(range(held_out, len(documents)))
    language = language_of(given.get("split", "sentences")) or "en"
    evaluator = CorpusEvaluator(list(own["sentence"]), language=language)
    dataset = inputs.load_sentences(rest, column="sentence", **split)
    # For describe: what the first reading left out, and the second.
    counts = {**json.loads(dataset.info.description), **json.loads(documents.info.description), "held out": held_out}
    dataset.info.description = json.dumps(counts)
    return dataset, evaluator


def _evaluator(dev: str | Path | None) -> Any:
    return None if dev is None else STSEvaluator(dev, "dev")


def _with_second_column(dataset: Any, given: Mapping[str, Any], fraternal: Any, method: Method, seed: int) -> Any:
    """The data set with the column that is made from its sentences, or the translations as labels."""
    options: dict[str, Any] = {"seed": seed}
    columns = [dataset, *(dataset[name] for name in dataset.column_names[1:])]
    if given.get("antonyms"):
        columns.append(AntonymReplacement())
    elif given.get("repetition"):
        columns.append(WordRepetition(given["repetition"]))
    elif fraternal is not None:
        options = {"fraternal": fraternal}
    else:
        return dataset
    return method.dataset(*columns, **options)


def _arguments(
    training: dict[str, Any], output_dir: str | Path, evaluator: Any
) -> SentenceTransformerTrainingArguments:
    """The Trainer's arguments; what a run with an evaluator needs is set where nothing else is given."""
    defaults: dict[str, Any] = {"logging_steps": 10, "logging_nan_inf_filter": False}  # which logs NaN as 0
    if not torch.accelerator.is_available():
        defaults |= {"use_cpu": True, "dataloader_pin_memory": False}  # without the first, bf16 is refused
    if evaluator is None:
        training.pop("eval_steps", None)
    else:
        often, kind = training.get("eval_steps", 125), training.get("eval_strategy", "steps")
        defaults |= {"eval_strategy": kind, "eval_steps": often, "save_strategy": kind, "save_steps": often}
        defaults |= {"save_total_limit": 2, "metric_for_best_model": metric_of(evaluator), "greater_is_better": True}
        if training.get("save_strategy") != "no":
            defaults["load_best_model_at_end"] = True
    arguments = SentenceTransformerTrainingArguments(str(output_dir), **{**defaults, **training})
    if arguments.n_gpu > 1:
        warnings.warn(
            f"{arguments.n_gpu} devices are visible to one process, which trains on one of them, so that batches keep "
            "their size. To train on all: torchrun --nproc_per_node N, or accelerate launch.",
            stacklevel=2,
        )
        arguments._n_gpu = 1
    return arguments


class _Uncut(SentenceEvaluator):
    """An evaluator whose texts are read as the saved model will read them, where training cuts its own shorter."""

    def __init__(self, evaluator: Any, length: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.evaluator, self.length = evaluator, length
        self.primary_metric, self.margin = evaluator.primary_metric, getattr(evaluator, "margin", 0.0)

    def __call__(self, model: SentenceTransformer, *args: Any, **kwargs: Any) -> dict[str, float]:  # type: ignore[override]
        """The evaluator's scores."""
        in_training, model.max_seq_length = model.max_seq_length, self.length
        try:
            return cast("dict[str, float]", self.evaluator(model, *args, **kwargs))
        finally:
            model.max_seq_length = in_training


def metric_of(evaluator: Any) -> str:
    """The name that the Trainer gives to the evaluator's primary metric."""
    return f"eval_{evaluator.primary_metric}"
