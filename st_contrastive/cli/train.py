"""``st-contrastive train``: train an encoder on unlabelled sentences and save it."""

from __future__ import annotations

import argparse
import contextlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_contrastive.cli._arguments import POOLINGS, Given, Once, UserError, name, share, user_error, whole
from st_contrastive.cli._training import (
    add_checkpoints,
    add_data,
    add_loss_arguments,
    add_model,
    add_optimisation,
    train_and_save,
)
from st_contrastive.methods import METHODS, build_loss
from st_contrastive.recipes import Recipe, recipe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from st_contrastive.evaluation import STSEvaluator
    from st_contrastive.methods import Method

#: Options that are printed with a recipe although it does not set them.
_PRINTED = (
    "epochs", "max_steps", "limit", "pooling", "warmup", "bf16", "group_by_length", "translations",
    "translation_encoder", "auxiliary", "generator", "repetition", "antonym_rate", "dev", "keep",
)  # fmt: skip


def recipe_name(text: str) -> str:
    """The name of a recipe."""
    try:
        return recipe(text).name
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def kept_share(text: str) -> float | str:
    """A share above 0 and up to 1, or "best"."""
    if text == "best":
        return text
    try:
        return share(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, nor 'best'") from error


def recipe_defaults(chosen: str) -> dict[str, Any]:
    """The recipe's settings, as defaults of this command's options."""
    found = recipe(chosen)
    return {"method": found.method, "antonyms": found.augmentation == "antonyms", **found.options}


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "train",
        help="train an encoder on unlabelled sentences",
        description="Train an encoder on unlabelled sentences with sentence-transformers' Trainer.",
        usage="st-contrastive train (--recipe NAME | --method NAME --model NAME) --data FILE --output DIR [options]",
        epilog="The method options name the methods that they matter most for; each works with every method whose loss "
        "has that argument. Defaults and all arguments of a loss: st-contrastive losses NAME. All recipes: "
        "st-contrastive recipes. "
        "With a recipe, 'none' for --dev, --auxiliary, --generator or --translation-encoder takes the recipe's away.",
    )
    data = add_data(parser)
    data.add_argument(
        "--translations",
        action=Once,
        type=name,
        metavar="FILE",
        help="twins: translations line by line, or .tsv or .jsonl pairs",
    )
    data.add_argument(
        "--languages",
        nargs=2,
        metavar=("FROM", "TO"),
        help="twins: names of the two fields in a --translations file of pairs",
    )
    data.add_argument("--antonyms", action="store_true", help="conisi, combined: replace words by WordNet antonyms")
    data.add_argument("--antonym-rate", type=share, metavar="X", help="share of the words with an antonym; default: 1")
    data.add_argument(
        "--repetition",
        type=share,
        metavar="X",
        help="simcse, momentum: repeat up to this share of words in one view",
    )
    model = add_model(parser)
    model.add_argument(
        "--pooling",
        choices=POOLINGS,
        metavar="NAME",
        help=f"{', '.join(POOLINGS)} (the model's own); default: the recipe's; without one, keep for a saved "
        "model, else cls (twins, or without a leading [CLS]: mean; decoders: lasttoken)",
    )
    model.add_argument(
        "--translation-encoder",
        type=name,
        metavar="NAME",
        help="twins: its tokenizer and embeddings read --translations; default: --model",
    )
    model.add_argument(
        "--auxiliary",
        type=name,
        metavar="NAME",
        help="infocse, combined: folder that pretrain-infocse wrote; default: made from --model, untrained",
    )
    model.add_argument(
        "--generator", type=name, metavar="NAME", help="diffcse: a masked LM; default: a frozen copy of --model"
    )
    method = parser.add_argument_group("method")
    method.add_argument("--method", choices=METHODS, metavar="NAME", help=", ".join(METHODS))
    method.add_argument(
        "--recipe", type=recipe_name, metavar="NAME", help="settings of a paper, or small ones, as defaults"
    )
    add_loss_arguments(method, *METHODS.values())
    steps = "train N steps instead of --epochs; of two stages, in the second"
    add_optimisation(parser, max_steps=steps)
    evaluation = parser.add_argument_group("evaluation")
    which = evaluation.add_mutually_exclusive_group()
    which.add_argument(
        "--dev",
        action=Once,
        type=name,
        metavar="FILE",
        help="graded pairs, .jsonl with sentence1, sentence2 and score; the best weights are saved",
    )
    which.add_argument("--dev-from-hub", action="store_true", help="the STS Benchmark's development split instead")
    evaluation.add_argument(
        "--evaluate-steps",
        action=Given,
        type=whole,
        default=125,
        metavar="N",
        help="steps between evaluations; default: 125",
    )
    evaluation.add_argument(
        "--keep",
        type=kept_share,
        default=1.0,
        metavar="SHARE",
        help="save SHARE x trained + (1 - SHARE) x untrained weights; 'best' chooses it on --dev; default: 1",
    )
    add_checkpoints(parser)
    parser.set_defaults(run=run, stage1=None)  # the folder of the first stage, once there is one


