"""All settings of a run in one object, built from a recipe, a file or options."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from sentence_transformers import SentenceTransformerTrainingArguments as TrainingArguments

from st_contrastive import __version__
from st_contrastive._arguments import argument_types, check_arguments
from st_contrastive._files import complete_file
from st_contrastive.inputs.tables import split_columns
from st_contrastive.methods import METHODS, Method, find_method
from st_contrastive.recipes.recipe import Recipe, dump, is_text, load, names, parse
from st_contrastive.settings import Location, RunSettings
from st_contrastive.training.same_run import refused_changes

#: The type of each of the Trainer's arguments.
TRAINING: Mapping[str, Any] = {
    field.name: get_type_hints(TrainingArguments)[field.name]
    for field in dataclasses.fields(TrainingArguments)
    if field.init
}
#: The type of each run setting, except the settings that choose the recipe and its stages.
RUN: Mapping[str, Any] = {
    name: kind for name, kind in get_type_hints(RunSettings).items() if name not in ("recipe", "loss", "stage1")
}
#: The recipe of a first stage.
PRETRAINING = Recipe("", "pretraining", {})
#: If the first setting is set, the recipe's value of the second is dropped. It would end the run early, or ignore the
#: antonyms.
_REPLACED = {"max_steps": "num_train_epochs", "num_train_epochs": "max_steps", "antonyms": "strategy"}
#: Settings that neither a first stage nor the other runs of a soup use.
_ONLY_OF_RESULT = frozenset(
    "dev mix soup eval_strategy eval_steps load_best_model_at_end metric_for_best_model push_to_hub stage1 "
    "output_dir".split()
)
#: Values of dev that are not a file.
DEV_WORDS = ("corpus", "stsb")
_SECRETS = ("hub_token",)
#: Options of other training scripts, such as SimCSE's train.py, and what to use here.
_OTHER_TOOLS = {
    "overwrite_output_dir": "A used folder is never overwritten. Name a new output_dir.",
    "model_name_or_path": "Use model.",
    "model_name": "Use model.",
    "train_file": "Use data.",
    "dataset_name": "Use data.",
    "validation_file": "Use dev.",
    "max_seq_length": "Use max_length.",
    "pooler_type": "Use pooling. The head that is only used in training is set by head.",
    "temp": "Use temperature.",
    "mlp_only_train": "Remove it: head is never used after training.",
    "do_mlm": "Use mlm_weight.",
    "pad_to_max_length": "Remove it: batches are padded to their longest text.",
    "overwrite_cache": "Remove it: a changed file is always read again.",
    "preprocessing_num_workers": "Remove it: texts are tokenized batch by batch.",
    "use_fast_tokenizer": "Remove it.",
    "evaluation_strategy": "Use eval_strategy.",
    "per_gpu_train_batch_size": "Use per_device_train_batch_size.",
    "train_batch_size": "Use per_device_train_batch_size.",
    "batch_size": "Use per_device_train_batch_size.",
    "epochs": "Use num_train_epochs.",
    "num_epochs": "Use num_train_epochs.",
    "lr": "Use learning_rate.",
    "no_cuda": "Use use_cpu.",
    "evaluation_steps": "Use eval_steps.",
    "output_path": "Use output_dir.",
}


@dataclass(frozen=True)
class RunPlan:
    """All settings of a run. ``training`` and ``loss`` only hold the settings that are set.

    Attributes:
        run: the settings of RunSettings. ``run.loss`` is always set, and ``run.stage1`` if there are two stages.
        training: arguments of SentenceTransformerTrainingArguments.
        loss: arguments of the loss.
        recipe: the recipe that the plan comes from. Its name is empty if the run names a loss instead.
        resume: False, True for the newest checkpoint of the output folder, or the folder of a checkpoint.
    """

    run: RunSettings
    training: Mapping[str, Any]
    loss: Mapping[str, Any]
    recipe: Recipe
    resume: bool | str = False

    @classmethod
    def from_recipe(cls, recipe: str | Recipe, overrides: Mapping[str, Any]) -> RunPlan:
        """The plan of a recipe with some settings replaced. The value None removes a setting.

        Raises:
            TypeError: a setting is unknown.
            ValueError: a value has the wrong type, or nothing would be trained.
        """
        chosen = load(recipe) if isinstance(recipe, str) else recipe
        method = find_method(chosen.loss)
        settings = {**chosen.settings, **overrides}
        resume = settings.pop("resume_from_checkpoint", None) or False
        stage1 = _first_stage_settings(chosen, settings)
        for name, replaced in _REPLACED.items():
            if overrides.get(name) not in (None, -1) and replaced not in overrides:  # max_steps -1 is no limit
                settings.pop(replaced, None)
        types = setting_types(method)
        loss_defaults = loss_arguments(method)
        for name in settings:
            if name in loss_defaults and name in {**TRAINING, **RUN}:
                raise TypeError(
                    f"{name} is an argument of {method.loss} and a setting of the run: rename the loss's argument."
                )
            if name not in types:
                raise TypeError(_unknown(name, method, types))
        settings = {
            name: _checked(name, value, types[name])
            for name, value in settings.items()
            if value is not None or name not in TRAINING or NoneType in get_args(types[name])
        }
        if settings.get("max_steps") == 0:  # the Trainer would read it as no limit
            raise ValueError("max_steps 0 leaves nothing to train: raise it above 0, or remove it.")
        if (epochs := settings.get("num_train_epochs", 1)) <= 0:
            raise ValueError(f"num_train_epochs {epochs} leaves nothing to train: raise it above 0, or remove it.")
        _require_one_network(stage1, settings)
        _require_no_averages(settings, method)
        _require_no_averages(stage1 or {}, find_method(PRETRAINING.loss))
        run = {name: value for name, value in settings.items() if name in RUN and value is not None}
        run |= {"recipe": chosen.name or None, "loss": chosen.loss, "stage1": stage1}
        check_arguments(RunSettings, {name: run[name] for name in ("mix", "soup", "antonyms") if name in run})
        return cls(
            RunSettings(**run),
            {name: value for name, value in settings.items() if name in TRAINING and name not in RUN},
            {
                name: value
                for name, value in settings.items()
                if name in loss_defaults and not (value is None and name in method.checkpoints)
            },
            chosen,
            {"true": True, "false": False}.get(str(resume).lower(), os.path.expanduser(str(resume))),
        )

    @classmethod
    def from_yaml(cls, text: str, options: Mapping[str, Any] | None = None) -> RunPlan:
        """The plan from a file of settings that names a recipe or a loss.

        Args:
            text: the content of the file, or "".
            options: settings that override the file. Text is read as it would be in the file. "none" removes a
                setting.
        """
        options = options or {}
        written = parse(text) or {}
        if not isinstance(written, dict) or not all(isinstance(name, str) for name in written):
            raise ValueError(f"a file of settings holds names and values, such as `loss: simcse`; got {written!r:.80}.")
        chosen = _chosen({**written, **options})
        types = {**setting_types(find_method(PRETRAINING.loss)), **setting_types(find_method(chosen.loss))}
        settings = {**(parse(text, types) or {}), **options}
        for name, value in options.items():
            if isinstance(value, str):
                settings[name] = _read(name, value, types)
        for name, value in settings.items():
            if str(value).lower() == "none" and not (name in TRAINING and is_text(TRAINING[name])):
                settings[name] = None  # in text, such as report_to, the word is a value
        return cls.from_recipe(
            chosen, {name: value for name, value in settings.items() if name not in ("recipe", "loss")}
        )

    @property
    def method(self) -> Method:
        """The method that the loss belongs to."""
        return find_method(self.recipe.loss)

    @property
    def folder(self) -> Path:
        """The output folder."""
        return Path(os.fspath(self.run.output_dir or "")).expanduser()

    @property
    def columns(self) -> list[str]:
        """The names of the columns to read."""
        return split_columns(self.run.column)

    def settings(self) -> dict[str, Any]:
        """The settings that are set, by name, without the recipe and the loss."""
        run = {
            field.name: value
            for field in dataclasses.fields(self.run)
            if (value := getattr(self.run, field.name)) is not None
            and (field.default is None or value != field.default or field.name in self.recipe.settings)
            and field.name not in ("recipe", "loss")
        }
        return {**run, **self.training, **self.loss}

    def with_settings(self, **changes: Any) -> RunPlan:
        """The same plan with some settings replaced. The new values are not checked."""
        run = {name: value for name, value in changes.items() if name in RUN}
        training = {name: value for name, value in changes.items() if name in TRAINING and name not in RUN}
        loss = {name: value for name, value in changes.items() if name not in run and name not in training}
        return replace(
            self, run=replace(self.run, **run), training={**self.training, **training}, loss={**self.loss, **loss}
        )

    def first_stage(self) -> RunPlan | None:
        """The plan of the first stage: ``run.stage1``, and the settings of this run that apply to both stages."""
        if not isinstance(self.run.stage1, Mapping):
            return None
        known = setting_types(find_method(PRETRAINING.loss))
        shared = {name: value for name, value in self.settings().items()
                  if name in known and name not in _ONLY_OF_RESULT}  # fmt: skip
        folder = {"output_dir": self.folder / "stage1", "resume_from_checkpoint": bool(self.resume)}
        return RunPlan.from_recipe(PRETRAINING, {**shared, **self.run.stage1, **folder})

    def other_soup_runs(self) -> list[RunPlan]:
        """The plans of the runs whose weights are averaged with those of this run. Each has its own seed and folder."""
        training = {name: value for name, value in self.training.items() if name not in _ONLY_OF_RESULT}
        other = replace(self, run=replace(self.run, dev=None, mix=None, soup=None, stage1=None), training=training)
        seed = self.training.get("seed", TrainingArguments.seed)
        return [
            other.with_settings(seed=seed + number, output_dir=self.folder / f"run{number + 1}")
            for number in range(1, self.run.soup or 1)
        ]

    def to_yaml(self) -> str:
        """The settings as a file that ``st-contrastive train`` reads in any folder.

        It does not contain texts, secrets or the output folder, which may be moved. Existing files and folders get
        absolute paths.
        """
        kept = {name: value for name, value in self.settings().items() if name not in ("output_dir", *_SECRETS)}
        locations = [name for name, kind in RUN.items() if Location in get_args(kind)]
        for name in (*locations, *self.method.checkpoints):
            value = kept.get(name)
            if isinstance(value, (str, os.PathLike)) and not (name == "dev" and value in DEV_WORDS):
                path = os.path.abspath(os.path.expanduser(value))
                if os.path.exists(path):
                    kept[name] = path
        if not isinstance(kept.get("data", ""), (str, os.PathLike)):
            kept["data"] = object()  # texts
        head: dict[str, Any] = {"loss": self.recipe.loss}
        removed: list[str] = []
        if self.recipe.name in names() and load(self.recipe.name) == self.recipe:
            head = {"recipe": self.recipe.name}
            removable = {*RUN, *self.method.checkpoints}
            removed = [name for name in self.recipe.settings if name in removable and name not in kept]
            if self.recipe.stage1 is not None and self.run.stage1 is None and "auxiliary" not in kept:
                removed.append("auxiliary")  # there is no first stage
        return "\n".join(dump({**head, **kept, **dict.fromkeys(removed)}))

    def changes_from(self, other: RunPlan) -> dict[str, tuple[Any, Any]]:
        """Changed settings that a resumed run must keep, as (old value, new value) by name.

        This compares the settings that the Trainer does not compare: the settings of a first stage, which may be
        finished, the number of runs in a soup, and the arguments of a loss without ``get_config_dict``. Only the last
        part of an absolute path is compared, because folders may be moved.
        """
        return refused_changes(other._compared_settings(), self._compared_settings())

    def _compared_settings(self) -> dict[str, Any]:
        compared: dict[str, Any] = {}
        first = self.first_stage()
        if first is not None:
            fields = (*dataclasses.fields(TrainingArguments), *dataclasses.fields(RunSettings))
            defaults = {**{field.name: field.default for field in fields}, **loss_arguments(first.method)}
            compared = {**defaults, **first.settings(), "dev": "corpus" if self.run.dev == "corpus" else None}
            for name in first.method.loss_class.may_change:
                compared.pop(name, None)
        compared["soup"] = self.run.soup or 1
        if not hasattr(self.method.loss_class, "get_config_dict"):
            compared |= {**loss_arguments(self.method), **self.loss}
        return {
            name: os.path.basename(value) if isinstance(value, str) and os.path.isabs(value) else value
            for name, value in compared.items()
        }


def write_plan(plan: RunPlan, file: Path) -> None:
    """Write the plan as YAML, with the versions of the libraries that ran it."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("sentence-transformers", "transformers", "torch"))
    with complete_file(file) as partial:
        partial.write_text(f"# st_contrastive {__version__}, {versions}\n{plan.to_yaml()}\n", encoding="utf-8")


