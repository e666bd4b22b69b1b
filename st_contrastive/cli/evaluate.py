"""``st-contrastive evaluate``: score models, and compare them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_contrastive._checks import first_line
from st_contrastive.cli._arguments import UserError, name, several, user_error, whole
from st_contrastive.cli._quiet import add_verbose
from st_contrastive.methods import POOLINGS

if TYPE_CHECKING:
    from st_contrastive.evaluation import CorpusEvaluator, Judgement, Report

#: The options that each name something to score on.
_SUITES = ("sts", "transfer", "in_domain", "geometry", "corpus", "mteb")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="score models, and compare them",
        description="Score one model, or compare several with the first. Without an option of what to score, this runs "
        "MTEB's STSBenchmark (extra: eval).",
        epilog="PAIRS are graded pairs of sentences: a table (csv, tsv, jsonl, parquet) with the columns sentence1, "
        "sentence2 and score, a data set on the hub, such as sentence-transformers/stsb, or the word stsb.",
    )
    parser.add_argument("models", nargs="+", type=path, metavar="MODEL", help="folder or hub name")
    group = parser.add_argument_group("what to score")
    group.add_argument("--sts", type=path, metavar="DIR", help="STS sets: a folder with stsb/test.jsonl.gz, ...")
    group.add_argument(
        "--splits", type=names, default=["dev", "test"], metavar="A,B", help="of --sts; default: dev,test"
    )
    group.add_argument("--transfer", type=path, metavar="DIR", help="SentEval's tasks: a folder with mr/all.jsonl.gz")
    group.add_argument("--folds", type=several, default=10, metavar="N", help="folds of --transfer; default: 10")
    group.add_argument("--in_domain", type=path, metavar="PAIRS", help="does a sentence find the other of its pair?")
    group.add_argument("--geometry", type=path, metavar="PAIRS", help="alignment, uniformity, mutual information")
    group.add_argument("--corpus", type=path, metavar="FILE", help="does a sentence find its own document?")
    group.add_argument("--column", metavar="NAME", help="column of --corpus, or two: title,body")
    group.add_argument("--language", metavar="CODE", default="en", help="language of --corpus; default: en")
    group.add_argument("--mteb", type=names, metavar="A,B", help="MTEB's tasks from the hub, such as SciFact")
    group = parser.add_argument_group("how to encode")
    poolings = (*POOLINGS, "keep")  # its own
    group.add_argument(
        "--pooling", choices=poolings, default="keep", metavar="NAME", help="cls, mean, lasttoken; default: its own"
    )
    group.add_argument("--max_length", type=whole, metavar="N", help="tokens per text; default: the model's")
    group.add_argument("--batch_size", type=whole, default=64, metavar="N", help="texts encoded at a time; default: 64")
    group = parser.add_argument_group("output")
    group.add_argument("--json", type=path, metavar="FILE", help="also write the scores to this file")
    add_verbose(parser)
    parser.set_defaults(run=run)


def path(text: str) -> str:
    """A name or path, with the home directory in place of ``~``."""
    return os.path.expanduser(name(text))


def names(text: str) -> list[str]:
    """Names between commas."""
    return [name(part).strip() for part in text.split(",")]


def run(args: argparse.Namespace) -> int:
    """Score the models, print the scores and write them."""
    from st_contrastive.cli._models import load_model
    from st_contrastive.evaluation import Report, compare, write

    if args.json and (Path(args.json).is_dir() or not Path(args.json).resolve().parent.is_dir()):
        raise UserError(f"--json {args.json}: name a file in a folder that exists.")
    if not any(getattr(args, option) for option in _SUITES):
        args.mteb = ["STSBenchmark"]
    suites = {}
    for option in _SUITES:
        if getattr(args, option):
            with user_error(OSError, TypeError, ValueError, prefix=f"--{option}: "):
                suites[option] = _scorers(option, args)  # bad data is found before a model is loaded
    reports, failed = [], []
    for model_name in args.models:
        try:
            model = load_model(model_name, pooling=args.pooling, max_length=args.max_length)
        except UserError as error:
            failed.append(str(error))
            continue
        settings: dict[str, Any] = {"pooling": args.pooling, "max_length": model.max_seq_length}
        parts = []
        for option, scorers in suites.items():
            try:
                for score in scorers:
                    parts.append(score(model, name=model_name, batch_size=args.batch_size))
            except (ImportError, KeyError, OSError, ValueError) as error:  # the other suites' scores are kept
                failed.append(f"--{option}: {first_line(error)}")
        settings |= {str(part.settings["suite"]): part.settings for part in parts}
        scores = tuple(score for part in parts for score in part.scores)
        reports.append(Report(model_name, scores, settings, tuple(note for part in parts for note in part.notes)))
        if args.json:  # at once: a later model may be interrupted
            with user_error(OSError, prefix=f"--json {args.json}: "):
                write(reports, args.json)
    if any(report.scores for report in reports):
        print(compare(reports), flush=True)
    if failed:
        raise UserError(" ".join(dict.fromkeys(failed)))
    return 0


def _scorers(option: str, args: argparse.Namespace) -> list[Callable[..., Report]]:
    """What scores a model on the data of an option, which is read or looked for now."""
    from st_contrastive import evaluation
    from st_contrastive.cli._models import read_documents

    source = getattr(args, option)
    if option == "sts":
        evaluation.sts_sets(source, args.splits)
        return [partial(evaluation.evaluate_sts, folder=source, splits=args.splits)]
    if option == "transfer":
        evaluation.read_transfer(source)
        return [partial(evaluation.evaluate_transfer, folder=source, folds=args.folds)]
    if option == "corpus":
        evaluator = evaluation.CorpusEvaluator(read_documents(source, args.column), language=args.language)
        return [partial(_judged, evaluator=evaluator, judged=[], **_named(source, "train"))]
    if option == "mteb":
        return [partial(evaluation.evaluate_mteb, tasks=source)]
    pairs = evaluation.read_sts(source)
    suites: list[Callable[..., Report]] = [evaluation.evaluate_in_domain_retrieval]
    if option == "geometry":
        suites = [evaluation.evaluate_geometry]
        if len(pairs.positives()[1]) > 1:
            suites.append(evaluation.evaluate_information)
    return [partial(suite, pairs=pairs, **_named(source)) for suite in suites]


def _named(source: str, on_hub: str = "dev") -> dict[str, Any]:
    """The set and the split: stsb and dev of ``sts/stsb/dev.jsonl.gz``; of another file, its name and "all"."""
    file = Path(source).resolve()
    stem = file.name.partition(".")[0]
    split = {"validation": "dev", "trial": "dev"}.get(stem, stem)
    if file.exists() and split not in ("train", "dev", "test"):
        return {"task": stem, "split": "all"}
    return {"task": file.parent.name, "split": split} if file.exists() else {"task": stem, "split": on_hub}


def _judged(
    model: Any,
    *,
    evaluator: CorpusEvaluator,
    judged: list[Judgement],
    name: str,
    task: str,
    split: str,
    batch_size: int,
) -> Report:
    """The report of a corpus, on a model and on how it compares with the first, whose judgement ``judged`` holds."""
    from st_contrastive.evaluation import Report, Score, bm25, compare_paired

    evaluator.batch_size = batch_size
    judgement = evaluator.judge(model)
    values, notes = {"ndcg@10": judgement.ndcg}, []
    if judgement.mixed_ndcg is None:
        notes.append("What mixing with BM25 brings: pip install 'st_contrastive[search]'.")
    else:
        values["ndcg@10 with bm25"] = judgement.mixed_ndcg
        notes.append(f"with bm25: {bm25.WEIGHT} z(similarity) + {1 - bm25.WEIGHT:.1f} z(BM25) of each query.")
    if judged:
        comparison = compare_paired(judged[0], judgement)
        notes.append(f"Against the first model, {comparison.decision}. {comparison}")
    judged.append(judgement)
    scores = tuple(Score(task, split, metric, value, len(evaluator.queries)) for metric, value in values.items())
    return Report(name, scores, {"suite": "corpus", "documents": len(evaluator.answers)}, tuple(notes))
