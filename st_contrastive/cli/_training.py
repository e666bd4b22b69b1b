"""Options that ``train`` and ``pretrain-infocse`` share, and a run of the Trainer that ends in a saved model."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_contrastive._files import complete_file
from st_contrastive.cli._arguments import (
    Given,
    LossArgument,
    Once,
    UserError,
    count,
    fraction,
    name,
    option_name,
    positive_float,
    seed,
    user_error,
    whole,
)
from st_contrastive.cli._quiet import add_verbose
from st_contrastive.cli._saving import RUN_FILE, options_of_run, put_in_place, saving, work_folder
from st_contrastive.methods import ARGUMENTS, Method

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
    from transformers import TrainerCallback

    from st_contrastive.training import ContrastiveTrainer, KeepBest

#: Options that a resumed run may change.
_FREE = frozenset(
    {"run", "given", "verbose", "output", "stage1", "overwrite", "checkpoints", "checkpoint_steps", "resume", "workers"}
)


def add_data(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the group "data"."""
    group = parser.add_argument_group("data")
    group.add_argument(
        "--data", action=Once, required=True, type=name, metavar="FILE", help="UTF-8 text, one sentence per line"
    )
    group.add_argument("--limit", type=whole, metavar="N", help="train on the first N sentences only")
    return group


def add_model(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the group "model"."""
    group = parser.add_argument_group("model")
    group.add_argument("--model", type=name, metavar="NAME", help="encoder to start from: a folder or a hub name")
    group.add_argument(
        "--max-length", action=Given, type=whole, default=32, metavar="N", help="tokens per sentence; default: 32"
    )
    return group


def add_loss_arguments(group: argparse._ArgumentGroup, *methods: Method) -> None:
    """Add an option for each of the main arguments of the methods' losses, and ``--loss-arg`` for the others."""
    for argument, text in ARGUMENTS.items():
        having = [method.name for method in methods if argument in method.arguments]
        if having or (argument == "temperature" and len(methods) > 1):  # every contrastive loss has a temperature
            group.add_argument(
                option_name(argument),
                dest=argument,
                default=argparse.SUPPRESS,
                action=LossArgument,
                metavar={"strategy": "NAME", "queue_batches": "N", "queue_size": "N"}.get(argument, "X"),
                help=f"{', '.join(having)}: {text}" if having and len(methods) > 1 else text,
            )
    group.add_argument(
        "--loss-arg", action="append", default=[], metavar="NAME=VALUE", help="another argument of the loss; repeatable"
    )


def add_optimisation(
    parser: argparse.ArgumentParser,
    *,
    learning_rate: float = 3e-5,
    max_steps: str = "train N steps instead of --epochs",
) -> None:
    """Add the group "optimisation"; ``max_steps`` is the help of ``--max-steps``."""
    parser.set_defaults(given=frozenset())
    group = parser.add_argument_group("optimisation")
    group.add_argument(
        "--batch-size", action=Given, type=whole, default=64, metavar="N", help="sentences per step; default: 64"
    )
    group.add_argument(
        "--learning-rate", type=positive_float, default=learning_rate, metavar="X", help=f"default: {learning_rate:g}"
    )
    group.add_argument("--epochs", action=Given, type=whole, default=1, metavar="N", help="default: 1")
    group.add_argument(
        "--max-steps",
        action=Given,
        type=whole,
        metavar="N",
        help=max_steps,
    )
    group.add_argument(
        "--warmup",
        action=Given,
        type=fraction,
        default=0.0,
        metavar="X",
        help="share of the steps in which the learning rate rises from 0; default: 0",
    )
    group.add_argument("--seed", type=seed, default=42, metavar="N", help="default: 42")
    group.add_argument("--bf16", action="store_true", help="train with bfloat16 autocast")
    group.add_argument("--workers", type=count, default=0, metavar="N", help="tokenising processes; default: 0")
    group.add_argument("--group-by-length", action="store_true", help="batch sentences of similar length")


def add_checkpoints(parser: argparse.ArgumentParser) -> None:
    """Add the group "output and checkpoints"."""
    group = parser.add_argument_group("output and checkpoints")
    group.add_argument("--output", required=True, type=name, metavar="DIR", help="folder to save the trained model in")
    group.add_argument("--overwrite", action="store_true", help="replace a saved model in --output")
    group.add_argument("--checkpoints", type=name, metavar="DIR", help="keep the two newest checkpoints there")
    group.add_argument(
        "--checkpoint-steps",
        action=Given,
        type=whole,
        default=500,
        metavar="N",
        help="steps between checkpoints; default: 500",
    )
    group.add_argument("--resume", action="store_true", help="continue from the newest checkpoint, if there is one")
    add_verbose(parser)


def training_arguments(
    args: argparse.Namespace, model: SentenceTransformer, folder: Path | str, evaluator: Any, **more: Any
) -> SentenceTransformerTrainingArguments:
    """The Trainer's arguments, by the command's options."""
    from sentence_transformers import SentenceTransformerTrainingArguments

    return SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        max_steps=args.max_steps or -1,
        eval_strategy="no" if evaluator is None else "steps",
        seed=args.seed,
        use_cpu=model.device.type == "cpu",  # otherwise --bf16 is refused on machines without a GPU
        prompts=_default_prompt(model),
        report_to="none",
        disable_tqdm=True,  # Progress takes its place
        **more,
    )


