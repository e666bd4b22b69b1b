"""``st-contrastive recipes``: the recipes in a list, or one with the source of every number."""

from __future__ import annotations

import argparse

from st_contrastive.cli._arguments import UserError
from st_contrastive.cli._text import columns
from st_contrastive.recipes import RECIPES, recipe


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "recipes",
        help="list the recipes, or explain one",
        description="A recipe is a paper's settings: method, model and numbers. Without NAME, all of them; with NAME, "
        "each number with its source, what is not as in the paper, and the paper's own figure.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="as train --recipe takes it")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print."""
    if args.name is None:
        print(columns((one.name, one.title, one.reported) for one in RECIPES.values()))
        return 0
    try:
        print(recipe(args.name).describe())
    except ValueError as error:
        raise UserError(str(error)) from error
    return 0
