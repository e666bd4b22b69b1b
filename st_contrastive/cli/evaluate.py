"""``st-contrastive evaluate``: score models, and compare them."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_contrastive._checks import first_line
from st_contrastive.cli._arguments import UserError, name, several, user_error, whole
from st_contrastive.cli._quiet import add_verbose
from st_contrastive.methods import POOLINGS

if TYPE_CHECKING:
    from st_contrastive.evaluation import CorpusEvaluator, Judgement, Report, STSPairs

#: What a suite takes and gives: the model, its name, and its report.
_Score = Callable[[Any, str], "Report"]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "evaluate",
        help="score models, and compare them",
        description="Score one model, or compare several with the first. If you don't say what to score, MTEB's "
        "STSBenchmark is run (extra: eval).",
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
    drawn = "draw similarities against gold scores, of --geometry or else of --sts"
    group.add_argument("--plot", type=path, metavar="FILE", help=drawn)
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
    from st_contrastive.evaluation import EvaluationDataError, Report, compare, plot, write
    from st_contrastive.evaluation.report import short_names

    for option in ("json", "plot"):
        _require_writable(f"--{option}", getattr(args, option))
    if not any((args.sts, args.transfer, args.in_domain, args.geometry, args.corpus, args.mteb, args.plot)):
        args.mteb = ["STSBenchmark"]
    suites = _suites(args)  # bad data is found before a model is loaded
    plotted = _plotted_pairs(args) if args.plot else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each warns when it is scored
        for model_name in args.models[1:]:  # a wrong name is found before the first is scored
            load_model(model_name, pooling=args.pooling, max_length=args.max_length)
    reports, models, failed = [], {}, []
    for model_name in args.models:
        model = load_model(model_name, pooling=args.pooling, max_length=args.max_length)
        if args.plot:
            models[model_name] = model
        settings: dict[str, Any] = {"pooling": args.pooling, "max_length": model.max_seq_length}
        parts = []
        for option, score in suites.items():
            try:
                parts.append(score(model, model_name))
            except (EvaluationDataError, ImportError, OSError) as error:  # the other suites' scores are kept
                failed.append(f"{option}: {first_line(error)}")
        settings |= {str(part.settings["suite"]): part.settings for part in parts}
        scores = tuple(score for part in parts for score in part.scores)
        reports.append(Report(model_name, scores, settings, tuple(note for part in parts for note in part.notes)))
        if args.json:  # at once: a later model may be interrupted
            with user_error(OSError, prefix=f"--json {args.json}: "):
                write(reports, args.json)
    if any(report.scores for report in reports):
        print(compare(reports), flush=True)
    if plotted is not None:
        with user_error(ImportError, OSError, prefix="--plot: "):
            named = dict(zip(short_names([*models]), models.values(), strict=True))
            plot(args.plot, named, plotted, batch_size=args.batch_size)
        print(f"Drawn in {args.plot}.")
    if failed:
        raise UserError(" ".join(dict.fromkeys(failed)))
    return 0


def _suites(args: argparse.Namespace) -> dict[str, _Score]:
    """A function that scores a model, by the option that asks for it. The data is read or looked for now."""
    from st_contrastive import evaluation, recipes

    common: dict[str, Any] = {"batch_size": args.batch_size}
    suites: dict[str, _Score] = {}
    if args.sts:
        with user_error(evaluation.EvaluationDataError, prefix="--sts: "):
            evaluation.sts_sets(args.sts, args.splits)
        suites["--sts"] = lambda model, name: evaluation.evaluate_sts(
            model, args.sts, name=name, splits=args.splits, progress=True, **common
        )
    if args.transfer:
        with user_error(evaluation.EvaluationDataError, prefix="--transfer: "):
            evaluation.read_transfer(args.transfer)
        suites["--transfer"] = lambda model, name: evaluation.evaluate_transfer(
            model, args.transfer, name=name, folds=args.folds, progress=True, **common
        )
    if args.in_domain:
        searched = _pairs("--in_domain", args.in_domain)
        suites["--in_domain"] = lambda model, name: evaluation.evaluate_in_domain_retrieval(
            model, searched, name=name, **_named(args.in_domain), **common
        )
    if args.geometry:
        scored, own = _pairs("--geometry", args.geometry), {**_named(args.geometry), **common}
        suites["--geometry"] = lambda model, name: evaluation.evaluate_geometry(model, scored, name=name, **own)
        if len(scored.positives()[1]) > 1:
            suites["--geometry (information)"] = lambda model, name: evaluation.evaluate_information(
                model, scored, name=name, **own
            )
    if args.corpus:
        with user_error(OSError, TypeError, ValueError, prefix=f"--corpus {args.corpus}: "):
            rows = recipes.read_texts(args.corpus, args.column)
            documents = ["\n\n".join(row.values()) for row in rows]  # a title and a body are one
            evaluator = evaluation.CorpusEvaluator(documents, language=args.language, batch_size=args.batch_size)
        judged: list[Judgement] = []  # the first model's, with which the others are compared
        suites["--corpus"] = lambda model, name: _judged(evaluator, model, name, judged, **_named(args.corpus, "train"))
    if args.mteb:
        suites["--mteb"] = lambda model, name: evaluation.evaluate_mteb(model, args.mteb, name=name, **common)
    return suites


def _pairs(option: str, file: str) -> STSPairs:
    from st_contrastive.evaluation import EvaluationDataError, read_sts

    with user_error(EvaluationDataError, prefix=f"{option}: "):
        return read_sts(file)


def _named(source: str, on_hub: str = "dev") -> dict[str, Any]:
    """The set and the split: stsb and dev of ``sts/stsb/dev.jsonl.gz``; of another file, its name and "all"."""
    place = Path(source).resolve()
    stem = place.name.partition(".")[0]
    split = {"validation": "dev", "trial": "dev"}.get(stem, stem)
    if place.exists() and split not in ("train", "dev", "test"):
        return {"task": stem, "split": "all"}
    return {"task": place.parent.name, "split": split} if place.exists() else {"task": stem, "split": on_hub}


def _judged(
    evaluator: CorpusEvaluator, model: Any, model_name: str, judged: list[Judgement], task: str, split: str
) -> Report:
    from st_contrastive.evaluation import Report, Score, bm25, compare_paired

    judgement = evaluator.judge(model)
    values, notes = {"ndcg@10": judgement.ndcg}, []
    if judgement.mixed_ndcg is None:
        notes.append("What mixing with BM25 brings: pip install 'st_contrastive[search]'.")
    else:
        values["ndcg@10 with bm25"] = judgement.mixed_ndcg
        notes.append(f"with bm25: {bm25.WEIGHT} z(similarity) + {1 - bm25.WEIGHT:.1f} z(BM25) of each query.")
    if judged:
        comparison = compare_paired(judged[0], judgement)
        notes.append(f"{comparison} Against the first model: {comparison.decision}.")
    judged.append(judgement)
    scores = tuple(Score(task, split, metric, value, len(evaluator.queries)) for metric, value in values.items())
    return Report(model_name, scores, {"suite": "corpus", "documents": len(evaluator.answers)}, tuple(notes))


def _require_writable(option: str, file: str | None) -> None:
    """Refuse a file that can't be written before hours are spent on its content."""
    if file is None:
        return
    if Path(file).is_dir() or not Path(file).resolve().parent.is_dir():
        raise UserError(f"{option} {file}: name a file in a folder that exists.")
    if option == "--plot" and Path(file).suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UserError(f"--plot {file}: the name must end in .png, .pdf or .svg.")


def _plotted_pairs(args: argparse.Namespace) -> STSPairs:
    from st_contrastive.evaluation import sts_sets

    if args.geometry:
        return _pairs("--geometry", args.geometry)
    sets = sts_sets(args.sts, args.splits) if args.sts else {}
    pairs = sets.get(("stsb", "dev")) or sets.get(("stsb", "test"))
    if pairs is None:
        raise UserError("--plot draws graded pairs: name them with --geometry, or an --sts folder that holds stsb.")
    return pairs
