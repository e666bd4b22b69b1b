"""``st-contrastive pretrain-infocse``: InfoCSE's first stage, to a saved encoder and its auxiliary network."""

from __future__ import annotations

import argparse

from st_contrastive._checks import first_line
from st_contrastive.cli._arguments import UserError
from st_contrastive.cli._training import (
    add_checkpoints,
    add_data,
    add_loss_arguments,
    add_model,
    add_optimisation,
    checkpoint_folder,
    train_and_save,
)
from st_contrastive.methods import PRETRAINING, build_loss


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "pretrain-infocse",
        help="pre-train an encoder and InfoCSE's auxiliary network",
        description="Stage 1 of InfoCSE: the encoder and the auxiliary network learn masked-LM together. --output then "
        "holds both: st-contrastive train --method infocse --model DIR --auxiliary DIR ...",
        usage="st-contrastive pretrain-infocse --model NAME --data FILE --output DIR [options]",
        epilog=f"The loss's other arguments: st-contrastive losses {PRETRAINING.name}.",
    )
    add_data(parser)
    add_model(parser)
    add_loss_arguments(parser.add_argument_group("method"), PRETRAINING)
    add_optimisation(parser, learning_rate=1e-4)
    add_checkpoints(parser)
    # A recipe of both stages gives them, so that this one reads the encoder as its second does.
    parser.set_defaults(run=run, pooling=None, recipe=None)


def run(args: argparse.Namespace) -> int:
    """Train; everything that can be wrong is looked at before the first step."""
    from transformers import set_seed

    from st_contrastive.cli._columns import read_sentences
    from st_contrastive.cli._common import keep_inputs, loss_arguments, output_folder
    from st_contrastive.cli._models import cut_texts, trained_model

    if args.model is None:
        raise UserError("--model is missing: name the encoder to start from.")
    folder = output_folder(args.output, overwrite=args.overwrite)
    checkpoints = checkpoint_folder(args, folder)
    keep_inputs(folder, data=args.data)
    options = loss_arguments(PRETRAINING, args.loss_arg)
    sentences = read_sentences(args)
    set_seed(args.seed)
    model = trained_model(args.model, args.pooling, PRETRAINING.pooling, recipe=bool(args.recipe))
    own_length = cut_texts(model, args.model, args.max_length)
    try:
        loss = build_loss(PRETRAINING.loss_class, model, **options)
        dataset = PRETRAINING.dataset(sentences)
    except (OSError, TypeError, ValueError) as error:
        raise UserError(first_line(error)) from error
    train_and_save(
        args, folder, checkpoints, PRETRAINING, model, dataset, loss, own_length, save_beside=loss.save_auxiliary
    )
    return 0
