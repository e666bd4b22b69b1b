"""``st-contrastive recipes``: list the recipes, or print one with the source of every number."""

from __future__ import annotations

import argparse

from st_contrastive.cli._arguments import user_error
from st_contrastive.cli._text import columns
from st_contrastive.recipes import RECIPES, recipe


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "recipes",
        help="list the recipes, or explain one",
        description="A recipe holds the method, the model and the numbers of one row of a paper's table. Without NAME, "
        "list the recipes; with NAME, print each number with its source, the differences from the paper, and the "
        "paper's result. Names that begin with mini- are for a laptop.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of a recipe, as for train --recipe")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the list, or the recipe."""
    if args.name is None:
        print(columns((one.name, one.title) for one in RECIPES.values()))
        return 0
    with user_error(ValueError):
        print(recipe(args.name).describe())
    return 0
