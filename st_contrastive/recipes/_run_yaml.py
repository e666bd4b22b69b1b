"""``run.yaml``: a run's settings, to train it again from any folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

from st_contrastive import __version__
from st_contrastive._files import complete_file
from st_contrastive.methods import find_method
from st_contrastive.recipes._recipe import Recipe, dump, load, names, parse
from st_contrastive.recipes._settings import PRETRAINING, REPLACED, RUN, default_settings, first_stage, loss_arguments
from st_contrastive.settings import Location
from st_contrastive.training.same_run import refused_changes

FILE_NAME = "run.yaml"
#: Words that name no file, as dev.
_WORDS = ("corpus", "stsb")


def write_record(folder: Path, recipe: Recipe, settings: Mapping[str, Any]) -> None:
    """Write the settings as a file that ``st-contrastive train`` reads."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("sentence-transformers", "transformers", "torch"))
    lines = [f"# st_contrastive {__version__}, {versions}", *_lines(recipe, settings), ""]
    with complete_file(folder / FILE_NAME) as partial:
        partial.write_text("\n".join(lines), encoding="utf-8")


def require_same_settings(folder: Path, recipe: Recipe, settings: Mapping[str, Any]) -> None:
    """Compare what the trainer doesn't: a first stage, which may have ended, and a loss that does not describe itself.

    Of files and folders, which may have been moved, the last part is compared.
    """
    file = folder / FILE_NAME
    if not file.is_file():  # of a Trainer without a recipe
        return
    saved, now = parse(file.read_text(encoding="utf-8")), parse("\n".join(_lines(recipe, settings)))
    changed = refused_changes(*({**_of_stage1(run), **_of_plain_loss(recipe, run)} for run in (saved, now)))
    values = [f"{name} is {new!r}, and was {old!r}" for name, (old, new) in changed.items()]
    if values:
        raise ValueError(
            f"{'; '.join(values)} in the run that resume_from_checkpoint continues ({file}). Give what it was, or "
            "train anew in another output_dir."
        )


def _lines(recipe: Recipe, settings: Mapping[str, Any]) -> list[str]:
    """The settings in YAML, without texts and secrets; files and folders by names that hold in any folder. The output
    folder, in which the file is, may be moved."""
    kept = {name: value for name, value in settings.items() if name not in ("output_dir", "hub_token")}
    for name in _locations(recipe):
        value = kept.get(name)
        if isinstance(value, (str, os.PathLike)) and not (name == "dev" and value in _WORDS):
            path = os.path.abspath(os.path.expanduser(value))
            if os.path.exists(path):
                kept[name] = path
    if not isinstance(kept.get("data", ""), str):
        kept["data"] = object()  # no texts
    if recipe.name in names() and load(recipe.name) == recipe:
        del kept["loss"]
        removed = dict.fromkeys(recipe.settings.keys() - kept.keys() - {*REPLACED.values()})
        kept = {"recipe": recipe.name, **kept, **removed}
    return [*dump(kept)]


def _locations(recipe: Recipe) -> tuple[str, ...]:
    """The settings that may name a file or folder."""
    own = (name for name, kind in RUN.items() if Location in get_args(kind))
    return (*own, *find_method(recipe.loss).checkpoints)


def _of_stage1(settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a first stage: one that is given as its default is no change."""
    stage1 = settings.get("stage1")
    if stage1 is None:
        return {}
    method = find_method(PRETRAINING.loss)
    own = {**default_settings(method), **first_stage(settings, stage1)}
    own["dev"] = "corpus" if settings.get("dev") == "corpus" else None  # whose documents it is not trained on
    return {name: _without_folder(value) for name, value in own.items() if name not in method.loss_class.may_change}


def _of_plain_loss(recipe: Recipe, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a loss without ``get_config_dict``."""
    method = find_method(recipe.loss)
    defaults = {} if hasattr(method.loss_class, "get_config_dict") else loss_arguments(method)
    return {name: settings.get(name, default) for name, default in defaults.items()}


def _without_folder(value: Any) -> Any:
    return os.path.basename(value) if isinstance(value, str) and os.path.isabs(value) else value
