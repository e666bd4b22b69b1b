"""``st-contrastive train``: a corpus and an encoder to a saved SentenceTransformer."""

from __future__ import annotations

import argparse

from st_contrastive.cli._arguments import UserError, name
from st_contrastive.cli._training import add_files, add_numbers, checkpoint_folder, train_and_save


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "train",
        help="train an encoder on unlabelled sentences",
        description="Train an encoder on unlabelled sentences, through sentence-transformers' Trainer.",
    )
    parser.add_argument(
        "--method", required=True, choices=["simcse", "conisi", "twins", "infocse", "diffcse"], help="the loss"
    )
    add_files(parser)
    parser.add_argument(
        "--translations",
        type=name,
        metavar="FILE",
        help="twins: the translations of --data's sentences, a text file line by line, or a .tsv or .jsonl (.gz) of "
        "pairs",
    )
    parser.add_argument(
        "--languages", nargs=2, metavar=("FROM", "TO"), help="the fields of a file of pairs, where they must be said"
    )
    parser.add_argument(
        "--fraternal",
        type=name,
        metavar="NAME",
        help="twins: folder or hub name of the checkpoint whose tokenizer and embedding layer read the translations "
        "(default: the model's own)",
    )
    parser.add_argument(
        "--antonyms", action="store_true", help="conisi: construct sentences with WordNet antonyms (o2)"
    )
    parser.add_argument(
        "--pooling",
        choices=["cls", "mean", "keep"],
        help="pooling of the saved model; keep takes --model as it is (default: as the paper evaluates, mean for "
        "twins, cls for the others)",
    )
    parser.add_argument(
        "--auxiliary",
        type=name,
        metavar="NAME",
        help="infocse: folder or hub name of a pre-trained auxiliary network, such as the output of pretrain; without, "
        "an untrained one is made from --model",
    )
    parser.add_argument(
        "--generator",
        type=name,
        metavar="NAME",
        help="diffcse: folder or hub name of the masked-LM checkpoint that fills tokens in, with --model's tokenizer "
        "(default: a frozen copy of --model with its own masked-LM head)",
    )
    add_numbers(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train; everything that can be wrong is looked at before the first step."""
    from transformers import set_seed

    from st_contrastive.augmentations import AntonymReplacement, WordNetError
    from st_contrastive.cli._columns import check_together, read_columns
    from st_contrastive.cli._common import METHODS, keep_inputs, load_model, loss_arguments, output_folder
    from st_contrastive.components import FraternalEmbedding
    from st_contrastive.components._checks import first_line

    method = METHODS[args.method]
    check_together(args)
    folder = output_folder(args.output, overwrite=args.overwrite)
    checkpoints = checkpoint_folder(args, folder)
    kept = ("data", "translations", "auxiliary", "generator", "fraternal")
    keep_inputs(folder, **{option: getattr(args, option) for option in kept})
    options = loss_arguments(method, args.set)
    if args.antonyms:
        options["strategy"] = "given"
    elif options.get("strategy") == "given":
        raise UserError("--set strategy=given needs constructed sentences: add --antonyms, or use it from Python.")
    columns = read_columns(args)
    if args.antonyms:
        try:
            columns.append(AntonymReplacement())
        except WordNetError as error:
            raise UserError(f"--antonyms: {error}") from error
    set_seed(args.seed)
    model = load_model(args.model, pooling=args.pooling or method.pooling, max_length=args.max_length)
    try:
        if args.fraternal:
            longest = args.max_length
            fraternal = FraternalEmbedding.from_pretrained(args.fraternal, model, max_length=longest)
            print(f"{args.fraternal}: {fraternal.alignment}")
            options["fraternal"] = fraternal
        for option in ("auxiliary", "generator"):
            if getattr(args, option):
                options[option] = getattr(args, option)
        loss = method.loss(model, **options)
    except (OSError, TypeError, ValueError) as error:
        raise UserError(first_line(error)) from error
    try:
        dataset = method.dataset(*columns, **({"fraternal": options["fraternal"]} if args.fraternal else {}))
    except (OSError, TypeError, ValueError) as error:
        raise UserError(first_line(error)) from error
    train_and_save(args, folder, checkpoints, model, dataset, loss)
    return 0