def require_same_plan(plan: RunPlan, file: Path) -> None:
    """Refuse to resume a run with changed settings that would be ignored. ``file`` is the plan that the run wrote."""
    if not file.is_file():  # a Trainer without a recipe
        return
    # Both plans are read from YAML, so that equal values compare equal.
    changes = RunPlan.from_yaml(plan.to_yaml()).changes_from(RunPlan.from_yaml(file.read_text(encoding="utf-8")))
    if changes:
        values = "; ".join(f"{name} is {new!r}, and was {old!r}" for name, (old, new) in changes.items())
        raise ValueError(
            f"{values} in the run that resume_from_checkpoint continues ({file}). Restore the old values, or train in "
            "another output_dir."
        )


def loss_arguments(method: Method) -> dict[str, Any]:
    """The arguments of the method's loss after the model, and their defaults.

    They include those of the base class if the constructor takes ``**options``.
    """
    return {name: parameter.default for name, (parameter, _) in _loss_parameters(method).items()}


def setting_types(method: Method) -> dict[str, Any]:
    """The types of all settings of a run of the method, by name."""
    return {**TRAINING, **RUN, **{name: kind for name, (_, kind) in _loss_parameters(method).items()}}


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _loss_parameters(method: Method) -> dict[str, tuple[inspect.Parameter, Any]]:
    """The parameters of the loss's constructor, and their types."""
    found: dict[str, tuple[inspect.Parameter, Any]] = {}
    for constructor in (vars(base)["__init__"] for base in method.loss_class.__mro__ if "__init__" in vars(base)):
        parameters = inspect.signature(constructor).parameters
        types = argument_types(constructor)
        new = {
            name: (parameter, types.get(name, Any))
            for name, parameter in parameters.items()
            if parameter.kind not in _REST
        }
        found = {**new, **found}
        if all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            break
    return {name: value for name, value in found.items() if name not in ("self", "model")}


