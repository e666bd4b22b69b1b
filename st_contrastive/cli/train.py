"""``st-contrastive train``: a corpus and an encoder to a saved SentenceTransformer."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from st_contrastive.cli._arguments import UserError, fraction, positive_float, seed, whole


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "train",
        help="train an encoder on unlabelled sentences",
        description="Train an encoder on unlabelled sentences, through sentence-transformers' Trainer.",
    )
    parser.add_argument("--method", required=True, choices=["simcse", "conisi", "twins", "infocse"], help="the loss")
    parser.add_argument("--model", required=True, help="folder or hub name of the encoder to start from")
    parser.add_argument("--data", required=True, metavar="FILE", help="UTF-8 text or .gz, one sentence a line")
    parser.add_argument("--output", required=True, metavar="DIR", help="where the trained model goes")
    parser.add_argument(
        "--translations",
        metavar="FILE",
        help="twins: the translations of --data's sentences, a text file line by line, or a .tsv or .jsonl (.gz) of "
        "pairs",
    )
    parser.add_argument(
        "--languages", nargs=2, metavar=("FROM", "TO"), help="the fields of a file of pairs, where they must be said"
    )
    parser.add_argument(
        "--fraternal",
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
    parser.add_argument("--batch-size", type=whole, default=64, metavar="N", help="default: 64")
    parser.add_argument("--lr", type=positive_float, default=3e-5, metavar="X", help="learning rate; default: 3e-5")
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
        help="an argument of the loss, such as interaction_weight=0.1; may be repeated",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train; everything that can be wrong is looked at before the first step."""
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from transformers import set_seed

    from st_contrastive.augmentations import AntonymReplacement, WordNetError
    from st_contrastive.cli._columns import check_together, read_columns
    from st_contrastive.cli._common import METHODS, first_line, load_model, loss_arguments, output_folder
    from st_contrastive.components import FraternalEmbedding

    method = METHODS[args.method]
    check_together(args)
    folder = output_folder(args.output, overwrite=args.overwrite)
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
        loss = method.loss(model, **options)
    except (OSError, TypeError, ValueError) as error:
        raise UserError(first_line(error)) from error
    try:
        dataset = method.dataset(*columns, **({"fraternal": options["fraternal"]} if args.fraternal else {}))
    except (TypeError, ValueError) as error:
        raise UserError(first_line(error)) from error
    with _work_folder(folder) as work:
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
        model.save_pretrained(str(saved))
        _put_in_place(saved, folder)
    print(f"Saved to {folder}. Load it with SentenceTransformer({str(folder)!r}).")
    return 0


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """A hidden folder beside the output, on the same disk, so that the finished model can be moved in one step."""
    missing = [place for place in folder.parents if not place.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise UserError(f"--output {folder} can't be made: {error.strerror or error}.") from error
    try:
        yield work
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        for place in missing:  # nearest first
            with suppress(OSError):
                place.rmdir()
        raise
    shutil.rmtree(work, ignore_errors=True)


def _renamed(source: Path, target: Path) -> bool:
    """Whether the folder could be renamed; a mount point can't."""
    try:
        source.rename(target)
    except OSError:
        return False
    return True


def _put_in_place(saved: Path, folder: Path) -> None:
    """Move the complete new model to the output; a model that was there goes only when the new one is in place."""
    if not folder.exists():
        saved.rename(folder)
        return
    old = saved.with_name("replaced")
    if any(folder.iterdir()) and folder != Path.cwd() and _renamed(folder, old):
        if _renamed(saved, folder):
            return
        old.rename(folder)
    # The folder stays, for it may be a mount point or the working directory: its entries are exchanged.
    old.mkdir(exist_ok=True)
    moved: list[tuple[Path, Path]] = []
    try:
        for source, target in ((folder, old), (saved, folder)):
            for entry in sorted(source.iterdir()):
                shutil.move(entry, target / entry.name)
                moved.append((entry, target / entry.name))
    except OSError as error:
        for before, after in reversed(moved):
            shutil.move(after, before)
        kept = folder.with_name(f"{folder.name}.unsaved")
        saved.rename(kept)
        raise UserError(
            f"--output {folder} can't be written ({error.strerror or error}); the trained model is in {kept}."
        ) from error
