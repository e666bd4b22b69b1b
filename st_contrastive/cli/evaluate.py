"""``st-contrastive evaluate``: a saved model to a table of scores."""

from __future__ import annotations

import argparse

from st_contrastive.cli._arguments import UserError, name, whole
from st_contrastive.cli._saving import report_file


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "evaluate",
        help="score a saved model",
        description="Score a model: Spearman correlation of cosine similarity, all subsets of a set at once.",
    )
    parser.add_argument("model", type=name, metavar="MODEL", help="folder or hub name of a SentenceTransformer")
    parser.add_argument("--suite", choices=["sts"], default="sts", help="what to score; default: sts")
    parser.add_argument(
        "--data",
        required=True,
        metavar="DIR",
        help="one folder a set, with dev and test as .jsonl or .jsonl.gz of sentence1, sentence2, score",
    )
    parser.add_argument("--splits", nargs="+", default=["dev", "test"], metavar="NAME", help="default: dev test")
    parser.add_argument(
        "--pooling", choices=["cls", "mean", "keep"], default="keep", help="score the encoder under another pooling"
    )
    parser.add_argument("--batch-size", type=whole, default=64, metavar="N", help="default: 64")
    parser.add_argument("--json", type=name, metavar="FILE", help="write the scores there too")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Score, print, write."""
    from st_contrastive.cli._common import load_model
    from st_contrastive.evaluation import STSError, evaluate_sts, sts_files

    target = report_file("--json", args.json) if args.json else None
    try:
        sts_files(args.data, args.splits)  # before the model is loaded
        model = load_model(args.model, pooling=args.pooling)
        report = evaluate_sts(
            model, args.data, name=args.model, splits=args.splits, batch_size=args.batch_size, progress=True
        )
    except STSError as error:
        raise UserError(f"--data: {error}") from error
    print(report.table())
    if target is not None:
        try:
            report.write(target)
        except OSError as error:
            raise UserError(f"--json {args.json} can't be written: {error.strerror or error}.") from error
    return 0
