"""``st-contrastive recipes``: list the recipes, or print one as YAML with the source of each value."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from st_contrastive.cli._user_errors import parse_name, user_error

if TYPE_CHECKING:
    from st_contrastive.recipes import Recipe


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "recipes",
        help="list the recipes, or print one",
        description="A recipe holds the settings for one row of a paper's table. own-text is for your own documents, "
        "and the recipes that begin with mini- are for a laptop. With NAME, print the settings of a recipe and their "
        "sources, in a form that st-contrastive train can read.",
    )
    parser.add_argument("name", nargs="?", type=parse_name, metavar="NAME", help="name of a recipe")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the list of recipes, or one recipe."""
    from st_contrastive import recipes

    with user_error(ValueError):
        chosen = recipes.load(args.name) if args.name else None
    listed = (f"{name:24}{recipes.load(name).title}" for name in recipes.names())
    print("\n".join(listed if chosen is None else as_yaml(chosen)))
    return 0


def as_yaml(recipe: Recipe) -> Iterator[str]:
    """The lines of a YAML file of settings, each value with its source in a comment."""
    yield f"# {recipe.title}"
    yield from (f"# Reported: {text}" for text in [recipe.reported] if text)
    for heading, texts in (("Notes", recipe.notes), ("Differs from the paper", recipe.differs)):
        yield from (f"# {text}" for text in ([f"{heading}:", *(f"- {text}" for text in texts)] if texts else ()))
    yield f"loss: {recipe.loss}"
    yield from _lines(recipe.settings, recipe.sources)
    if recipe.stage1 is not None:
        yield "stage1:"
        yield from (f"  {line}" for line in _lines(recipe.stage1, recipe.stage1_sources))


def _lines(settings: Mapping[str, Any], sources: Mapping[str, str]) -> Iterator[str]:
    from st_contrastive.recipes import dump

    return (f"{line:40}  # {sources[name]}" for name, line in zip(settings, dump(settings), strict=True))
