"""``st-contrastive evaluate``: score models, and compare them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_contrastive._checks import first_line
from st_contrastive.cli._quiet import add_verbose
from st_contrastive.cli._user_errors import (
    UserError,
    number_above_one,
    parse_names,
    parse_path,
    positive_number,
    user_error,
)
from st_contrastive.poolings import POOLINGS

if TYPE_CHECKING:
    from st_contrastive.evaluation import CorpusEvaluator, Judgement, Report, STSPairs

#: Each of these options names data for scoring.
_SUITES = ("sts", "transfer", "in_domain", "geometry", "corpus", "mteb")
_GET_DATA = (
    "In a checkout, `python -m benchmarks.get_data data` fetches the papers' sets into data/sts and data/transfer."
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="score models, and compare them",
        description="Score one model, or compare several with the first. Without an option for the data, this runs "
        "MTEB's STSBenchmark (extra: eval).",
        epilog="PAIRS are graded pairs of sentences: a table (csv, tsv, jsonl, parquet) with the columns sentence1, "
        "sentence2 and score, a data set on the hub, such as sentence-transformers/stsb, or the word stsb.",
    )
    parser.add_argument("models", nargs="+", type=parse_path, metavar="MODEL", help="folder or hub name")
    group = parser.add_argument_group("data for scoring")
    group.add_argument("--sts", type=parse_path, metavar="DIR", help="STS sets: a folder with stsb/test.jsonl.gz, ...")
    group.add_argument(
        "--splits", type=parse_names, default=["dev", "test"], metavar="A,B", help="for --sts; default: dev,test"
    )
    group.add_argument(
        "--transfer", type=parse_path, metavar="DIR", help="SentEval's tasks: a folder with mr/all.jsonl.gz"
    )
    group.add_argument("--folds", type=number_above_one, default=10, metavar="N", help="for --transfer; default: 10")
    group.add_argument(
        "--in_domain", type=parse_path, metavar="PAIRS", help="how often a sentence retrieves its partner"
    )
    group.add_argument("--geometry", type=parse_path, metavar="PAIRS", help="alignment, uniformity, mutual information")
    group.add_argument(
        "--corpus",
        type=parse_path,
        metavar="FILE",
        help="your documents: how well sentences retrieve their own document",
    )
    group.add_argument("--column", metavar="NAME", help="column of --corpus, or two: title,body")
    group.add_argument("--language", metavar="CODE", default="en", help="language of --corpus; default: en")
    group.add_argument("--mteb", type=parse_names, metavar="A,B", help="MTEB tasks from the hub, such as SciFact")
    group = parser.add_argument_group("encoding")
    group.add_argument(
        "--pooling", choices=(*POOLINGS, "keep"), default="keep", metavar="NAME",
        help="cls, mean or lasttoken; default: the model's",
    )  # fmt: skip
    group.add_argument("--max_length", type=positive_number, metavar="N", help="tokens per text; default: the model's")
    group.add_argument(
        "--batch_size", type=positive_number, metavar="N", help="texts encoded at a time; default: 64, on a CPU 16"
    )
    group = parser.add_argument_group("output")
    group.add_argument("--json", type=parse_path, metavar="FILE", help="also write the scores to this file")
    group.add_argument(
        "--plot", type=parse_path, metavar="FILE", help="picture (.png, .pdf, .svg) of predicted similarity against "
        "gold score, for the pairs of --geometry or --in_domain, or the stsb test set of --sts",
    )  # fmt: skip
    group.add_argument(
        "--curve", type=parse_path, metavar="FILE", help="picture of the scores and the loss of a training run by "
        "step; each MODEL is the output folder of a run",
    )  # fmt: skip
    add_verbose(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Score the models, print the scores, and write the requested files."""
    from st_contrastive.cli.models import default_batch_size, load_model
    from st_contrastive.evaluation import Report, compare, write
    from st_contrastive.evaluation.report import short_names
    from st_contrastive.evaluation.sts import similarities

    for option in ("json", "plot", "curve"):
        _require_output_file(option, getattr(args, option))
    if args.curve:
        _draw_curves(args)
    if not any(getattr(args, option) for option in _SUITES):
        if args.curve and not args.plot:
            return 0
        args.mteb = ["STSBenchmark"]
    suites = {}
    for option in _SUITES:
        if getattr(args, option):
            with user_error(OSError, TypeError, ValueError, prefix=f"--{option}: "):
                suites[option] = _scorers(option, args)  # bad data is found before a model is loaded
    plotted, predicted = _plotted_pairs(args) if args.plot else None, {}
    reports, failed = [], []
    for model_name, short in zip(args.models, short_names(args.models), strict=True):
        model = None  # frees the previous model before the next one is loaded
        try:
            model = load_model(model_name, pooling=args.pooling, max_length=args.max_length)
        except UserError as error:
            failed.append(str(error))
            continue
        batch_size = args.batch_size or default_batch_size(model)
        settings: dict[str, Any] = {"pooling": args.pooling, "max_length": model.max_seq_length}
        parts = []
        for option, scorers in suites.items():
            try:
                for score in scorers:
                    parts.append(score(model, name=model_name, batch_size=batch_size))
            # Keeps the scores of the other suites and models. A RuntimeError may mean that memory is full.
            except (ImportError, KeyError, OSError, RuntimeError, ValueError) as error:
                failed.append(f"--{option}, {model_name}: {first_line(error)}")
        settings |= {str(part.settings["suite"]): part.settings for part in parts}
        scores = tuple(score for part in parts for score in part.scores)
        reports.append(Report(model_name, scores, settings, tuple(note for part in parts for note in part.notes)))
        if args.json:  # after each model, since the next one may be interrupted
            with user_error(OSError, prefix=f"--json {args.json}: "):
                write(reports, args.json)
        if plotted is not None:
            predicted[short] = similarities(model, plotted, batch_size=batch_size)[0]
    if any(report.scores for report in reports):
        print(compare(reports), flush=True)
    if plotted is not None and predicted:
        from st_contrastive.evaluation import plot_similarities

        with user_error(ImportError, OSError, ValueError, prefix="--plot: "):
            plot_similarities(args.plot, predicted, plotted)
        print(f"The picture is in {args.plot}.")
    if failed:
        raise UserError(" ".join(dict.fromkeys(failed)))
    return 0


