"""``st-contrastive train``: a corpus and an encoder to a saved SentenceTransformer."""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from st_contrastive._checks import first_line
from st_contrastive.cli._arguments import POOLINGS, UserError, fraction, name, share, whole
from st_contrastive.cli._training import (
    add_checkpoints,
    add_data,
    add_loss_arguments,
    add_model,
    add_optimisation,
    checkpoint_folder,
    train_and_save,
)
from st_contrastive.methods import METHODS, build_loss
from st_contrastive.recipes import recipe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from st_contrastive.evaluation import STSEvaluator
    from st_contrastive.methods import Method

#: Options that a recipe may be run with and without.
_BESIDE = (
    "epochs", "max_steps", "limit", "pooling", "warmup", "bf16", "group_by_length", "translations",
    "translation_encoder", "auxiliary", "generator", "repetition", "antonym_rate", "dev",
)  # fmt: skip


class _TakeRecipe(argparse.Action):
    """A recipe's options take the place of the defaults; what is given beside it goes first."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        try:
            chosen = recipe(values)
        except ValueError as error:
            parser.error(str(error))
        for key, value in {"method": chosen.method, **chosen.options}.items():
            setattr(namespace, key, value)
        namespace.antonyms = chosen.augmentation == "antonyms"
        namespace.recipe = chosen.name


def recipe_first(argv: Sequence[str]) -> list[str]:
    """The arguments with ``--recipe NAME`` before the command's others, so that these have the last word."""
    if len(argv) < 2 or argv[0] != "train":
        return list(argv)
    rest, found = list(argv[1:]), []
    for place, word in enumerate(rest):
        if word == "--recipe" or word.startswith("--recipe="):
            found = rest[place : place + (2 if word == "--recipe" else 1)]
            del rest[place : place + len(found)]
            break
    return [argv[0], *found, *rest]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "train",
        help="train an encoder on unlabelled sentences",
        description="Train an encoder on unlabelled sentences, through sentence-transformers' Trainer.",
        usage="st-contrastive train (--recipe NAME | --method NAME --model NAME) --data FILE --output DIR [options]",
        epilog="The loss's other arguments: st-contrastive losses NAME. The recipes: st-contrastive recipes [NAME].",
    )
    data = add_data(parser)
    data.add_argument(
        "--translations", type=name, metavar="FILE", help="twins: a text line by line, or .tsv/.jsonl pairs"
    )
    data.add_argument(
        "--languages", nargs=2, metavar=("FROM", "TO"), help="the fields of a file of pairs, where they must be said"
    )
    data.add_argument("--antonyms", action="store_true", help="conisi, combined: sentences with WordNet antonyms (o2)")
    data.add_argument("--antonym-rate", type=share, metavar="X", help="share of the words replaced; default: all")
    data.add_argument("--repetition", type=fraction, metavar="X", help="simcse, momentum: share of words said twice")
    model = add_model(parser)
    model.add_argument("--pooling", choices=POOLINGS, help="default: a saved model's own, else as the paper evaluates")
    model.add_argument(
        "--translation-encoder", type=name, metavar="NAME", help="twins: reads --translations; default, none: --model"
    )
    model.add_argument(
        "--auxiliary", type=name, metavar="NAME", help="infocse, combined: output of pretrain-infocse; none: untrained"
    )
    model.add_argument(
        "--generator", type=name, metavar="NAME", help="diffcse: a masked LM; default, none: a frozen copy of --model"
    )
    method = parser.add_argument_group("method")
    method.add_argument("--method", choices=METHODS, metavar="NAME", help=", ".join(METHODS))
    method.add_argument("--recipe", action=_TakeRecipe, metavar="NAME", help="a paper's settings; options change them")
    add_loss_arguments(method, *METHODS.values())
    add_optimisation(parser)
    evaluation = parser.add_argument_group("evaluation")
    which = evaluation.add_mutually_exclusive_group()
    which.add_argument("--dev", type=name, metavar="FILE", help="graded pairs (.jsonl): keep the best weights; or none")
    which.add_argument("--dev-from-hub", action="store_true", help="the STS Benchmark's development split instead")
    evaluation.add_argument(
        "--evaluate-steps", type=whole, default=125, metavar="N", help="score them every N steps; default: 125"
    )
    add_checkpoints(parser)
    parser.set_defaults(run=run, stage1=None)  # the folder of the first stage, once it has been run


