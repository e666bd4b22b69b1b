"""``st-contrastive evaluate``: score a model on suites of tasks."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_contrastive.cli import _geometry
from st_contrastive.cli._arguments import POOLINGS, UserError, name, option_name, several, user_error, whole, writing
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
        usage="st-contrastive evaluate MODEL [--suite NAME ...] [--mteb TASK ...] [--eval-data DIR] [options]",
        description="Score a model. Suites: sts, Spearman correlation of cosine similarities; transfer, SentEval's "
        "classification tasks; retrieval, nDCG@10 and recall on sets in BEIR's format; in-domain, retrieval among the "
        "STS Benchmark's test sentences (InfoCSE, section 6.2); geometry, alignment, uniformity and mutual information "
        "on its dev pairs (Twins, table 4).",
    )
    parser.add_argument("model", type=name, metavar="MODEL", help="folder or hub name of a SentenceTransformer")
    group = parser.add_argument_group("what to score")
    group.add_argument("--suite", nargs="+", choices=SUITES, metavar="NAME", help=f"{', '.join(SUITES)}; default: sts")
    group.add_argument("--mteb", nargs="+", metavar="TASK", help="MTEB's own tasks, such as STSBenchmark or SciFact")
    group.add_argument(
        "--eval-data",
        type=name,
        metavar="DIR",
        help="folder that holds sts/, transfer/ and retrieval/, or one of these, with files such as "
        "sts/stsb/test.jsonl.gz; without it, sts and --mteb load their data from the hub",
    )
    group.add_argument("--splits", nargs="+", metavar="NAME", help="sts: splits to score; default: dev test")
    group.add_argument(
        "--setting",
        choices=["all", "mean", "wmean"],
        metavar="NAME",
        help="sts: all pairs of a set at once, or the mean or weighted mean (wmean) over its subsets; default: all",
    )
    group.add_argument("--folds", type=several, metavar="N", help="transfer: folds of cross-validation; default: 10")
    _geometry.add_options(parser)
    group = parser.add_argument_group("how to encode")
    poolings = (*POOLINGS, "first-last")  # the last one is the mean of the first and last layers
    group.add_argument(
        "--pooling",
        choices=poolings,
        default="keep",
        metavar="NAME",
        help=f"{', '.join(poolings)}; keep is the model's own, first-last the mean of the first and last layers; "
        "default: keep",
    )
    group.add_argument(
        "--head", action="store_true", help="apply the loss's trained head; MODEL must be one of train's --checkpoints"
    )
    group.add_argument("--whiten", type=name, metavar="FILE", help="whiten the embeddings by these sentences")
    group.add_argument("--whiten-dimensions", type=whole, metavar="N", help="dimensions kept by --whiten; default: all")
    group.add_argument("--max-length", type=whole, metavar="N", help="tokens per text; default: the model's")
    group.add_argument("--batch-size", type=whole, default=64, metavar="N", help="texts encoded at a time; default: 64")
    group = parser.add_argument_group("output")
    group.add_argument("--json", type=name, metavar="FILE", help="also write the scores to this file")
    group.add_argument(
        "--mteb-output", type=name, metavar="DIR", help="keep MTEB's result files; tasks that are there are not rerun"
    )
    add_verbose(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Score the model, print the scores and write them."""
    from st_contrastive.evaluation import EvaluationDataError

    target = report_file("--json", args.json) if args.json else None
    suites = args.suite or ([] if args.mteb else ["sts"])
    if args.mteb_output:
        if not args.mteb:
            raise UserError("--mteb-output needs --mteb TASK.")
        resolved("--mteb-output", args.mteb_output)
    if args.whiten_dimensions and not args.whiten:
        raise UserError("--whiten-dimensions needs --whiten FILE.")
    for option, suite in {"splits": "sts", "setting": "sts", "folds": "transfer", **_geometry.OPTIONS}.items():
        if getattr(args, option) is not None and suite not in suites:
            raise UserError(f"{option_name(option)} goes with --suite {suite}.")
    _geometry.check_together(args)
    with user_error(EvaluationDataError, OSError, prefix="--eval-data: "):  # found before the model is loaded
        runs = {suite: _suite(suite, args) for suite in suites}
    if args.mteb:
        runs["mteb"] = _mteb_tasks(args)
    model, invented = _model(args)
    reports: dict[str, Report] = {}
    failed = []
    for suite, score in runs.items():
        try:
            report = _as_read(score(model), args, invented)
        except EvaluationDataError as error:  # the scores of the other suites are kept
            failed.append(f"--eval-data: {suite}: {error}" if len(runs) > 1 else f"--eval-data: {error}")
            continue
        except UserError as error:
            failed.append(str(error))
            continue
        print(("\n" if reports else "") + report.table(), flush=True)
        reports[suite] = report
        if target is not None:  # at once, for a later suite may be interrupted
            with writing(f"--json {args.json}"):
                _merged(args.model, reports).write(target)
    if failed:
        raise UserError(" ".join(failed))
    return 0