def _default_prompt(model: SentenceTransformer) -> str | None:
    """The text that the model puts before what it encodes, which it then should be trained with too."""
    name = model.default_prompt_name
    prompt = model.prompts.get(name, "") if name is not None else ""
    if prompt:
        print(f"Each text is read after the model's prompt {prompt!r}, as by encode.")
    return prompt or None


def make_trainer(
    arguments: SentenceTransformerTrainingArguments,
    model: SentenceTransformer,
    method: Method,
    dataset: Any,
    loss: Any,
    evaluator: Any,
    callbacks: Sequence[TrainerCallback],
    *,
    base: str,
    data: str,
) -> ContrastiveTrainer:
    """The Trainer of a run; ``base`` and ``data`` are the starting model and the training text on the model card."""
    from transformers import PrinterCallback

    from st_contrastive.cli import _card
    from st_contrastive.training import ContrastiveTrainer

    _card.prepare(model, method, base, data)
    trainer = ContrastiveTrainer(
        model=model, args=arguments, train_dataset=dataset, loss=loss, evaluator=evaluator, callbacks=list(callbacks)
    )
    trainer.remove_callback(PrinterCallback)
    model.model_card_data.widget = []
    return trainer


def _check_same_run(args: argparse.Namespace, files: dict[str, str], checkpoints: Path, *, resumed: bool) -> None:
    """Write the options of the run beside its checkpoints; a resumed run must have the same.

    Raises:
        UserError: an option or an input file has changed, or the options can't be written.
    """
    now = {option: value for option, value in vars(args).items() if option not in _FREE}
    now |= {f"{option}'s SHA-256": value for option, value in files.items()}
    file = checkpoints / RUN_FILE
    if args.stage1 is not None:  # which --auxiliary names too; its content is among the files
        now.pop("auxiliary")
    try:
        then = (options_of_run(checkpoints) if resumed else None) or now
        changed = [option for option in now if option in then and then[option] != now[option]]
        if changed:
            text = ", ".join(f"{option_name(name)} was {then[name]!r}" for name in changed)
            raise UserError(f"--resume continues the same run, but {text}. Give the same options, or start a new run.")
        with complete_file(file) as partial:
            partial.write_text(json.dumps(now, indent=2) + "\n", encoding="utf-8")
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"--checkpoints: {file} can't be used: {error}.") from error