def run(args: argparse.Namespace) -> int:
    """Train; all input is checked before the first step."""
    from transformers import set_seed

    from st_contrastive.cli._columns import check_together, read_columns
    from st_contrastive.cli._common import loss_arguments
    from st_contrastive.cli._first_stage import first_stage, settings_of
    from st_contrastive.cli._saving import checkpoint_folder, output_folder

    chosen = recipe(args.recipe) if args.recipe else None
    _check_recipe(args, chosen)
    method = METHODS[args.method]
    # InfoCSE's first stage is skipped if --auxiliary names a network, or is "none".
    two_stages = chosen is not None and chosen.stage1 is not None and args.auxiliary is None
    for option in ("translation_encoder", "generator", "auxiliary", "dev"):  # "none" takes back a recipe's
        if getattr(args, option) == "none":
            setattr(args, option, None)
            args.dev_from_hub &= option != "dev"
    if args.dev:
        args.dev_from_hub = False  # a recipe may have set it
    check_together(args)
    inputs = ("data", "translations", "auxiliary", "generator", "translation_encoder", "dev")
    folder = output_folder(args, *inputs)
    checkpoints = checkpoint_folder(args, folder)
    preset = chosen.loss_arguments if chosen is not None else {}
    given = loss_arguments(method, args.loss_arg)
    options = {**preset, **given}
    if args.method == "simcse" and "mask_rate" in given and not options.get("mlm_weight"):
        raise UserError("--mask-rate is of SimCSE's masked-LM term, whose weight is 0: give --mlm-weight too.")
    if args.antonyms:
        if options.get("strategy", "given") != preset.get("strategy", "given"):
            who = f"--recipe {chosen.name}" if chosen is not None and chosen.augmentation else "--antonyms"
            raise UserError(f"{who} sets strategy=given: leave strategy={options['strategy']!r} out.")
        options["strategy"] = "given"
    elif options.get("strategy") == "given":
        raise UserError("strategy=given needs constructed sentences: add --antonyms, or use it from Python.")
    evaluator = _evaluator(args)
    if "evaluate_steps" in args.given and evaluator is None:
        raise UserError("--evaluate-steps needs development data: give --dev FILE too.")
    if args.keep == "best" and evaluator is None:
        raise UserError("--keep best chooses the share on development data: give --dev FILE, or a number.")
    augmentations = _augmentations(args)
    columns = [*read_columns(args), *augmentations]
    if chosen is not None:
        if "epochs" in args.given and "max_steps" not in args.given:
            args.max_steps = None  # --epochs replaces the recipe's number of steps
        stage1 = settings_of(args, chosen) if chosen.stage1 else {}
        print(chosen.describe(_printed(args, chosen, two_stages), options, stage1, stage1=two_stages))
        if two_stages:
            with contextlib.redirect_stdout(io.StringIO()):  # errors in stage 2 are reported before stage 1 starts
                _model_and_loss(args, method, options)
            if not Path(args.data).is_file():
                raise UserError(
                    f"--data {args.data} is read by both stages, which a pipe can't be: write it to a file."
                )
            # The encoder and the auxiliary network both start from the first stage (InfoCSE, section 3.2).
            args.stage1 = args.auxiliary = first_stage(args, stage1, options)
    set_seed(args.seed)
    model, own_length, loss = _model_and_loss(args, method, options)
    if not loss.has_negatives(args.batch_size):
        raise UserError("--batch-size 1 leaves no other sentence to contrast with: give 2 or more.")
    _warn_of_long_queue(loss, args.batch_size, len(columns[0]))
    with user_error(OSError, TypeError, ValueError):
        more: dict[str, Any] = {"fraternal": loss.fraternal} if args.translation_encoder else {}
        dataset = method.dataset(*columns, **more, **({"seed": args.seed} if augmentations else {}))
    return train_and_save(
        args, folder, checkpoints, method, model, dataset, loss, own_length, evaluator=evaluator, keep=args.keep
    )


