"""``st-contrastive evaluate``: a model to a table of scores."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_contrastive.cli import _geometry
from st_contrastive.cli._arguments import POOLINGS, UserError, name, whole
from st_contrastive.cli._quiet import add_verbose
from st_contrastive.cli._saving import report_file, resolved

if TYPE_CHECKING:
    from st_contrastive.evaluation import Encoder, Report, STSPairs

SUITES = ("sts", "transfer", "retrieval", "in-domain", "geometry")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "evaluate",
        help="score a model",
        description="Score a model. sts: Spearman correlation of cosine similarity, all subsets of a set at once, as "
        "the papers do. transfer: SentEval's tasks by logistic regression. retrieval: nDCG@10 and recall on sets in "
        "BEIR's form. in-domain: section 6.2 of InfoCSE, on the STS Benchmark's test pairs. geometry: alignment, "
        "uniformity and mutual information, on its dev pairs; Table 4 of the Twins paper is --temperature, --min-score "
        "and --translations. --mteb: MTEB's own tasks.",
    )
    parser.add_argument("model", type=name, metavar="MODEL", help="folder or hub name of a SentenceTransformer")
    parser.add_argument(
        "--suite", nargs="+", choices=SUITES, help="what to score; default: sts, or nothing beside --mteb"
    )
    parser.add_argument(
        "--mteb", nargs="+", metavar="TASK", help="tasks of MTEB, such as STSBenchmark STS12 SICK-R SciFact"
    )
    parser.add_argument(
        "--eval-data",
        metavar="DIR",
        help="a folder with folders sts, transfer and retrieval, or that one of them that is asked for; each holds one "
        "folder a set (sts/stsb/test.jsonl.gz). Without, sts and --mteb take the hub's sets",
    )
    parser.add_argument("--splits", nargs="+", default=["dev", "test"], metavar="NAME", help="sts: default: dev test")
    parser.add_argument(
        "--setting",
        choices=["all", "mean", "wmean"],
        default="all",
        help="sts: all pairs of a set at once, as the papers, or the (weighted) mean over its subsets; default: all",
    )
    parser.add_argument("--folds", type=whole, default=10, metavar="N", help="transfer: default: 10, as SentEval")
    parser.add_argument(
        "--pooling",
        choices=POOLINGS,
        default="keep",
        help="score the encoder under another pooling; first-last is the mean of the first and last layers",
    )
    parser.add_argument(
        "--head",
        action="store_true",
        help="score the model under the head that its loss trained on top; MODEL is a checkpoint (--checkpoints). "
        "Without, it is scored as it will be used (InfoCSE, Table 9: cls, and cls_before_pooler)",
    )
    parser.add_argument(
        "--whiten", type=name, metavar="FILE", help="whiten the vectors, by mean and covariance of these sentences"
    )
    parser.add_argument("--whiten-dimensions", type=whole, metavar="N", help="and keep that many; default: all")
    _geometry.add_options(parser)
    parser.add_argument("--max-length", type=whole, metavar="N", help="tokens a text; default: the model's")
    parser.add_argument("--batch-size", type=whole, default=64, metavar="N", help="default: 64")
    parser.add_argument("--json", type=name, metavar="FILE", help="write the scores there too")
    parser.add_argument(
        "--mteb-output", type=name, metavar="DIR", help="write MTEB's own result files there; what is there is not run"
    )
    add_verbose(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Score, print, write."""
    from st_contrastive.evaluation import EvaluationDataError

    target = report_file("--json", args.json) if args.json else None
    suites = args.suite or ([] if args.mteb else ["sts"])
    if args.mteb_output:
        if not args.mteb:
            raise UserError("--mteb-output needs --mteb TASK.")
        resolved("--mteb-output", args.mteb_output)
    if args.whiten_dimensions and not args.whiten:
        raise UserError("--whiten-dimensions needs --whiten FILE.")
    _geometry.check_together(args, suites)
    try:
        # Folders are looked into before the model is loaded.
        runs = {suite: _suite(suite, args) for suite in suites}
    except EvaluationDataError as error:
        raise UserError(f"--eval-data: {error}") from error
    model = _model(args)
    if args.mteb:
        runs["mteb"] = lambda model: _mteb(model, args)
    reports, failed = {}, []
    for suite, score in runs.items():
        try:
            reports[suite] = _with_notes(score(model), args)
        except EvaluationDataError as error:  # what the other suites found is not lost
            failed.append(f"--eval-data: {suite}: {error}" if len(runs) > 1 else f"--eval-data: {error}")
        except UserError as error:
            failed.append(str(error))
    if reports:
        print("\n\n".join(report.table() for report in reports.values()))
    if target is not None and reports:
        try:
            _together(args.model, reports).write(target)
        except OSError as error:
            raise UserError(f"--json {args.json} can't be written: {error.strerror or error}.") from error
    if failed:
        raise UserError(" ".join(failed))
    return 0


