"""The command line: ``st-contrastive`` and ``python -m st_contrastive``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from st_contrastive import __version__

# None of these imports torch, which takes seconds: commands import it when they run, and --help does not need it.
from st_contrastive.cli import demo, evaluate, losses, pretrain, recipes, report, train, translate
from st_contrastive.cli._arguments import UserError
from st_contrastive.cli._quiet import quiet
from st_contrastive.cli._signals import Terminated, ending_signals_raise


class _Formatter(argparse.HelpFormatter):
    """Help with room for long options, so that most take one line."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"max_help_position": 32, **options})


class _Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviated options, which a new option could make ambiguous."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": _Formatter, **options})


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of a command line. The settings of a ``--recipe`` are defaults of the other options."""
    parser = _Parser(
        prog="st-contrastive",
        description="Train and evaluate sentence embeddings without labels: SimCSE, ConIsI, Twins and InfoCSE.",
        epilog="Help on a command: st-contrastive COMMAND --help. Start with: st-contrastive demo.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=_Parser)
    for command in (train, pretrain, evaluate, report, translate, losses, recipes, demo):
        command.add_parser(commands)
    args = parser.parse_args(argv)
    if getattr(args, "recipe", None):
        commands.choices["train"].set_defaults(**train.recipe_defaults(args.recipe))
        args = parser.parse_args(argv)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. The exit code is 0, 2 with one line on the error stream for bad input, or 1 if a run diverged.

    Ctrl-C gives 130, SIGTERM 143 and SIGHUP 129; temporary files are removed first.
    """
    args = parse(sys.argv[1:] if argv is None else argv)
    try:
        with ending_signals_raise(), nullcontext() if getattr(args, "verbose", True) else quiet():
            code: int = args.run(args)
    except (KeyboardInterrupt, Terminated) as error:
        print("st-contrastive: stopped", file=sys.stderr)
        return error.code if isinstance(error, Terminated) else 130
    except UserError as error:
        print(f"st-contrastive: {error}", file=sys.stderr)
        return 2
    return code
