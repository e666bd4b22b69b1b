"""What ``train`` and ``pretrain`` share: their options, and a run of the Trainer that ends in a saved model."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_contrastive.cli._arguments import UserError, fraction, name, positive_float, seed, whole
from st_contrastive.cli._saving import put_in_place, saving, work_folder

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def add_files(parser: argparse.ArgumentParser) -> None:
    """Options that name files."""
    parser.add_argument("--model", required=True, type=name, help="folder or hub name of the encoder to start from")
    parser.add_argument(
        "--data", required=True, type=name, metavar="FILE", help="UTF-8 text or .gz, one sentence a line"
    )
    parser.add_argument("--output", required=True, type=name, metavar="DIR", help="where the trained model goes")


def add_numbers(parser: argparse.ArgumentParser, *, lr: float = 3e-5) -> None:
    """Options of the Trainer, and those of the loss."""
    parser.add_argument("--batch-size", type=whole, default=64, metavar="N", help="default: 64")
    parser.add_argument("--lr", type=positive_float, default=lr, metavar="X", help=f"learning rate; default: {lr:g}")
    parser.add_argument("--epochs", type=whole, default=1, metavar="N", help="default: 1")
    parser.add_argument("--steps", type=whole, metavar="N", help="stop after N steps, whatever --epochs says")
    parser.add_argument("--warmup", type=fraction, default=0.0, metavar="X", help="share of the steps; default: 0")
    parser.add_argument("--max-length", type=whole, default=32, metavar="N", help="tokens a sentence; default: 32")
    parser.add_argument("--limit", type=whole, metavar="N", help="take the first N sentences only")
    parser.add_argument("--seed", type=seed, default=42, metavar="N", help="default: 42")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast")
    parser.add_argument("--overwrite", action="store_true", help="replace a saved model in --output")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the loss, such as mask_rate=0.15; may be repeated",
    )


def train_and_save(
    args: argparse.Namespace,
    folder: Path,
    model: SentenceTransformer,
    dataset: Any,
    loss: Any,
    *,
    save_beside: Callable[[Path], None] | None = None,
) -> None:
    """Run the Trainer and put the saved model, with what ``save_beside`` adds, into ``folder``."""
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    from st_contrastive.cli._common import first_line

    with work_folder(folder) as work:
        try:
            arguments = SentenceTransformerTrainingArguments(
                output_dir=f"{work}/trainer",
                per_device_train_batch_size=args.batch_size,
                learning_rate=args.lr,
                num_train_epochs=args.epochs,
                max_steps=args.steps or -1,
                warmup_steps=args.warmup,
                save_strategy="no",
                logging_steps=10,
                seed=args.seed,
                bf16=args.bf16,
                report_to="none",
            )
        except ValueError as error:
            raise UserError(first_line(error)) from error
        SentenceTransformerTrainer(model=model, args=arguments, train_dataset=dataset, loss=loss).train()
        saved = work / "model"
        with saving(folder):
            model.save_pretrained(str(saved))
            if save_beside is not None:
                save_beside(saved)
            put_in_place(saved, folder)
    print(f"Saved to {folder}. Load it with SentenceTransformer({str(folder)!r}).")
