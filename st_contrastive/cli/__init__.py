"""The command line: ``st-contrastive`` and ``python -m st_contrastive``."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, nullcontext, redirect_stdout
from io import TextIOWrapper

from st_contrastive import __version__

# These modules import torch only when a command runs, because it takes seconds and --help does not need it.
from st_contrastive.cli import describe, evaluate, recipes, search, train, translate
from st_contrastive.cli._quiet import quiet
from st_contrastive.cli._user_errors import UserError, as_options, did_you_mean

_COMMANDS = (train, describe, evaluate, search, recipes, translate)
#: An option as typed, up to a "=". Any other text that begins with dashes is a query.
_OPTION = re.compile(r"^--([a-zA-Z][\w-]*)(?==|$)")
#: Exit code for a closed output pipe: 128 + SIGPIPE, as in shells.
_CLOSED_PIPE = 141


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of a command line. Every option may be written with dashes: ``--batch-size`` is ``--batch_size``."""
    parser = argparse.ArgumentParser(
        prog="st-contrastive",
        description="Train and evaluate sentence embeddings without labels: SimCSE, ConIsI, Twins and InfoCSE.",
        epilog="Help on a command: st-contrastive COMMAND --help.",
        allow_abbrev=False,
    )
    if sum(word.partition("=")[0] == "--column" for word in argv) > 1:  # argparse would take the last one
        parser.error("--column appears twice: name both columns in one option, as in --column title,body")
    if argv[:1] == ["train"]:
        return train.parse(_underscored(argv[1:]))
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_parser(commands)
    if not argv or argv[0] not in commands.choices:
        return parser.parse_args(argv)
    command_parser = commands.choices[argv[0]]
    options = {name for action in command_parser._actions for name in action.option_strings}
    words = _underscored(argv[1:], options)
    typed = words[: words.index("--")] if "--" in words else words
    if unknown := [
        word
        for word in typed
        if _OPTION.match(word) and not re.search(r"\s", word) and word.partition("=")[0] not in options
    ]:
        nearest = did_you_mean(_underscored(unknown)[0], options)
        if not nearest and argv[0] == "search":
            nearest = " Put a query that begins with dashes at the end, after a bare --."
        command_parser.error(f"unknown option {unknown[0]}.{nearest}")
    parsed, rest = parser.parse_known_args([argv[0], *words])
    if rest:
        command_parser.error(f"{rest[0]!r} is not expected here: write names and queries before the options")
    return parsed


def _underscored(words: Sequence[str], known: Iterable[str] | None = None) -> list[str]:
    """The words, with underscores in the names of known options, or of all. Words after "--" are unchanged."""
    end = words.index("--") if "--" in words else len(words)
    spelled = []
    for word in words[:end]:
        changed = _OPTION.sub(lambda name: f"--{name[1].replace('-', '_')}", word, count=1)
        spelled.append(changed if known is None or changed.partition("=")[0] in known else word)
    return [*spelled, *words[end:]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code.

    The code is 0, 1 if a run collapsed, 2 for bad input, which is reported in one line on stderr, 130 after Ctrl-C, or
    141 if the output pipe is closed, as by ``| head``. If there are several processes, only the first one prints.
    """
    argv = sys.argv[1:] if argv is None else argv
    is_first = os.environ.get("RANK", "0") == "0"
    with ExitStack() as stack:
        if not is_first:
            stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w", encoding="utf-8"))))
        elif isinstance(sys.stdout, TextIOWrapper):  # the terminal may not be able to show a character
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            args = parse(argv)
            with nullcontext() if getattr(args, "verbose", False) else quiet(warnings_shown=is_first):
                code: int = args.run(args)
            sys.stdout.flush()
        except KeyboardInterrupt:
            hint = "; --resume_from_checkpoint true resumes from a checkpoint" if argv[:1] == ["train"] else ""
            print(f"st-contrastive: stopped{hint}", file=sys.stderr)
            return 130
        except BrokenPipeError:
            _discard_output()
            return _CLOSED_PIPE
        except UserError as error:
            if isinstance(error.__cause__, BrokenPipeError):
                _discard_output()
                return _CLOSED_PIPE
            # If only one of several processes fails, say which.
            rank = "" if is_first else f" (process {os.environ['RANK']})"
            print(f"st-contrastive{rank}: {as_options(str(error))}", file=sys.stderr, flush=True)
            return 2
    return code


def _discard_output() -> None:
    """Discard the rest of the output. Python would report the closed pipe again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
