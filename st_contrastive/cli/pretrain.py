"""``st-contrastive pretrain-infocse``: InfoCSE's first stage, which saves an encoder and its auxiliary network."""

from __future__ import annotations

import argparse

from st_contrastive.cli._arguments import UserError, user_error
from st_contrastive.cli._training import (
    add_checkpoints,
    add_data,
    add_loss_arguments,
    add_model,
    add_optimisation,
    train_and_save,
)
from st_contrastive.methods import PRETRAINING, build_loss


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "pretrain-infocse",
        help="run InfoCSE's first stage: the encoder and its auxiliary network",
        description="Train an encoder and InfoCSE's auxiliary network together on masked language modelling: stage 1 "
        "of InfoCSE. Both are saved in --output DIR; stage 2 is: st-contrastive train --method infocse --model DIR "
        "--auxiliary DIR ...",
        usage="st-contrastive pretrain-infocse --model NAME --data FILE --output DIR [options]",
        epilog=f"See also: st-contrastive losses {PRETRAINING.name}, for all arguments of the loss.",
    )
    add_data(parser)
    add_model(parser)
    add_loss_arguments(parser.add_argument_group("method"), PRETRAINING)
    add_optimisation(parser, learning_rate=1e-4)
    add_checkpoints(parser)
    # Set when a recipe of both stages runs this one: the encoder is then pooled as in the second stage.
    parser.set_defaults(run=run, pooling=None, recipe=None, stage1=None)


def run(args: argparse.Namespace) -> int:
    """Train; all input is checked before the first step."""
    from transformers import set_seed

    from st_contrastive.cli._columns import read_text
    from st_contrastive.cli._common import loss_arguments
    from st_contrastive.cli._models import cut_texts, trained_model
    from st_contrastive.cli._saving import checkpoint_folder, output_folder

    if args.model is None:
        raise UserError("--model is missing: name the encoder to start from.")
    folder = output_folder(args, "data")
    checkpoints = checkpoint_folder(args, folder)
    options = loss_arguments(PRETRAINING, args.loss_arg)
    sentences = read_text("--data", args.data, limit=args.limit)
    set_seed(args.seed)
    model = trained_model(args.model, args.pooling, PRETRAINING.pooling, recipe=bool(args.recipe))
    own_length = cut_texts(model, args.model, args.max_length)
    with user_error(OSError, TypeError, ValueError):
        loss = build_loss(PRETRAINING.loss_class, model, **options)
        dataset = PRETRAINING.dataset(sentences)
    return train_and_save(
        args, folder, checkpoints, PRETRAINING, model, dataset, loss, own_length, save_beside=loss.save_auxiliary
    )
