"""Recipes as data: the YAML files beside this one, and their reader."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from os import fspath
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML whose numbers are Python's: PyYAML takes 3e-5, which has no dot, for a text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


@dataclass(frozen=True)
class Recipe:
    """The settings of a training run.

    Args:
        name: as :func:`load` takes it.
        loss: a name of ``METHODS``.
        settings: overrides of :func:`trainer`, by their names.
        sources: of each setting: a table or section of a paper, a file of its authors' code, or "ours".
        stage1: settings of a first stage, under the loss "pretraining", that differ from those of the second.
        stage1_sources: their sources.
        title: what it is about; with ``reported``, the paper's result, ``differs``, differences from the paper, and
            ``notes``, what to know before a run.
    """

    name: str
    loss: str
    settings: Mapping[str, Any]
    sources: Mapping[str, str] = field(default_factory=dict)
    stage1: Mapping[str, Any] | None = None
    stage1_sources: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    reported: str = ""
    differs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def names() -> list[str]:
    """The names of all recipes."""
    return list(_recipes())


def load(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        ValueError: there is none; the message parts all names.
    """
    if name not in _recipes():
        raise ValueError(f"there is no recipe {name!r}; there are {', '.join(_recipes())}.")
    return _recipes()[name]


def parse(text: str) -> Any:
    """YAML text as a value.

    Raises:
        ValueError: it is not YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error


def dump(settings: Mapping[str, Any]) -> Iterator[str]:
    """Lines of YAML that :func:`parse` reads as these settings; a comment in place of what no file can hold.

    Example:
        >>> print(*dump({"learning_rate": 3e-5, "column": ("title", "body"), "data": object()}), sep="\\n")
        learning_rate: 3.0e-05
        column:
        - title
        - body
        # data: given in Python, so name a file here.
    """
    for name, value in settings.items():
        try:
            plain = json.loads(json.dumps(value, default=fspath))  # of a tuple, a path or a name of transformers
            yield yaml.safe_dump({name: plain}, allow_unicode=True, sort_keys=False).strip()
        except TypeError:
            yield f"# {name}: given in Python, so name a file here."


@cache
def _recipes() -> Mapping[str, Recipe]:
    folder = resources.files("st_contrastive.recipes")
    files = sorted(
        (file for file in folder.iterdir() if file.name.endswith(".yaml")),
        key=lambda file: (file.name != "mini.yaml", file.name),
    )
    entries = [entry for file in files for entry in parse(file.read_text(encoding="utf-8")).items()]
    return {name: _recipe(name, entry) for name, entry in entries if name != "_shared"}


def _recipe(name: str, entry: dict[str, Any]) -> Recipe:
    settings, sources = _merged(entry.pop("settings"))
    parts: dict[str, Any] = {part: tuple(entry.pop(part, ())) for part in ("differs", "notes")}
    if "stage1" in entry:
        parts["stage1"], parts["stage1_sources"] = _merged(entry.pop("stage1"))
    return Recipe(name, settings=settings, sources=sources, **parts, **entry)


def _merged(groups: list[Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Groups of settings that share a source, as settings and their sources; a later group goes first."""
    settings: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for group in groups:
        nested = _merged(group) if isinstance(group, list) else None
        values = nested[0] if nested else {name: value for name, value in group.items() if name != "source"}
        settings |= values
        sources |= nested[1] if nested else dict.fromkeys(values, group["source"])
    return settings, sources
