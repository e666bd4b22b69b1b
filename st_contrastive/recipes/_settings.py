"""A recipe's settings, and the overrides in their place."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Mapping, Sequence
from numbers import Real
from types import NoneType
from typing import Any, get_args, get_type_hints

from sentence_transformers import SentenceTransformerTrainingArguments as TrainingArguments

from st_contrastive.methods import METHODS, Method, find_method
from st_contrastive.recipes._recipe import Recipe, load
from st_contrastive.settings import Location, RunSettings

#: Types of the Trainer's arguments, and of the settings of a run beside those that choose its recipe; by name.
TRAINING = {field.name: get_type_hints(TrainingArguments)[field.name] for field in dataclasses.fields(TrainingArguments)
            if field.init}  # fmt: skip
RUN = {name: kind for name, kind in get_type_hints(RunSettings).items() if name not in ("recipe", "loss", "stage1")}

#: What a setting, given alone, takes the place of in a recipe: its epochs or steps might end the run first, and its
#: strategy would not read the antonyms.
REPLACED = {"max_steps": "num_train_epochs", "num_train_epochs": "max_steps", "antonyms": "strategy"}
#: The first of two stages.
PRETRAINING = Recipe("", "pretraining", {})
#: Settings of the second stage that the first has no use for.
_LATER = set("dev mix eval_strategy eval_steps load_best_model_at_end metric_for_best_model push_to_hub".split())


def resolve_settings(recipe: str | Recipe, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's settings with the overrides in their place, and its loss; None removes a setting."""
    chosen = load(recipe) if isinstance(recipe, str) else recipe
    method = find_method(chosen.loss)
    settings = {**chosen.settings, **overrides}
    for name, other in REPLACED.items():
        if name in overrides and other not in overrides:
            settings.pop(other, None)
    of_loss, of_run = loss_arguments(method), {**TRAINING, **RUN}
    for name, value in settings.items():
        if name in of_loss and name in of_run:
            raise TypeError(f"{name} is an argument of {method.loss} and a setting of the run: rename the loss's.")
        if name not in of_loss and name not in of_run:
            raise TypeError(
                f"{name} is no setting{_hint(name, [*of_run, *of_loss])}. There are the arguments of {method.loss} "
                f"({', '.join(of_loss)}), those of SentenceTransformerTrainingArguments, and {', '.join(RUN)}."
            )
        settings[name] = _typed(name, value, of_run.get(name, Any))
    steps, epochs = settings.get("max_steps", -1), settings.get("num_train_epochs", 1)
    if steps == 0 or (steps < 0 and epochs <= 0):  # the Trainer would make no step, or take 0 steps for all
        raise ValueError(f"max_steps {steps} and num_train_epochs {epochs} leave nothing to train: give one above 0.")
    removable = {*RUN, *method.checkpoints}
    kept = {name: value for name, value in settings.items() if value is not None or name not in removable}
    return {"loss": chosen.loss, **kept}


def first_stage(settings: Mapping[str, Any], stage1: Mapping[str, Any]) -> dict[str, Any]:
    """What a first stage is trained with: its own settings, and those of the run that it takes."""
    shared = {name: value for name, value in settings.items() if name not in _LATER and takes(PRETRAINING, name)}
    return {**shared, **stage1}


def default_settings(method: Method) -> dict[str, Any]:
    """The defaults of all settings that have one."""
    fields = (*dataclasses.fields(TrainingArguments), *dataclasses.fields(RunSettings))
    return {**{field.name: field.default for field in fields}, **loss_arguments(method)}


def takes(recipe: Recipe, name: str) -> bool:
    """Whether a run of the recipe has a setting of that name."""
    return name in RUN or name in TRAINING or name in loss_arguments(find_method(recipe.loss))


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_GIVEN = ("self", "model")


def loss_arguments(method: Method) -> dict[str, Any]:
    """The arguments of the method's loss, beside the model, and their defaults.

    Where it takes ``**options``, those of its base count too.
    """
    defaults: dict[str, Any] = {}
    for constructor in (vars(each)["__init__"] for each in method.loss_class.__mro__ if "__init__" in vars(each)):
        parameters = inspect.signature(constructor).parameters
        own = {name: each.default for name, each in parameters.items() if each.kind not in _REST}
        defaults = {**own, **defaults}
        if all(each.kind is not inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
            break
    return {name: default for name, default in defaults.items() if name not in _GIVEN}


def _hint(name: str, known: Sequence[str]) -> str:
    """What an unknown setting may have been meant for."""
    if takers := [method.name for method in METHODS.values() if name in loss_arguments(method)]:
        return f" of this loss, but one of {', '.join(takers)}"
    longer = [each for each in known if len(name) > 2 and (each.endswith(f"_{name}") or each.startswith(name))]
    near = [*difflib.get_close_matches(name, known, cutoff=0.85), *longer, *difflib.get_close_matches(name, known)]
    return f": perhaps {near[0]} is meant" if near else ""


def _typed(name: str, value: Any, kind: Any) -> Any:
    """The value, if it is a number where one is needed: a file of settings may hold a text. A number is also a text."""
    if isinstance(value, str) and not value.strip() and name != "prompts":  # as a path, the current folder
        raise ValueError(f"{name} is empty: give a value, or leave it out.")
    kinds = set(get_args(kind) or (kind,))
    numbers = kinds & {bool, int, float}
    if kinds & {str, Location, list[str]}:
        if isinstance(value, list):
            return [_as_text(part) for part in value]
        return value if numbers else _as_text(value)
    if numbers and (value is not None or NoneType not in kinds):
        needed = numbers.pop()
        if not isinstance(value, Real) or isinstance(value, bool) != (needed is bool) or (needed is int and value % 1):
            raise ValueError(f"{name} must be of type {needed.__name__}, got {value!r}.")
        return int(float(value)) if needed is int else value
    return value


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, Real) else value