_DIVERGED, _SLOWER = "The run diverged", "Use a lower --learning-rate."


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
    keep: float | str = 1.0,
) -> int:
    """Run the Trainer, and put the saved model, with what ``save_beside`` adds, into ``folder``.

    With an evaluator, the weights are those of the best evaluation. ``keep`` is the share of the trained weights in
    the saved ones, the rest being those before training, or "best" on the evaluator's data. The saved model reads
    ``own_length`` tokens of a text, as it did before it was trained on shorter ones.

    Returns:
        The exit code: 1 if the saved weights are not finite.

    Raises:
        UserError: bad input; or the weights are not finite, and ``folder`` holds another model.
    """
    from sentence_transformers.base.sampler import BatchSamplers

    from st_contrastive.cli import _card
    from st_contrastive.cli._progress import Progress
    from st_contrastive.cli._record import RunRecord, digests
    from st_contrastive.training import KeepBest, LengthBatchSampler, LossStateError
    from st_contrastive.training.checkpoints import last_complete
    from st_contrastive.training.mixing import SHARES, mixture, require_plain

    with work_folder(folder) as work:
        with user_error(ValueError):
            if keep != 1:
                require_plain(model, "--model")
            arguments = training_arguments(
                args,
                model,
                checkpoints or work / "trainer",
                evaluator,
                num_train_epochs=args.epochs,
                warmup_steps=args.warmup,
                save_strategy="steps" if checkpoints else "no",
                save_steps=args.checkpoint_steps,
                save_total_limit=2,
                eval_steps=None if evaluator is None else args.evaluate_steps,
                logging_steps=10,
                logging_nan_inf_filter=False,  # it logs a loss that is not a number as 0
                bf16=args.bf16,
                dataloader_num_workers=args.workers,
                batch_sampler=LengthBatchSampler if args.group_by_length else BatchSamplers.BATCH_SAMPLER,
            )
        with user_error(ValueError, prefix="--resume: "):
            newest = last_complete(checkpoints) if checkpoints and args.resume else None
        files = digests(args)
        if checkpoints is not None:
            _check_same_run(args, files, checkpoints, resumed=newest is not None)
        if newest is not None:
            print(f"Resuming from {newest}.")
        elif args.resume:
            print(f"{checkpoints} holds no complete checkpoint: starting from the beginning.")
        with user_error(OSError, LossStateError):
            record = RunRecord(args, files, loss, model, evaluator)
            metric = None if evaluator is None else f"{evaluator.name}_{evaluator.primary_metric}"
            chosen = {"shares": SHARES, "evaluator": evaluator} if keep == "best" else {}
            best = None if metric is None else KeepBest(metric, **chosen)
            start = {}
            if isinstance(keep, float) and keep < 1:
                start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            size = Path(args.data).stat().st_size
            callbacks = [record, Progress(metric), *([] if best is None else [best])]
            trainer = make_trainer(
                arguments, model, method, dataset, loss, evaluator, callbacks, base=args.model, data=args.data
            )
            trainer.train(resume_from_checkpoint=str(newest) if newest else None)
            log = trainer.state.log_history
            # Printed when the model is saved: nobody may read the output any more, and then print fails.
            said, diverged = list(_of_fallbacks(log)), _of_divergence(log)
            if best is not None and best.value is not None:
                said.append(f"Best of the evaluations: {100 * best.value:.2f} at step {best.step}.")
            share = 1.0
            if best is not None and best.choice is not None:
                share = best.choice.share
                scaled = {tried: 100 * value for tried, value in best.choice.values.items()}
                said.append(str(replace(best.choice, values=scaled)))  # as the progress has the scores
            if isinstance(keep, float) and start:
                share = keep
                model.load_state_dict(mixture(model.state_dict(), start, keep))
                said.append(f"Saved weights: {keep:g} x trained + {1 - keep:g} x untrained.")
            after = None if best is None or metric is None else _dev_after(model, evaluator, best, metric, share)
        finite = all(bool(weight.isfinite().all()) for weight in model.parameters())
        if not finite and folder.is_dir() and any(folder.iterdir()):
            raise UserError(f"{diverged or _DIVERGED}. The weights are not finite: {folder} stays as it was. {_SLOWER}")
        saved = work / "model"
        with saving(folder):
            trained_length, model.max_seq_length = model.max_seq_length, own_length
            model.save_pretrained(str(saved))
            model.max_seq_length = trained_length
            written = record.write(saved, trainer.state, best, share=share, after=after)
            _card.add_facts(saved, method, written, size=size, sentences=len(dataset))
            if save_beside is not None:
                save_beside(saved)
            put_in_place(saved, folder, args)
    if diverged or not finite:
        weights = "finite" if finite else "not finite"
        print(f"{diverged or _DIVERGED}. The saved weights are {weights}. {_SLOWER}", file=sys.stderr)
    use = f"Load it with SentenceTransformer({str(folder)!r})." if finite else "It has the record of the run."
    print(*said, f"Saved to {folder}. {use}", sep="\n")
    return 0 if finite else 1


def _dev_after(model: SentenceTransformer, evaluator: Any, best: KeepBest, metric: str, share: float) -> float | None:
    """The development score of the weights that are saved, which the model card then has too."""
    from st_contrastive.training.mixing import outside_training

    if best.choice is not None:  # which has stored it
        return best.choice.values[share]
    if best.value is None:
        return None
    with outside_training(model):
        value: float = best.value if share == 1 else evaluator(model)[metric]
        evaluator.store_metrics_in_model_card_data(model, {metric: value})
    return value


def _of_fallbacks(log: list[dict[str, Any]]) -> Iterator[str]:
    """How many rows had no constructed sentence."""
    shares = [entry["fallback_share"] for entry in log if "fallback_share" in entry]
    if shares:
        yield (
            f"In {100 * sum(shares) / len(shares):.0f} % of the rows of {len(shares)} logged batches, the constructed "
            "sentence equalled the sentence. They took another sentence of the batch instead, as in ConIsI-s."
        )


def _of_divergence(log: list[dict[str, Any]]) -> str:
    """What to say if a logged loss is not a number; otherwise ""."""
    step = next((entry["step"] for entry in log if not math.isfinite(entry.get("loss", 0.0))), None)
    return "" if step is None else f"{_DIVERGED}: the loss is not a number at step {step}"
