"""The command line: ``st-contrastive`` and ``python -m st_contrastive``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from st_contrastive import __version__

# None of these imports torch, which takes seconds: a command does so when it runs, and --help does not.
from st_contrastive.cli import demo, evaluate, losses, pretrain, recipes, report, train, translate
from st_contrastive.cli._arguments import UserError
from st_contrastive.cli._quiet import quiet


class _Columns(argparse.HelpFormatter):
    """Help with room for long options, so that most take one line."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"max_help_position": 32, **options})


class _WholeNames(argparse.ArgumentParser):
    """Options by their whole names alone: a recipe goes before those beside it by its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Columns, **options})


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it worked, 2 with one line on the error stream for bad input."""
    parser = _WholeNames(
        prog="st-contrastive",
        description="Unsupervised sentence embeddings: ConIsI, Twins and InfoCSE beside SimCSE.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_WholeNames)
    for command in (train, pretrain, evaluate, report, translate, losses, recipes, demo):
        command.add_parser(commands)
    args = parser.parse_args(train.recipe_first(sys.argv[1:] if argv is None else argv))
    try:
        with nullcontext() if getattr(args, "verbose", True) else quiet():
            code: int = args.run(args)
    except KeyboardInterrupt:
        print("st-contrastive: stopped", file=sys.stderr)
        return 130
    except UserError as error:
        print(f"st-contrastive: {error}", file=sys.stderr)
        return 2
    return code
