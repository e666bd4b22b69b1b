"""The command line: ``st-contrastive`` and ``python -m st_contrastive``."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, redirect_stdout
from io import TextIOWrapper

from st_contrastive import __version__

# None of these imports torch, which takes seconds: commands import it when they run, and --help does not need it.
from st_contrastive.cli import describe, evaluate, recipes, search, train, translate
from st_contrastive.cli._arguments import UserError, as_options
from st_contrastive.cli._quiet import quiet


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of a command line. ``--batch-size`` is ``--batch_size``, and so for every option."""
    argv = [re.sub(r"^--[^=]+", lambda name: f"--{name[0][2:].replace('-', '_')}", word) for word in argv]
    parser = argparse.ArgumentParser(
        prog="st-contrastive",
        description="Train and evaluate sentence embeddings without labels: SimCSE, ConIsI, Twins and InfoCSE.",
        epilog="Help on a command: st-contrastive COMMAND --help.",
        allow_abbrev=False,
    )
    if sum(word.partition("=")[0] == "--column" for word in argv) > 1:  # of which argparse takes the last
        parser.error("--column is given twice: name both in one, as in --column title,body")
    if argv[:1] == ["train"]:
        return train.parse(argv[1:])
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (train, describe, evaluate, search, recipes, translate):
        command.add_parser(commands)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. The exit code is 0, 2 with one line on the error stream for bad input, or 1 if a run collapsed.

    Of several processes, the first alone prints.
    """
    argv = sys.argv[1:] if argv is None else argv
    first = os.environ.get("RANK", "0") == "0"
    with ExitStack() as stack:
        if not first:
            stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w", encoding="utf-8"))))
        elif isinstance(sys.stdout, TextIOWrapper):  # a name that the terminal can't print
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            args = parse(argv)
            with nullcontext() if getattr(args, "verbose", False) else quiet(warnings_shown=first):
                code: int = args.run(args)
        except KeyboardInterrupt:
            hint = "; --resume_from_checkpoint true goes on from a checkpoint" if argv[:1] == ["train"] else ""
            print(f"st-contrastive: stopped{hint}", file=sys.stderr)
            return 130
        except UserError as error:
            # Of several processes, one alone may fail.
            rank = "" if first else f" (process {os.environ['RANK']})"
            print(f"st-contrastive{rank}: {as_options(str(error))}", file=sys.stderr, flush=True)
            return 2
    return code