def _chosen(settings: Mapping[str, Any]) -> Recipe:
    """The recipe that the settings name, or a recipe with only a loss if they name a loss."""
    name, loss = settings.get("recipe"), settings.get("loss")
    if (name is None) == (loss is None):
        raise ValueError("give either recipe=NAME or loss=NAME (and model=NAME).")
    if loss is None:
        return load(str(name))
    has_stage1 = settings.get("stage1") is not None and "auxiliary" in find_method(loss).checkpoints
    return Recipe("", loss, {}, stage1={} if has_stage1 else None)


def _first_stage_settings(recipe: Recipe, settings: dict[str, Any]) -> Mapping[str, Any] | None:
    """Remove stage1 from the settings, and merge it with the recipe's. None if there is only one stage."""
    changes = settings.pop("stage1", None) or {}
    has_two = recipe.stage1 is not None and "auxiliary" not in settings
    if not isinstance(changes, Mapping) or (changes and not has_two):
        raise ValueError(
            f"stage1={changes!r:.80} must be settings such as {{learning_rate: 1e-4}}, for a recipe with a first "
            "stage. With auxiliary, there is no first stage."
        )
    return {**(recipe.stage1 or {}), **changes} if has_two else None


def _require_one_network(stage1: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> None:
    """Refuse a first stage that trains another auxiliary network than the second stage uses."""
    for name in ("split_layer", "extra_layers", "tied_head"):
        needed = settings.get(name) or None  # the second stage can untie a head
        if stage1 is not None and needed is not None and stage1.get(name, needed) != needed:
            raise ValueError(
                f"stage1 has {name} {stage1[name]}, and the second stage {needed}, but both stages share one network: "
                f"remove {name} from stage1."
            )


def _require_no_averages(settings: Mapping[str, Any], method: Method) -> None:
    """Refuse to average encoders whose auxiliary network is saved too, and would belong to one run only."""
    for name in ("soup", "mix"):
        if hasattr(method.loss_class, "save_auxiliary") and settings.get(name) not in (None, 1):
            raise ValueError(
                f"{name}={settings[name]!r} averages the weights of the encoder only, and {method.loss} also saves the "
                f"auxiliary network that was trained with it: remove {name}."
            )


def _unknown(name: str, method: Method, types: Mapping[str, Any]) -> str:
    """The message for an unknown setting, with the nearest known one."""
    start = f"there is no setting {name}"
    if name in _OTHER_TOOLS:
        return f"{start}. {_OTHER_TOOLS[name]}"
    if users := [other.name for other in METHODS.values() if name in loss_arguments(other)]:
        return f"{start} of the loss {method.name}: it belongs to {', '.join(users)}."
    longer = [known for known in types if len(name) > 2 and (known.endswith(f"_{name}") or known.startswith(name))]
    near = [*difflib.get_close_matches(name, types, cutoff=0.85), *longer, *difflib.get_close_matches(name, types)]
    if near:
        return f"{start}. Did you mean {near[0]}?"
    return (
        f"{start}. Settings are the arguments of {method.loss} ({', '.join(loss_arguments(method))}), the arguments of "
        f"SentenceTransformerTrainingArguments, and {', '.join(RUN)}."
    )


def _read(name: str, text: str, types: Mapping[str, Any]) -> Any:
    """The value of an option's text, read as it would be in a file."""
    kind = types.get(name, Any)
    if is_text(kind) and not text.startswith("{"):
        is_of_loss = name not in TRAINING and name not in RUN
        return None if is_of_loss and text.lower() in ("null", "~") else text
    try:
        return parse(text, types)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _checked(name: str, value: Any, kind: Any) -> Any:
    """The value. Raises a ValueError if the type needs a number, a boolean or text and the value is something else.

    A whole float becomes an int if the type is int.
    """
    if isinstance(value, str) and not value.strip() and name != "prompts":  # as a path, it would be the current folder
        raise ValueError(f"{name} is empty: set a value, or remove it.")
    if is_text(kind):
        if isinstance(value, Real):
            raise ValueError(f"{name} must be text, got {value!r}. Quote it.")
        return [*value] if isinstance(value, tuple) else value
    kinds = {*(get_args(kind) or (kind,))}
    numbers = kinds & {bool, int, float}
    is_number = name in {**TRAINING, **RUN} and len(numbers) == 1 and str not in kinds
    if is_number and (value is not None or NoneType not in kinds):
        needed = numbers.pop()
        if not isinstance(value, Real) or isinstance(value, bool) != (needed is bool) or (needed is int and value % 1):
            raise ValueError(f"{name} must be of type {needed.__name__}, got {value!r}.")
        return int(float(value)) if needed is int else value
    return value