def run(args: argparse.Namespace) -> int:
    """Train; everything that can be wrong is looked at before the first step."""
    from transformers import set_seed

    from st_contrastive.cli._columns import check_together, read_columns
    from st_contrastive.cli._common import keep_inputs, loss_arguments, output_folder
    from st_contrastive.cli._first_stage import first_stage, settings_of

    chosen = recipe(args.recipe) if args.recipe else None
    for option in ("method", "model"):
        if getattr(args, option) is None:
            raise UserError(f"--{option} is missing: give it, or a --recipe.")
    if chosen is not None and chosen.translations and not args.translations:
        raise UserError(f"--recipe {chosen.name} needs --translations FILE; st-contrastive translate makes them.")
    if chosen is not None and chosen.method != args.method:
        raise UserError(f"--recipe {chosen.name} is of --method {chosen.method}: leave --method {args.method} out.")
    method = METHODS[args.method]
    # A network that is given takes the place of the first stage; none means neither.
    two_stages = chosen is not None and chosen.stage1 is not None and args.auxiliary is None
    for option in ("translation_encoder", "generator", "auxiliary", "dev"):  # what a recipe names may be done without
        if getattr(args, option) == "none":
            setattr(args, option, None)
            args.dev_from_hub &= option != "dev"
    if args.dev:
        args.dev_from_hub = False  # the recipe's
    if args.pooling == "first-last":
        raise UserError("--pooling first-last reads a model in evaluate; train takes cls, mean, lasttoken or keep.")
    check_together(args)
    folder = output_folder(args.output, overwrite=args.overwrite)
    checkpoints = checkpoint_folder(args, folder)
    kept = ("data", "translations", "auxiliary", "generator", "translation_encoder", "dev")
    keep_inputs(folder, **{option: getattr(args, option) for option in kept})
    given = chosen.loss_arguments if chosen is not None else {}
    options = {**given, **loss_arguments(method, args.loss_arg)}
    if args.antonyms:
        if options.get("strategy", "given") != given.get("strategy", "given"):
            raise UserError(f"--antonyms is strategy=given: leave strategy={options['strategy']!r} out.")
        options["strategy"] = "given"
    elif options.get("strategy") == "given":
        raise UserError("strategy=given needs constructed sentences: add --antonyms, or use it from Python.")
    evaluator = _evaluator(args)
    columns = [*read_columns(args), *_augmentations(args)]
    if chosen is not None:
        if "epochs" in args.given and "max_steps" not in args.given:
            args.max_steps = None  # the recipe's, which would have the last word
        more = {option: value for option in _BESIDE if (value := getattr(args, option))}
        if "epochs" not in args.given:
            more.pop("epochs", None)
        if chosen.stage1 is not None and not two_stages:
            more["auxiliary"] = args.auxiliary
        own = {option: getattr(args, option) for option in chosen.run}
        stage1 = settings_of(args, chosen) if chosen.stage1 else {}
        print(chosen.describe({**more, **own}, options, stage1, stage1=two_stages))
        if two_stages:
            with contextlib.redirect_stdout(io.StringIO()):  # what is wrong with stage 2 is said before stage 1
                _built(args, method, options, recipe=True)
            # Both start as the first stage left them (InfoCSE, section 3.2).
            args.stage1 = args.auxiliary = first_stage(args, stage1, options)
    set_seed(args.seed)
    model, own_length, loss = _built(args, method, options, recipe=chosen is not None)
    _check_queue(loss, args.batch_size, len(columns[0]))
    try:
        dataset = method.dataset(*columns, **({"fraternal": loss.fraternal} if args.translation_encoder else {}))
    except (OSError, TypeError, ValueError) as error:
        raise UserError(first_line(error)) from error
    train_and_save(args, folder, checkpoints, method, model, dataset, loss, own_length, evaluator=evaluator)
    return 0


def _built(
    args: argparse.Namespace, method: Method, options: dict[str, Any], *, recipe: bool
) -> tuple[SentenceTransformer, int | None, Any]:
    """The model, how many tokens of a text it read before, and the loss.

    The model is ``--model``'s, or the one that the first stage made of it.
    """
    from st_contrastive.cli._models import cut_texts, load_model, trained_model
    from st_contrastive.components import FraternalEmbedding

    if args.stage1 is None:
        model = trained_model(args.model, args.pooling, method.pooling, recipe=recipe)
    else:  # which saved it under the pooling that was asked for
        model = load_model(args.stage1, training=True)
    own_length = cut_texts(model, args.model, args.max_length)
    named = {option: getattr(args, option) for option in ("auxiliary", "generator") if getattr(args, option)}
    try:
        if args.translation_encoder:
            fraternal = FraternalEmbedding.from_pretrained(args.translation_encoder, model, max_length=args.max_length)
            print(f"{args.translation_encoder}: {fraternal.alignment}")
            named["fraternal"] = fraternal
        return model, own_length, build_loss(method.loss_class, model, **options, **named)
    except (OSError, TypeError, ValueError) as error:
        raise UserError(first_line(error)) from error


def _check_queue(loss: Any, batch_size: int, sentences: int) -> None:
    """Say so where a queue still holds a sentence when its turn comes again: as its own negative."""
    queue = getattr(loss, "queue", None)
    if queue is None:
        return
    held = queue.capacity(batch_size)
    if held + batch_size > sentences:
        print(
            f"The queue holds up to {held:,} sentences and --data has {sentences:,}: they will be their own negatives. "
            "Take a smaller --batch-size, --queue-batches or --queue-size, or more sentences."
        )


def _augmentations(args: argparse.Namespace) -> list[Any]:
    """What makes the second column of the first."""
    from st_contrastive.augmentations import AntonymReplacement, WordNetError, WordRepetition

    if args.repetition:
        return [WordRepetition(args.repetition)]
    if not args.antonyms:
        return []
    try:
        return [AntonymReplacement(1.0 if args.antonym_rate is None else args.antonym_rate)]
    except WordNetError as error:
        raise UserError(f"--antonyms: {error}") from error


def _evaluator(args: argparse.Namespace) -> STSEvaluator | None:
    """The evaluator of --dev or --dev-from-hub, or None."""
    import torch

    from st_contrastive.evaluation import EvaluationDataError, STSEvaluator
    from st_contrastive.evaluation.sts import hub_sts

    if args.dev is None and not args.dev_from_hub:
        return None
    try:
        pairs = hub_sts(["dev"], ["stsb"])["stsb", "dev"] if args.dev is None else args.dev
        return STSEvaluator(pairs, "dev", dtype=torch.bfloat16 if args.bf16 else None)
    except EvaluationDataError as error:
        raise UserError(f"--dev{'' if args.dev else '-from-hub'}: {error}") from error
