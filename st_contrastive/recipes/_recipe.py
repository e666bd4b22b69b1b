"""Recipes as data: the YAML files beside this one, and their reader."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from os import fspath
from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """As YAML 1.2, ``no``, ``on``, ``12:30`` and dates are texts, and 3e-5 is a number. PyYAML reads YAML 1.1."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        """As PyYAML's, which takes the last value of a name that is given twice."""
        names = [key.value for key, _ in node.value]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise yaml.YAMLError(f"{twice[0]} is given twice.")
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes the texts that either version would read as something else."""


for _kind, _pattern, _beginnings in (
    ("bool", "(?:true|True|TRUE|false|False|FALSE)", "tTfF"),
    ("null", "(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    ("int", "[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    ("merge", "<<", "<"),
    ("float", r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|nan)", "-+.0123456789"),
):
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"(?:{_pattern})$"), list(_beginnings))


@dataclass(frozen=True)
class Recipe:
    """The settings of a training run, by the names that :func:`trainer` takes, and what to know before it.

    Each has its source: a table or section of a paper, a file of its authors' code, or "ours". ``stage1`` holds what
    differs in a first stage, under the loss "pretraining". ``reported`` is the paper's result.
    """

    name: str
    loss: str
    settings: Mapping[str, Any]
    sources: Mapping[str, str] = field(default_factory=dict)
    stage1: Mapping[str, Any] | None = None
    stage1_sources: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    reported: str = ""
    differs: Sequence[str] = ()
    notes: Sequence[str] = ()


def names() -> list[str]:
    """The names of all recipes."""
    return list(_recipes())


def load(name: str) -> Recipe:
    """The recipe of that name; a ValueError names all."""
    if name not in _recipes():
        raise ValueError(f"there is no recipe {name!r}; there are {', '.join(_recipes())}.")
    return _recipes()[name]


def parse(text: str) -> Any:
    """YAML text as a value; a ValueError if it is not YAML."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error


def dump(settings: Mapping[str, Any]) -> Iterator[str]:
    """Lines of YAML that :func:`parse` reads as these settings; a comment in place of what no file can hold."""
    for name, value in settings.items():
        try:
            plain = json.loads(json.dumps(value, default=fspath))  # of a tuple, a path or a name of transformers
            yield yaml.dump({name: plain}, Dumper=_Dumper, allow_unicode=True, sort_keys=False).strip()
        except TypeError:
            yield f"# {name}: given in Python, so name a file here."


@cache
def _recipes() -> Mapping[str, Recipe]:
    recipes = {}
    for file in sorted(Path(__file__).parent.glob("*.yaml"), key=lambda file: (file.stem != "mini", file.stem)):
        for name, entry in parse(file.read_text(encoding="utf-8")).items():
            if name == "_shared":
                continue
            for settings, sources in (("settings", "sources"), ("stage1", "stage1_sources")):
                if settings in entry:
                    entry[settings], entry[sources] = _merged(entry[settings])
            recipes[name] = Recipe(name, **entry)
    return recipes


def _merged(groups: list[Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Groups of settings that share a source, as settings and their sources; a later group goes first."""
    settings: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for group in groups:
        if isinstance(group, list):
            values, own = _merged(group)
        else:
            values = {name: value for name, value in group.items() if name != "source"}
            own = dict.fromkeys(values, group["source"])
        settings |= values
        sources |= own
    return settings, sources
