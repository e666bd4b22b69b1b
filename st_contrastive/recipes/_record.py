"""``run.yaml``: what a run is made of, to train it again from any folder, and to tell whether a resumed one is it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

from st_contrastive import __version__
from st_contrastive._files import complete_file
from st_contrastive.methods import find_method
from st_contrastive.recipes._recipe import Recipe, dump, load, names, parse
from st_contrastive.recipes._settings import RUN, defaults, resolve_settings
from st_contrastive.settings import Location
from st_contrastive.training.resumable import refused_changes

FILE_NAME = "run.yaml"
#: Words that name no file.
_WORDS = ("corpus", "stsb")
#: What a resumed run may change, beside the Trainer's arguments. Of the first two, the Trainer compares the texts.
_MAY_CHANGE = ("data", "translations", "mix", "card_examples")


def write_record(folder: Path, recipe: Recipe, settings: Mapping[str, Any]) -> None:
    """Write the settings as a file that ``st-contrastive train`` reads."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("sentence-transformers", "transformers", "torch"))
    kept = located(settings)
    kept.pop("hub_token", None)
    if not isinstance(kept.get("data", ""), str):
        kept["data"] = object()  # no texts
    if recipe.name in names() and load(recipe.name) == recipe:
        del kept["loss"]
        removed = dict.fromkeys(recipe.settings.keys() - kept.keys() - {"max_steps", "num_train_epochs"})
        kept = {"recipe": recipe.name, **kept, **removed}
    lines = [f"# st_contrastive {__version__}, {versions}", *dump(kept), ""]
    with complete_file(folder / FILE_NAME) as partial:
        partial.write_text("\n".join(lines), encoding="utf-8")


def located(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with files and folders by names that hold in any folder."""
    changed = dict(settings)
    for name in _locations(settings):
        value = settings.get(name)
        if isinstance(value, (str, os.PathLike)) and value not in _WORDS:
            path = os.path.abspath(os.path.expanduser(value))
            if name == "output_dir" or os.path.exists(path):
                changed[name] = path
    return changed


def require_same_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Require the settings of the run that is in the folder, but for those that a resumed run may change.

    Raises:
        ValueError: another differs; the message has both values.
    """
    file = folder / FILE_NAME
    if not file.is_file():  # of a Trainer without a recipe
        return
    saved = parse(file.read_text(encoding="utf-8"))
    recipe = load(saved.pop("recipe")) if "recipe" in saved else Recipe("", saved.pop("loss"), {})
    stage1 = {"stage1": saved.pop("stage1")} if "stage1" in saved else {}
    changed = refused_changes(_complete({**resolve_settings(recipe, saved), **stage1}), _complete(settings))
    for name in (*_MAY_CHANGE, *getattr(find_method(settings["loss"]).loss_class, "may_change", ())):
        changed.pop(name, None)
    if None in changed.get("dev", ()):  # one that is added, or left out
        del changed["dev"]
    if changed:
        values = "; ".join(f"{name} is {new!r}, and was {old!r}" for name, (old, new) in changed.items())
        raise ValueError(
            f"{values} in the run that resume_from_checkpoint continues ({file}). Give what it was, or "
            "train anew in another output_dir."
        )


def _complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a run as a file holds them, those that are not given too; without what no file holds.

    Of files and folders, which may have been moved, the last part.
    """
    whole = {**defaults(settings), **located(settings)}
    for name in _locations(settings):
        if isinstance(whole[name], str) and os.path.isabs(whole[name]):
            whole[name] = os.path.basename(whole[name])
    whole |= {f"stage1.{name}": value for name, value in (whole.pop("stage1") or {}).items()}
    plain = {}
    for name, value in whole.items():
        with suppress(TypeError):
            plain[name] = json.loads(json.dumps(value, default=os.fspath))
    return plain


def _locations(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The settings that may name a file or folder."""
    own = (name for name, kind in RUN.items() if Location in get_args(kind))
    return (*own, *find_method(settings["loss"]).checkpoints)