def _require_output_file(option: str, file: str | None) -> None:
    if file and (Path(file).is_dir() or not Path(file).resolve().parent.is_dir()):
        raise UserError(f"--{option} {file}: name a file in a folder that exists.")
    if file and option != "json":
        from st_contrastive.evaluation.plots import require_plotting

        with user_error(ImportError, ValueError, prefix=f"--{option}: "):
            require_plotting(file)


def _draw_curves(args: argparse.Namespace) -> None:
    from st_contrastive.evaluation import plot_training
    from st_contrastive.evaluation.report import short_names

    with user_error(OSError, ValueError, prefix="--curve: "):
        plot_training(args.curve, dict(zip(short_names(args.models), args.models, strict=True)))
    print(f"The curve is in {args.curve}.")


def _plotted_pairs(args: argparse.Namespace) -> STSPairs:
    """The pairs of --geometry or --in_domain; otherwise a test set of --sts, stsb if possible."""
    from st_contrastive import evaluation

    if source := args.geometry or args.in_domain:
        return evaluation.read_sts(source)
    if args.sts:
        sets = evaluation.sts_sets(args.sts, args.splits)
        for wanted in (("stsb", "test"), ("stsb", "dev"), next(iter(sets))):
            if wanted in sets:
                return sets[wanted]
    raise UserError(
        "--plot needs graded pairs: name a file of them with --geometry, or a folder of STS sets with --sts."
    )


def _scorers(option: str, args: argparse.Namespace) -> list[Callable[..., Report]]:
    """Functions that score a model on the data of an option. The data is already read, or checked, in this call."""
    from st_contrastive import evaluation
    from st_contrastive.inputs import load_documents

    source = getattr(args, option)
    if option in ("sts", "transfer") and not Path(source).is_dir():
        raise UserError(f"{source} is not a folder. {_GET_DATA}")
    if option == "sts":
        evaluation.sts_sets(source, args.splits)
        return [partial(evaluation.evaluate_sts, folder=source, splits=args.splits)]
    if option == "transfer":
        evaluation.read_transfer(source)
        return [partial(evaluation.evaluate_transfer, folder=source, folds=args.folds)]
    if option == "corpus":
        documents = load_documents(source, columns=args.column)
        evaluator = evaluation.CorpusEvaluator(documents.bodies, titles=documents.titles, language=args.language)
        notes = [documents.note] if documents.note else []
        return [partial(_score_on_corpus, evaluator=evaluator, judged={}, notes=notes, **_task(source, "train"))]
    if option == "mteb":
        return [partial(evaluation.evaluate_mteb, tasks=source)]
    pairs = evaluation.read_sts(source)
    suites: list[Callable[..., Report]] = [evaluation.evaluate_in_domain_retrieval]
    if option == "geometry":
        suites = [evaluation.evaluate_geometry]
        if len(pairs.positives()[1]) > 1:
            suites.append(evaluation.evaluate_information)
    return [partial(suite, pairs=pairs, **_task(source)) for suite in suites]


def _task(source: str, split_on_hub: str = "dev") -> dict[str, Any]:
    """Names of the set and the split: "stsb" and "dev" for ``sts/stsb/dev.jsonl.gz``."""
    file = Path(source).resolve()
    stem = file.name.partition(".")[0]
    split = {"validation": "dev", "trial": "dev"}.get(stem, stem)
    if file.exists() and split not in ("train", "dev", "test"):
        return {"task": stem, "split": "all"}
    return {"task": file.parent.name, "split": split} if file.exists() else {"task": stem, "split": split_on_hub}


def _score_on_corpus(
    model: Any,
    *,
    evaluator: CorpusEvaluator,
    judged: dict[str, Judgement],
    notes: list[str],
    name: str,
    task: str,
    split: str,
    batch_size: int,
) -> Report:
    """Score a model on a corpus, and compare it with the first model that was scored.

    ``judged`` collects the judgements by model.
    """
    from st_contrastive.evaluation import Report, Score, bm25, compare_paired

    evaluator.batch_size = batch_size
    judgement = evaluator.judge(model)
    values, notes = {"ndcg@10": judgement.ndcg}, [*notes]
    if judgement.ndcg_with_bm25 is None:
        notes.append('The scores with BM25 need the extra search: pip install ".[search]".')
    else:
        values["ndcg@10 with bm25"] = judgement.ndcg_with_bm25
        notes.append(f"with bm25: {bm25.describe_mixture()} of each query.")
    if judged:
        first, before = next(iter(judged.items()))
        comparison = compare_paired(before, judgement)
        notes.append(f"Against {first}, {comparison.decision}. {comparison}")
    judged[name] = judgement
    scores = tuple(Score(task, split, metric, value, len(evaluator.queries)) for metric, value in values.items())
    return Report(name, scores, {"suite": "corpus", "documents": len(evaluator.answers)}, tuple(notes))
