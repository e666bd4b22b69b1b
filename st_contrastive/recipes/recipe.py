"""Recipes: the YAML files in this folder, and the reader and writer of YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from os import fspath
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml

from st_contrastive.settings import Location


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads YAML 1.2: ``no``, ``on``, ``12:30`` and dates are text, and 3e-5 is a number. PyYAML reads YAML 1.1."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        """Refuse a name that is set twice. PyYAML would use the last value."""
        names = [key.value for key, _ in node.value]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise yaml.YAMLError(f"{twice[0]} is set twice.")
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Quotes text that YAML 1.1 or 1.2 would read as something else."""


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
    """The settings of a training run by name, the source of each setting, and notes for the user.

    A source is a table or section of a paper, a file of its authors' code, or "ours". ``stage1`` holds the settings
    that change for a first stage, whose loss is "pretraining". ``reported`` is the paper's result.
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
    """The recipe of that name. For an unknown name, the ValueError lists all names."""
    if name not in _recipes():
        near = [other for other in _recipes() if name and name in other] or get_close_matches(name, _recipes(), n=1)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"The recipes are {', '.join(_recipes())}."
        raise ValueError(f"there is no recipe {name!r}. {hint}")
    return _recipes()[name]


def parse(text: str, types: Mapping[str, Any] | None = None) -> Any:
    """The value of a YAML text. If a setting's type is text, its value is exactly the characters in the file.

    >>> parse("{column: 1, model: 1e5, max_steps: 1e2}", {"column": str, "model": str})
    {'column': '1', 'model': '1e5', 'max_steps': 100.0}

    Args:
        types: types of the settings by name, if the text is a mapping. They also apply to mappings inside it.

    Raises:
        ValueError: the text is not YAML.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if types is not None and isinstance(node, yaml.MappingNode):
            _keep_text(node, types)
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {' '.join(str(error).split())}") from error


def is_text(kind: Any) -> bool:
    """Whether a setting of this type is text or a list of text, and can't be a number or a boolean."""
    kinds = _kinds(kind)
    if kinds & {bool, int, float}:
        return False
    return bool(kinds & {str, Location, list[str], Sequence[str]}) or any(get_origin(part) is Literal for part in kinds)


def _kinds(kind: Any) -> set[Any]:
    """The members of a union, or the type itself."""
    return {kind} if get_origin(kind) in (Literal, list, Sequence) else {*(get_args(kind) or (kind,))}


def _keep_text(node: yaml.MappingNode, types: Mapping[str, Any]) -> None:
    for key, value in node.value:
        kind = types.get(key.value, Any)
        if is_text(kind):
            _retag(value, is_deep=dict[str, str] in _kinds(kind))
        elif isinstance(value, yaml.MappingNode):
            _keep_text(value, types)


def _retag(node: yaml.Node, *, is_deep: bool) -> None:
    """Read the scalars of a node as text. null stays null."""
    if isinstance(node, yaml.ScalarNode) and node.tag != "tag:yaml.org,2002:null":
        node.tag = "tag:yaml.org,2002:str"
    elif isinstance(node, yaml.SequenceNode):
        for part in node.value:
            _retag(part, is_deep=is_deep)
    elif isinstance(node, yaml.MappingNode) and is_deep:
        for _, part in node.value:
            _retag(part, is_deep=True)


def dump(settings: Mapping[str, Any]) -> Iterator[str]:
    """Lines of YAML that :func:`parse` reads as these settings. A value that YAML can't hold becomes a comment."""
    for name, value in settings.items():
        try:
            plain = json.loads(json.dumps(value, default=fspath))  # tuples, paths and enumerations
            yield yaml.dump({name: plain}, Dumper=_Dumper, allow_unicode=True, sort_keys=False).strip()
        except TypeError:
            yield f"# {name}: was passed in Python. Name a file here."


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
    """Settings and their sources, from groups that share a source. A later group overrides an earlier one."""
    settings: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for group in groups:
        if isinstance(group, list):
            values, found = _merged(group)
        else:
            values = {name: value for name, value in group.items() if name != "source"}
            found = dict.fromkeys(values, group["source"])
        settings |= values
        sources |= found
    return settings, sources
