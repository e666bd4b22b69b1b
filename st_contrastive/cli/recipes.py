"""``st-contrastive recipes``: list the recipes, or print one as YAML with the source of every value."""

from __future__ import annotations

import argparse

from st_contrastive.cli._arguments import user_error


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "recipes",
        help="list the recipes, or print one",
        description="A recipe holds the settings of one row of a paper's table; those named mini- are for a laptop. "
        "With NAME, print its settings and their sources, in the form that st-contrastive train reads.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of a recipe")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the list, or the recipe."""
    from st_contrastive import recipes

    with user_error(ValueError):
        chosen = recipes.load(args.name) if args.name else None
    print(chosen or "\n".join(f"{name:24}{recipes.load(name).title}" for name in recipes.names()))
    return 0