def _suite(suite: str, args: argparse.Namespace) -> Callable[[Encoder], Report]:
    """What scores a model on the suite; its folder is there."""
    from st_contrastive import evaluation

    folder = _folder(suite, args.eval_data)
    options: dict[str, Any] = {"name": args.model, "batch_size": args.batch_size, "progress": True}
    if suite == "sts":
        if folder is not None:
            evaluation.sts_files(folder, args.splits)
        return lambda model: evaluation.evaluate_sts(model, folder, splits=args.splits, setting=args.setting, **options)
    if folder is None:
        raise UserError(f"--suite {suite} needs --eval-data DIR: its sets are not taken from the hub.")
    if suite == "transfer":
        return lambda model: evaluation.evaluate_transfer(model, folder, folds=args.folds, **options)
    if suite == "retrieval":
        return lambda model: evaluation.evaluate_retrieval(model, folder, **options)
    if suite == "in-domain":
        pairs = _benchmark(folder, "test")
        return lambda model: evaluation.evaluate_in_domain_retrieval(model, pairs, **options)
    return _geometry.scorer(_benchmark(folder, "dev"), args, options)


def _folder(suite: str, data: str | None) -> Path | None:
    """The suite's own folder in --eval-data, or --eval-data itself."""
    if data is None:
        return None
    own = Path(data, suite if suite in ("sts", "transfer", "retrieval") else "sts")
    return own if own.is_dir() else Path(data)


def _benchmark(folder: Path, split: str) -> STSPairs:
    from st_contrastive.evaluation.sts import plain, read_split, sts_files

    for (task, _), files in sts_files(folder, [split]).items():
        if plain(task) == "stsb":
            return read_split(files)
    raise UserError(f"--eval-data {folder} holds no stsb/{split}.jsonl (.gz), the STS Benchmark's pairs.")


def _model(args: argparse.Namespace) -> Any:
    """The model as it is to be read."""
    from st_contrastive.cli._models import cut_texts, load_model
    from st_contrastive.evaluation import FirstLastAverage, Whitened
    from st_contrastive.inputs import CorpusError, read_corpus
    from st_contrastive.training import LossStateError, with_trained_head

    if args.head and args.pooling != "keep":
        raise UserError(f"--head was trained under the model's own pooling: leave --pooling {args.pooling} out.")
    if args.mteb and (args.pooling == "first-last" or args.whiten):
        raise UserError("--mteb takes a SentenceTransformer as it is: leave --pooling first-last and --whiten out.")
    pooling = "mean" if args.pooling == "first-last" else args.pooling
    model: Any = load_model(args.model, pooling=pooling)
    if args.head:
        try:
            model = with_trained_head(model, args.model)
        except (OSError, LossStateError) as error:
            raise UserError(f"--head: {error}") from error
    if args.max_length is not None:
        cut_texts(model, args.model, args.max_length)
    if args.pooling == "first-last":
        model = FirstLastAverage(model)
    if args.whiten:
        try:
            sentences = read_corpus(args.whiten).sentences
            return Whitened(model, sentences, dimensions=args.whiten_dimensions, batch_size=args.batch_size)
        except (CorpusError, ValueError) as error:
            raise UserError(f"--whiten: {error}") from error
    return model


def _mteb(model: Any, args: argparse.Namespace) -> Report:
    from st_contrastive.evaluation import evaluate_mteb

    try:
        return evaluate_mteb(
            model, args.mteb, args.mteb_output, name=args.model, data=args.eval_data, batch_size=args.batch_size
        )
    except ImportError as error:
        raise UserError(f"--mteb: {error}") from error
    except OSError as error:
        raise UserError(f"--mteb-output {args.mteb_output} can't be written: {error.strerror or error}.") from error


def _with_notes(report: Report, args: argparse.Namespace) -> Report:
    """The report, with how the model was read where that is not as it is used."""
    note = f"{args.model} is scored under the head that its loss trained on top."
    return replace(report, notes=(*report.notes, note)) if args.head else report


def _together(model: str, reports: dict[str, Report]) -> Report:
    """One report of all suites; one alone as it is."""
    from st_contrastive.evaluation import Report

    if len(reports) == 1:
        return next(iter(reports.values()))
    return Report(
        model,
        tuple(score for report in reports.values() for score in report.scores),
        {suite: report.settings for suite, report in reports.items()},
        tuple(dict.fromkeys(note for report in reports.values() for note in report.notes)),
    )
