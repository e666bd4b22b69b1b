"""What ``train`` and ``pretrain-infocse`` share: their options, and a run of the Trainer that ends in a saved model."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_contrastive._checks import first_line
from st_contrastive.cli._arguments import (
    Given,
    LossArgument,
    UserError,
    count,
    fraction,
    name,
    positive_float,
    seed,
    whole,
)
from st_contrastive.cli._quiet import add_verbose
from st_contrastive.cli._saving import put_in_place, resolved, saving, work_folder
from st_contrastive.methods import ARGUMENTS, Method

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def add_data(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The group of options of the training text."""
    group = parser.add_argument_group("data")
    group.add_argument(
        "--data", required=True, type=name, metavar="FILE", help="UTF-8 text or .gz, one sentence a line"
    )
    group.add_argument("--limit", type=whole, metavar="N", help="take the first N sentences only")
    return group


def add_model(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The group of options of the encoder."""
    group = parser.add_argument_group("model")
    group.add_argument("--model", type=name, metavar="NAME", help="folder or hub name of the encoder to start from")
    group.add_argument(
        "--max-length", action=Given, type=whole, default=32, metavar="N", help="tokens a sentence; default: 32"
    )
    return group


def add_loss_arguments(group: argparse._ArgumentGroup, *methods: Method) -> None:
    """Options of the loss: an own one for each argument that matters most in one of the methods."""
    for argument, text in ARGUMENTS.items():
        having = [method.name for method in methods if argument in method.arguments]
        if having or (argument == "temperature" and len(methods) > 1):  # of one alone, the arguments are its own
            text = f"{', '.join(having)}: {text}" if having and len(methods) > 1 else text
            metavar = "NAME" if argument == "strategy" else "X"
            option = f"--{argument.replace('_', '-')}"
            group.add_argument(
                option, dest=argument, default=argparse.SUPPRESS, action=LossArgument, metavar=metavar, help=text
            )
    group.add_argument(
        "--loss-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other argument of the loss, such as head=false; may be repeated",
    )


def add_optimisation(parser: argparse.ArgumentParser, *, learning_rate: float = 3e-5) -> None:
    """The group of options of the Trainer."""
    parser.set_defaults(given=frozenset())
    group = parser.add_argument_group("optimisation")
    group.add_argument("--batch-size", action=Given, type=whole, default=64, metavar="N", help="default: 64")
    group.add_argument(
        "--learning-rate", type=positive_float, default=learning_rate, metavar="X", help=f"default: {learning_rate:g}"
    )
    group.add_argument("--epochs", action=Given, type=whole, default=1, metavar="N", help="default: 1")
    group.add_argument("--max-steps", action=Given, type=whole, metavar="N", help="stop there, whatever --epochs says")
    group.add_argument("--warmup", type=fraction, default=0.0, metavar="X", help="share of the steps; default: 0")
    group.add_argument("--seed", type=seed, default=42, metavar="N", help="default: 42")
    group.add_argument("--bf16", action="store_true", help="bfloat16 autocast")
    group.add_argument("--workers", type=count, default=0, metavar="N", help="processes that tokenise; default: none")
    group.add_argument("--group-by-length", action="store_true", help="sentences about as long in a batch, for GPUs")


def add_checkpoints(parser: argparse.ArgumentParser) -> None:
    """The group of options of what is written."""
    group = parser.add_argument_group("output and checkpoints")
    group.add_argument("--output", required=True, type=name, metavar="DIR", help="where the trained model goes")
    group.add_argument("--overwrite", action="store_true", help="replace a saved model in --output")
    group.add_argument("--checkpoints", type=name, metavar="DIR", help="keep the newest two there, for --resume")
    group.add_argument("--checkpoint-steps", type=whole, default=500, metavar="N", help="default: 500")
    group.add_argument("--resume", action="store_true", help="go on from the newest in --checkpoints, if there is one")
    add_verbose(parser)


def checkpoint_folder(args: argparse.Namespace, output: Path) -> Path | None:
    """Where checkpoints go; None keeps none.

    Raises:
        UserError: they would be lost with the output, or go among another run's.
    """
    from st_contrastive.training.checkpoints import checkpoints

    if args.checkpoints is None:
        if args.resume:
            raise UserError("--resume needs --checkpoints DIR, the folder of the run that was cut short.")
        return None
    folder = resolved("--checkpoints", args.checkpoints)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--checkpoints {args.checkpoints} is a file; name a folder.")
    if output in (folder, *folder.parents):
        raise UserError(f"--checkpoints {args.checkpoints} is in --output, which is replaced: name another folder.")
    if not args.resume and checkpoints(folder):
        raise UserError(
            f"--checkpoints {args.checkpoints} holds checkpoints of another run: add --resume to go on with it, or "
            "name another folder."
        )
    return folder


def _same_run(args: argparse.Namespace, files: dict[str, str], checkpoints: Path, *, resumed: bool) -> None:
    """Write the options that a run depends on beside its checkpoints; a resumed one must have the same.

    Raises:
        UserError: it has others, or they can't be written.
    """
    free = (
        "run", "given", "command", "verbose", "output", "stage1", "overwrite", "checkpoints", "checkpoint_steps",
        "resume", "workers",
    )  # fmt: skip
    now = {option: value for option, value in vars(args).items() if option not in free}
    now |= {f"{option}'s SHA-256": value for option, value in files.items()}
    file = checkpoints / "run.json"
    try:
        then = json.loads(file.read_text(encoding="utf-8")) if resumed and file.exists() else now
        changed = [option for option in now if option in then and then[option] != now[option]]
        if changed:
            told = ", ".join(f"--{name.replace('_', '-')} was {then[name]!r}" for name in changed)
            raise UserError(f"--resume goes on with the same run, and {told}. Give it as it was, or train anew.")
        checkpoints.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(now, indent=2) + "\n", encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"--checkpoints: {file} can't be used: {error}.") from error


def train_and_save(
    args: argparse.Namespace,
    folder: Path,
    checkpoints: Path | None,
    method: Method,
    model: SentenceTransformer,
    dataset: Any,
    loss: Any,
    own_length: int | None,
    *,
    save_beside: Callable[[Path], None] | None = None,
    evaluator: Any = None,
) -> None:
    """Run the Trainer and put the saved model, with what ``save_beside`` adds, into ``folder``.

    With an evaluator it is the model of the best evaluation. It reads ``own_length`` tokens of a text, as it did before
    it was trained on shorter ones.
    """
    from sentence_transformers import SentenceTransformerTrainingArguments
    from sentence_transformers.base.sampler import BatchSamplers
    from transformers import PrinterCallback

    from st_contrastive.cli import _card
    from st_contrastive.cli._progress import Progress
    from st_contrastive.cli._record import RunRecord, digests
    from st_contrastive.training import ContrastiveTrainer, KeepBest, LengthBatchSampler, LossStateError
    from st_contrastive.training.checkpoints import last_complete

    with work_folder(folder) as work:
        try:
            arguments = SentenceTransformerTrainingArguments(
                output_dir=str(checkpoints or f"{work}/trainer"),
                per_device_train_batch_size=args.batch_size,
                learning_rate=args.learning_rate,
                num_train_epochs=args.epochs,
                max_steps=args.max_steps or -1,
                warmup_steps=args.warmup,
                save_strategy="steps" if checkpoints else "no",
                save_steps=args.checkpoint_steps,
                save_total_limit=2,
                eval_strategy="no" if evaluator is None else "steps",
                eval_steps=None if evaluator is None else args.evaluate_steps,
                logging_steps=10,
                logging_nan_inf_filter=False,  # which logs a loss that is not a number as 0
                seed=args.seed,
                bf16=args.bf16,
                use_cpu=model.device.type == "cpu",  # without it, --bf16 is refused where there is no GPU
                dataloader_num_workers=args.workers,
                batch_sampler=LengthBatchSampler if args.group_by_length else BatchSamplers.BATCH_SAMPLER,
                report_to="none",
                disable_tqdm=True,  # for Progress
            )
        except ValueError as error:
            raise UserError(first_line(error)) from error
        try:
            newest = last_complete(checkpoints) if checkpoints and args.resume else None
        except ValueError as error:
            raise UserError(f"--resume: {error}") from error
        files = digests(args)
        if checkpoints is not None:
            _same_run(args, files, checkpoints, resumed=newest is not None)
        if newest is not None:
            print(f"Going on from {newest}.")
        elif args.resume:
            print(f"{checkpoints} holds no complete checkpoint: starting from the beginning.")
        try:
            record = RunRecord(args, files, loss, model, evaluator)
            metric = None if evaluator is None else f"{evaluator.name}_{evaluator.primary_metric}"
            best = None if metric is None else KeepBest(metric)
            _card.prepare(model, method, args.model, args.data)
            size = Path(args.data).stat().st_size
            trainer = ContrastiveTrainer(
                model=model,
                args=arguments,
                train_dataset=dataset,
                loss=loss,
                evaluator=evaluator,
                callbacks=[record, Progress(metric), *([] if best is None else [best])],
            )
            trainer.remove_callback(PrinterCallback)
            model.model_card_data.widget = []
            trainer.train(resume_from_checkpoint=str(newest) if newest else None)
            shares = [e["fallback_share"] for e in trainer.state.log_history if "fallback_share" in e]
            if shares:
                print(
                    f"Rows whose constructed sentence was their own, so that another's took its place (as in -s): "
                    f"{100 * sum(shares) / len(shares):.0f} % of {len(shares)} batches that were looked at."
                )
            _say_if_diverged(model, trainer.state.log_history)
            if best is not None and best.value is not None:
                print(f"Best of the evaluations: {100 * best.value:.2f} at step {best.step}.")
        except (OSError, LossStateError) as error:
            raise UserError(first_line(error)) from error
        saved = work / "model"
        with saving(folder):
            trained_length, model.max_seq_length = model.max_seq_length, own_length
            model.save_pretrained(str(saved))
            model.max_seq_length = trained_length
            found = None if best is None else (best.step, best.value)
            record.write(saved, trainer.state, found)
            about = _card.facts(
                method,
                record.options,
                size=size,
                sentences=len(dataset),
                steps=trainer.state.global_step,
                before=record.dev_before,
                best=found,
            )
            _card.complete(saved, about)
            if save_beside is not None:
                save_beside(saved)
            put_in_place(saved, folder)
    print(f"Saved to {folder}. Load it with SentenceTransformer({str(folder)!r}).")


def _say_if_diverged(model: SentenceTransformer, log: list[dict[str, Any]]) -> None:
    """Warn of weights, or a loss, that are not finite: the run ends like any other."""
    lost = next((entry["step"] for entry in log if not math.isfinite(entry.get("loss", 0.0))), None)
    broken = not all(bool(weight.isfinite().all()) for weight in model.parameters())
    if not broken and lost is None:
        return
    when = "" if lost is None else f": the loss is not a number at step {lost}"
    what = "not finite" if broken else "finite"
    print(f"The run diverged{when}. The saved weights are {what}. Take a lower --learning-rate.", file=sys.stderr)
