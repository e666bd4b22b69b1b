"""``run.yaml``: what a run is made of, to train it again from any folder, and to tell whether a resumed one is it."""

from __future__ import annotations

import json
import os
import re
import zlib
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
from st_contrastive.training import ContrastiveTrainer
from st_contrastive.training.resumable import refused_changes

FILE_NAME = "run.yaml"
#: Words that name no file.
_WORDS = ("corpus", "stsb")
#: What a resumed run may change, beside the Trainer's arguments. Of the first three, the content is compared.
_MAY_CHANGE = ("data", "translations", "model", "mix", "card_examples")


def fingerprints(trainer: ContrastiveTrainer) -> dict[str, str]:
    """What a run begins with, by the setting that names it: of the texts and of the weights, a checksum."""
    texts = weights = 0
    dataset: Any = trainer.train_dataset
    for batch in dataset.iter(10_000):
        texts = zlib.crc32(repr([*batch.items()]).encode("utf-8", "backslashreplace"), texts)
    for name, weight in trainer.model.state_dict().items():
        if "pooler" not in name:  # which may be drawn, and is not used
            weights = zlib.crc32(str(weight.flatten()[:100].tolist()).encode(), weights)
    return {"data": f"{len(dataset)} rows with checksum {texts:08x}", "model": f"weights with checksum {weights:08x}"}


def write_record(folder: Path, recipe: Recipe, settings: Mapping[str, Any], found: Mapping[str, str]) -> None:
    """Write the settings as a file that ``st-contrastive train`` reads, with what :func:`fingerprints` found."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("sentence-transformers", "transformers", "torch"))
    lines = [f"# st_contrastive {__version__}, {versions}", *(f"# {name}: {text}" for name, text in found.items())]
    kept = located(settings)
    kept.pop("hub_token", None)
    if not isinstance(kept.get("data", ""), str):
        kept["data"] = object()  # no texts
    if recipe.name in names() and load(recipe.name) == recipe:
        del kept["loss"]
        removed = dict.fromkeys(recipe.settings.keys() - kept.keys() - {"max_steps", "num_train_epochs"})
        kept = {"recipe": recipe.name, **kept, **removed}
    with complete_file(folder / FILE_NAME) as partial:
        partial.write_text("\n".join([*lines, *dump(kept), ""]), encoding="utf-8")


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
    text = _record(folder)
    if text is None:
        return
    saved = parse(text)
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
            f"{values} in the run that resume_from_checkpoint continues ({folder / FILE_NAME}). Give what it was, or "
            "train anew in another output_dir."
        )


def require_same_beginning(folder: Path, found: Mapping[str, str]) -> None:
    """Require the texts and the weights that the run in the folder began with, as :func:`fingerprints` gives them.

    Raises:
        ValueError: one differs.
    """
    text = _record(folder) or ""
    for name, now in found.items():
        before = re.search(rf"^# {name}: (.*)$", text, re.MULTILINE)
        if before and before[1] != now:
            raise ValueError(
                f"{name} is another than that of the run that resume_from_checkpoint continues: {now}, and not "
                f"{before[1]} ({folder / FILE_NAME}). Give what it was, or train anew in another output_dir."
            )


def _record(folder: Path) -> str | None:
    """The text of the folder's file; None if there is none, as of a Trainer without a recipe."""
    file = folder / FILE_NAME
    return file.read_text(encoding="utf-8") if file.is_file() else None


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
