"""The geometry suite of ``st-contrastive evaluate``: its options, and what scores a model."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from st_contrastive._checks import first_line
from st_contrastive.cli._arguments import UserError, name, positive_float, share

if TYPE_CHECKING:
    from st_contrastive.evaluation import Report, STSPairs


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of the suite alone."""
    parser.add_argument(
        "--temperature",
        type=positive_float,
        default=0.05,
        metavar="X",
        help="geometry: of the mutual information of twins and of the task's pairs; default: 0.05",
    )
    parser.add_argument(
        "--min-score",
        type=positive_float,
        metavar="X",
        help="geometry: least score of the task's pairs; default: 5, as the Twins paper",
    )
    parser.add_argument(
        "--translations",
        type=name,
        metavar="FILE",
        help="geometry: a .tsv or .jsonl (.gz) of sentences and translations, of which the twins are made",
    )
    parser.add_argument(
        "--languages", nargs=2, metavar=("FROM", "TO"), help="the fields of --translations, where they must be said"
    )
    parser.add_argument(
        "--translation-encoder",
        type=name,
        metavar="NAME",
        help="geometry: folder or hub name of the checkpoint whose tokenizer and embedding layer read --translations; "
        "default: the model's own",
    )
    parser.add_argument(
        "--fusion-rate", type=share, metavar="X", help="geometry: the sentence's share in its fraternal twin"
    )


def check_together(args: argparse.Namespace, suites: Sequence[str]) -> None:
    """Refuse options that lack their partner."""
    if args.translations and (args.pooling == "first-last" or args.whiten):
        raise UserError("--translations needs the encoder itself: leave --pooling first-last and --whiten out.")
    for option in ("translation_encoder", "languages", "fusion_rate"):
        if getattr(args, option) is not None and args.translations is None:
            raise UserError(f"--{option.replace('_', '-')} is of the translations: add --translations FILE.")
    if "geometry" not in suites and (args.translations is not None or args.min_score is not None):
        raise UserError("--translations and --min-score are of --suite geometry, which is not asked for.")


def scorer(pairs: STSPairs, args: argparse.Namespace, options: dict[str, Any]) -> Callable[[Any], Report]:
    """What scores a model on the pairs; --translations has been read by then."""
    translated = _translated(args, len(pairs))  # more are not needed
    return lambda model: _scored(model, pairs, translated, args, options)


def _scored(
    model: Any,
    pairs: STSPairs,
    translated: tuple[list[str], list[str]] | None,
    args: argparse.Namespace,
    options: dict[str, Any],
) -> Report:
    """Alignment, uniformity and the best bounds on mutual information; and that at one temperature."""
    from st_contrastive import evaluation

    report = evaluation.evaluate_geometry(model, pairs, **options)
    loss = None if translated is None else _twins_loss(model, args)
    least = 5.0 if args.min_score is None else args.min_score
    try:
        more = evaluation.evaluate_information(
            model, pairs, loss=loss, translated=translated, temperature=args.temperature, min_score=least, **options
        )
    except evaluation.EvaluationDataError as error:
        if args.min_score is not None or translated is not None:
            raise
        return replace(report, notes=(*report.notes, str(error)))
    settings = {**report.settings, **{key: value for key, value in more.settings.items() if key != "suite"}}
    if loss is not None:
        settings |= {"fusion_rate": loss.fusion_rate, "fraternal": args.translation_encoder}
    return evaluation.Report(report.model, report.scores + more.scores, settings, report.notes + more.notes)


def _translated(args: argparse.Namespace, limit: int) -> tuple[list[str], list[str]] | None:
    """The first sentences and translations of --translations; None without."""
    from st_contrastive.inputs import CorpusError, read_parallel

    if args.translations is None:
        return None
    try:
        languages = tuple(args.languages) if args.languages else None
        found = read_parallel(args.translations, languages=languages, limit=limit)
    except (CorpusError, ValueError) as error:
        raise UserError(f"--translations: {error}") from error
    if not found.sentences:
        raise UserError(f"--translations {args.translations} holds no pair of a sentence and its translation.")
    return found.sentences, found.translations


def _twins_loss(model: Any, args: argparse.Namespace) -> Any:
    """What makes the model's fraternal twins."""
    from st_contrastive.components import FraternalEmbedding
    from st_contrastive.losses import TwinsLoss

    options = {} if args.fusion_rate is None else {"fusion_rate": args.fusion_rate}
    try:
        if args.translation_encoder:
            options["fraternal"] = FraternalEmbedding.from_pretrained(
                args.translation_encoder, model, max_length=args.max_length
            )
        return TwinsLoss(model, queue_batches=0, **options)
    except (OSError, TypeError, ValueError) as error:
        raise UserError(f"--translations: {first_line(error)}") from error
