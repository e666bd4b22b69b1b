"""``st-contrastive describe``: reports how a model would read a file, before training."""

from __future__ import annotations

import argparse

from st_contrastive.cli._user_errors import parse_name, user_error


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "describe",
        help="report on a file before training",
        description="Print how many rows train would use or drop, how many texts are truncated or have the same tokens "
        "as another text, the share of unknown tokens, and three examples.",
    )
    parser.add_argument("data", type=parse_name, metavar="FILE", help="as for train --data")
    parser.add_argument("--model", required=True, type=parse_name, metavar="NAME", help="folder or hub name")
    for option in ("column", "pairs", "segment"):
        parser.add_argument(f"--{option}", type=parse_name, metavar="NAME", help="as for train")
    parser.add_argument("--prompt", metavar="TEXT", help="prompt to put before each text, as in training")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read the file as train does, and print a report."""
    from st_contrastive import inputs, recipes

    options = {option: getattr(args, option) for option in ("column", "pairs", "segment") if getattr(args, option)}
    with user_error(OSError, TypeError, ValueError):
        texts = recipes.read_texts(args.data, **options)
        print(inputs.describe(texts, recipes.load_model(args.model), prompt=args.prompt))
    return 0