def _check_recipe(args: argparse.Namespace, chosen: Recipe | None) -> None:
    """Raise a UserError if the method or the model is missing, or does not fit the recipe."""
    for option in ("method", "model"):
        if getattr(args, option) is None:
            raise UserError(f"--{option} is missing: give it, or a --recipe.")
    if chosen is not None and chosen.translations and not args.translations:
        raise UserError(f"--recipe {chosen.name} needs --translations FILE; st-contrastive translate makes them.")
    if chosen is not None and chosen.method != args.method:
        raise UserError(f"--recipe {chosen.name} is of --method {chosen.method}: leave --method {args.method} out.")


def _printed(args: argparse.Namespace, chosen: Recipe, two_stages: bool) -> dict[str, Any]:
    """The options that are printed with the recipe: its own, and others that are set."""
    found = {option: value for option in _PRINTED if (value := getattr(args, option))}
    if "epochs" not in args.given:
        found.pop("epochs", None)
    if args.keep == 1:
        found.pop("keep")
    if chosen.stage1 is not None and not two_stages:
        found["auxiliary"] = args.auxiliary
    return found | {option: getattr(args, option) for option in chosen.run}


def _model_and_loss(
    args: argparse.Namespace, method: Method, options: dict[str, Any]
) -> tuple[SentenceTransformer, int | None, Any]:
    """The model, the number of tokens that it read before ``--max-length``, and the loss."""
    from st_contrastive.cli._models import cut_texts, load_model, trained_model
    from st_contrastive.components import FraternalEmbedding

    if args.stage1 is None:
        model = trained_model(args.model, args.pooling, method.pooling, recipe=bool(args.recipe))
    else:  # which was saved with its pooling
        model = load_model(args.stage1, training=True)
    own_length = cut_texts(model, args.model, args.max_length)
    networks = {option: getattr(args, option) for option in ("auxiliary", "generator") if getattr(args, option)}
    with user_error(OSError, TypeError, ValueError):
        if args.translation_encoder:
            fraternal = FraternalEmbedding.from_pretrained(args.translation_encoder, model, max_length=args.max_length)
            print(f"{args.translation_encoder}: {fraternal.alignment}")
            networks["fraternal"] = fraternal
        return model, own_length, build_loss(method.loss_class, model, **options, **networks)


def _warn_of_long_queue(loss: Any, batch_size: int, sentences: int) -> None:
    """Print a warning if the queue still holds a sentence when it is trained on again: as its own negative."""
    queue = getattr(loss, "queue", None)
    if queue is None:
        return
    held = queue.capacity(batch_size)
    if held + batch_size > sentences:
        print(
            f"The queue holds up to {held:,} sentences and --data has {sentences:,}: sentences will be their own "
            "negatives. Use a smaller --batch-size, --queue-batches or --queue-size, or more sentences."
        )


def _augmentations(args: argparse.Namespace) -> list[Any]:
    """The function that makes the second column from the first, if there is one."""
    from st_contrastive.augmentations import AntonymReplacement, WordNetError, WordRepetition

    if args.repetition is not None:
        return [WordRepetition(args.repetition)]
    if not args.antonyms:
        return []
    with user_error(WordNetError, prefix="--antonyms: "):
        return [AntonymReplacement(1.0 if args.antonym_rate is None else args.antonym_rate)]


def _evaluator(args: argparse.Namespace) -> STSEvaluator | None:
    """The evaluator of --dev or --dev-from-hub, or None."""
    import torch

    from st_contrastive.evaluation import EvaluationDataError, STSEvaluator
    from st_contrastive.evaluation.sts import hub_sts

    if args.dev is None and not args.dev_from_hub:
        return None
    with user_error(EvaluationDataError, prefix=f"--dev{'' if args.dev else '-from-hub'}: "):
        pairs = hub_sts(["dev"], ["stsb"])["stsb", "dev"] if args.dev is None else args.dev
        return STSEvaluator(pairs, "dev", dtype=torch.bfloat16 if args.bf16 else None)