def _suite(suite: str, args: argparse.Namespace) -> Callable[[Encoder], Report]:
    """A function that scores a model on the suite; its data is looked for now."""
    from st_contrastive import evaluation

    folder = _folder(suite, args.eval_data)
    options: dict[str, Any] = {"name": args.model, "batch_size": args.batch_size, "progress": True}
    if suite == "sts":
        splits = args.splits or ["dev", "test"]
        if folder is not None:
            evaluation.sts_files(folder, splits)
        return lambda model: evaluation.evaluate_sts(
            model, folder, splits=splits, setting=args.setting or "all", **options
        )
    if folder is None:
        raise UserError(f"--suite {suite} needs --eval-data DIR: its data is not loaded from the hub.")
    if suite == "transfer":
        return lambda model: evaluation.evaluate_transfer(model, folder, folds=args.folds or 10, **options)
    if suite == "retrieval":
        return lambda model: evaluation.evaluate_retrieval(model, folder, **options)
    if suite == "in-domain":
        pairs = _benchmark(folder, "test")
        return lambda model: evaluation.evaluate_in_domain_retrieval(model, pairs, **options)
    return _geometry.scorer(_benchmark(folder, "dev"), args, options)


def _folder(suite: str, data: str | None) -> Path | None:
    """The suite's folder in --eval-data, or --eval-data itself."""
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


def _model(args: argparse.Namespace) -> tuple[Any, str | None]:
    """The model, with the pooling, head and whitening of the options; and the pooling that it got without asking."""
    from st_contrastive.cli._columns import read_text
    from st_contrastive.cli._models import cut_texts, load_model, own_pooling
    from st_contrastive.evaluation import FirstLastAverage, Whitened
    from st_contrastive.training import LossStateError, with_trained_head

    if args.head and args.pooling != "keep":
        raise UserError(f"--head was trained under the model's own pooling: leave --pooling {args.pooling} out.")
    if args.mteb and (args.pooling == "first-last" or args.whiten):
        raise UserError("--mteb takes a SentenceTransformer as it is: leave --pooling first-last and --whiten out.")
    pooling = "mean" if args.pooling == "first-last" else args.pooling
    model: Any = load_model(args.model, pooling=pooling, option="MODEL")
    invented = own_pooling(args.model, model) if pooling == "keep" else None
    if args.translations:  # TwinsLoss takes no float16 weights
        model.float()
    if args.head:
        with user_error(OSError, LossStateError, prefix="--head: "):
            model = with_trained_head(model, args.model)
    if args.max_length is not None:
        cut_texts(model, args.model, args.max_length)
    if args.pooling == "first-last":
        model = FirstLastAverage(model)
    if args.whiten:
        sentences = read_text("--whiten", args.whiten)
        with user_error(ValueError, prefix="--whiten: "):
            model = Whitened(model, sentences, dimensions=args.whiten_dimensions, batch_size=args.batch_size)
    return model, invented


def _mteb_tasks(args: argparse.Namespace) -> Callable[[Any], Report]:
    """A function that scores a model on MTEB's tasks, which are looked for now."""
    if find_spec("mteb") is None:
        raise UserError("--mteb needs the package mteb: install it, or this package with its extra 'eval'.")
    from st_contrastive.evaluation import EvaluationDataError, evaluate_mteb
    from st_contrastive.evaluation.mteb_tasks import mteb_task

    with user_error(EvaluationDataError, prefix="--mteb: "):
        for task in args.mteb:
            mteb_task(task)

    def score(model: Any) -> Report:
        with writing(f"--mteb-output {args.mteb_output}") if args.mteb_output else nullcontext():
            return evaluate_mteb(
                model, args.mteb, args.mteb_output, name=args.model, data=args.eval_data, batch_size=args.batch_size
            )

    return score


def _as_read(report: Report, args: argparse.Namespace, invented: str | None) -> Report:
    """The report with the options that say how the model was read, and notes on a head or a pooling not its own."""
    options = ("pooling", "head", "whiten", "whiten_dimensions", "max_length")
    read = {option: getattr(args, option) for option in options if getattr(args, option) not in ("keep", None, False)}
    notes = []
    if args.head:
        notes.append(f"{args.model} is scored under the head that its loss trained.")
    if invented is not None:
        read["pooling"] = invented
        notes.append(
            f"{args.model} is a checkpoint without a pooling of its own, and scored under sentence-transformers' "
            f"choice ({invented}): --pooling names another."
        )
    return replace(report, settings={**report.settings, **read}, notes=(*report.notes, *notes))


def _merged(model: str, reports: dict[str, Report]) -> Report:
    """The only report, or one of all suites."""
    from st_contrastive.evaluation import Report

    if len(reports) == 1:
        return next(iter(reports.values()))
    return Report(
        model,
        tuple(score for report in reports.values() for score in report.scores),
        {suite: report.settings for suite, report in reports.items()},
        tuple(dict.fromkeys(note for report in reports.values() for note in report.notes)),
    )
