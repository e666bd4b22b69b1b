"""The geometry suite of ``st-contrastive evaluate``: its options and its scores."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from st_contrastive.cli._arguments import UserError, name, option_name, positive_float, share, user_error

if TYPE_CHECKING:
    from st_contrastive.evaluation import Report, STSPairs

#: Options without a meaning for other suites.
OPTIONS = dict.fromkeys(("temperature", "min_score", "translations"), "geometry")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the group of the suite's options."""
    group = parser.add_argument_group("geometry")
    group.add_argument(
        "--temperature", type=positive_float, metavar="X", help="temperature of the mutual information; default: 0.05"
    )
    group.add_argument(
        "--min-score", type=positive_float, metavar="X", help="lowest gold score of a positive pair; default: 5"
    )
    group.add_argument("--translations", type=name, metavar="FILE", help="pairs (.tsv, .jsonl) for fraternal twins")
    group.add_argument("--languages", nargs=2, metavar=("FROM", "TO"), help="names of the two fields in --translations")
    group.add_argument(
        "--translation-encoder",
        type=name,
        metavar="NAME",
        help="its tokenizer and embeddings read --translations; default: the model",
    )
    group.add_argument(
        "--fusion-rate",
        type=share,
        metavar="X",
        help="the sentence's share in its fraternal twin, above 0 and up to 1; default: 0.8",
    )


def check_together(args: argparse.Namespace) -> None:
    """Refuse options that are useless without another one."""
    if args.translations and (args.pooling == "first-last" or args.whiten):
        raise UserError("--translations needs the encoder itself: leave --pooling first-last and --whiten out.")
    for option in ("translation_encoder", "languages", "fusion_rate"):
        if getattr(args, option) is not None and args.translations is None:
            raise UserError(f"{option_name(option)} goes with translations: add --translations FILE.")


def scorer(pairs: STSPairs, args: argparse.Namespace, options: dict[str, Any]) -> Callable[[Any], Report]:
    """A function that scores a model on the pairs; --translations is read now."""
    translated = _translated(args, len(pairs))  # as many as there are pairs
    return lambda model: _scored(model, pairs, translated, args, options)


def _scored(
    model: Any,
    pairs: STSPairs,
    translated: tuple[list[str], list[str]] | None,
    args: argparse.Namespace,
    options: dict[str, Any],
) -> Report:
    """Alignment, uniformity, and mutual information: the best bounds, and those at one temperature."""
    from st_contrastive import evaluation

    report = evaluation.evaluate_geometry(model, pairs, **options)
    loss = None if translated is None else _twins_loss(model, args)
    least = 5.0 if args.min_score is None else args.min_score
    temperature = 0.05 if args.temperature is None else args.temperature
    try:
        more = evaluation.evaluate_information(
            model, pairs, loss=loss, translated=translated, temperature=temperature, min_score=least, **options
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
    with user_error(CorpusError, ValueError, prefix="--translations: "):
        languages = tuple(args.languages) if args.languages else None
        found = read_parallel(args.translations, languages=languages, limit=limit)
    if not found.sentences:
        raise UserError(f"--translations {args.translations} holds no sentence with a translation.")
    return found.sentences, found.translations


def _twins_loss(model: Any, args: argparse.Namespace) -> Any:
    """The loss that makes the model's fraternal twins."""
    from st_contrastive.components import FraternalEmbedding
    from st_contrastive.losses import TwinsLoss

    options = {} if args.fusion_rate is None else {"fusion_rate": args.fusion_rate}
    with user_error(OSError, TypeError, ValueError, prefix="--translations: "):
        if args.translation_encoder:
            options["fraternal"] = FraternalEmbedding.from_pretrained(
                args.translation_encoder, model, max_length=args.max_length
            )
        return TwinsLoss(model, queue_batches=0, **options)
