"""``st-contrastive train``: train an encoder on text without labels and save it."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_contrastive._checks import first_line
from st_contrastive.cli._user_errors import UserError, user_error
from st_contrastive.settings import RunSettings

if TYPE_CHECKING:
    from st_contrastive.cli._options import Options
    from st_contrastive.cli._progress import Progress
    from st_contrastive.recipes import RunPlan

USAGE = """st-contrastive train (--recipe NAME | --loss NAME --model NAME) --data FILE --output_dir DIR [options]
       st-contrastive train FILE.yaml [options]"""
_DESCRIPTION = "Train an encoder on text without labels, with sentence-transformers' Trainer, and save it."
_EPILOG = """\
To train on your own documents with titles, and test on some of them:
  st-contrastive train --recipe own-text --data articles.csv --column title,body
      --dev corpus --output_dir out

Every argument of SentenceTransformerTrainingArguments is an option too, such as
  --learning_rate 3e-5 --max_steps 150 --per_device_train_batch_size 64 --seed 1
  --save_steps 500 --report_to tensorboard --resume_from_checkpoint true
Every argument of the loss is an option too, such as
  --temperature 0.05 --head null --mini_batch_size 32
  --fraternal NAME   twins: checkpoint with the tokenizer and embeddings for
                     the translations
  --auxiliary DIR    infocse: output folder of --loss pretraining, instead of a
                     recipe's first stage
  --generator NAME   diffcse: a masked-LM checkpoint
FILE.yaml sets the same names: st-contrastive recipes NAME prints such a file,
and each run writes one, DIR/run.yaml. Options override the file;
"none" removes a setting, as in --dev none.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    commands.add_parser("train", help="train an encoder on text without labels")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of the run and of the Trainer, and the other words, which may be options of a loss."""
    if {"-h", "--help"} & {*argv}:
        _parser(RunSettings).parse_args(["--help"])  # exits
    from sentence_transformers import SentenceTransformerTrainingArguments

    file = [word for word in argv[:1] if not word.startswith("-")]
    parser = _parser(SentenceTransformerTrainingArguments, RunSettings)
    parsed, rest = parser.parse_known_args(argv[len(file) :])
    options = vars(parsed)
    return argparse.Namespace(run=run, verbose=options.pop("verbose", False), files=file, options=options, rest=rest)


def _parser(*kinds: Any) -> Options:
    from st_contrastive.cli._options import Options

    parser = Options(
        kinds, prog="st-contrastive train", usage=USAGE, description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=24),
        conflict_handler="resolve",  # both have --output_dir
    )  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="show everything that the libraries print")
    return parser


#: Marks an option without a value.
_NO_VALUE = "\0"


def _loss_options(words: Sequence[str]) -> dict[str, str]:
    """The other options, which may be arguments of the loss, as text."""
    parser = argparse.ArgumentParser(
        prog="st-contrastive train", usage=USAGE, allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS
    )
    for option in dict.fromkeys(word.partition("=")[0] for word in words if re.match("--[a-zA-Z]", word)):
        parser.add_argument(option, nargs="?", const=_NO_VALUE, metavar="VALUE")
    return vars(parser.parse_args(words))


def run(args: argparse.Namespace) -> int:
    """Train. If the run collapses, no model is saved, and the exit code is 1."""
    from st_contrastive.distributed import shut_down

    code = _train(args)
    shut_down()  # must run after the Trainer is released
    return code


def _train(args: argparse.Namespace) -> int:
    from st_contrastive import recipes
    from st_contrastive.cli._progress import Progress
    from st_contrastive.cli.next_step import describe_result

    plan = _plan(args)
    progress = Progress(is_silent=args.verbose, is_scored=plan.run.dev is not None)
    try:
        print(_describe_plan(plan), flush=True)
        result = recipes.run_plan(
            plan,
            on_trainer=lambda trainer: _announce(trainer, plan, progress),
            on_score=progress.print_start,
        )
    except BrokenPipeError:
        raise
    # RuntimeError: a tool of --report_to is missing; KeyError: the scores don't have the metric.
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        if progress.has_begun and not isinstance(error, OSError) and "metric_for_best_model" not in str(error):
            raise
        raise UserError(first_line(error)) from error
    if result.collapsed:  # the Trainer has warned
        print("No model is saved. Train again in another folder: a resumed run keeps its settings.", flush=True)
        return 1
    print(describe_result(result, plan))
    return 0


def _plan(args: argparse.Namespace) -> RunPlan:
    """The settings from the file, overridden by the options."""
    from st_contrastive.recipes import RunPlan, names, parse
    from st_contrastive.recipes.run import PLAN_FILE

    options, text = {**args.options, **_loss_options(args.rest)}, ""
    losses = [options.get("loss")]
    without_value = [name for name, value in options.items() if value == _NO_VALUE]
    for file in args.files:
        if file in names() and not Path(file).exists():
            raise UserError(f"{file} is a recipe, not a file of settings: type --recipe {file}.")
        with user_error(OSError, ValueError, prefix=f"{file}: "):
            text = Path(file).expanduser().read_text(encoding="utf-8")
            written = parse(text)
        folder = Path(file).expanduser().resolve().parent
        written = written if isinstance(written, Mapping) else {}  # from_yaml refuses other contents
        losses.append(written.get("loss"))
        is_resumed = Path(file).name == PLAN_FILE and "resume_from_checkpoint" in options
        # run.yaml omits output_dir: it is the folder that holds the file.
        if "output_dir" not in written and (is_resumed or [*folder.glob("checkpoint-*"), *folder.glob("stage1")]):
            options.setdefault("output_dir", str(folder))
    if any(":" in str(loss) for loss in losses) and "" not in sys.path:
        sys.path.append("")  # the user's loss may be in the current folder
    with user_error(TypeError, ValueError, prefix="".join(f"{file}: " for file in args.files)):
        plan = RunPlan.from_yaml(text, {name: value for name, value in options.items() if value != _NO_VALUE}
                                 | dict.fromkeys(without_value))  # fmt: skip
    if without_value:
        raise UserError(f"--{without_value[0]} needs a value.")
    if plan.run.output_dir is None:
        raise UserError("--output_dir is missing: name the folder for the model.")
    return plan


def _describe_plan(plan: RunPlan) -> str:
    """The recipe's title, the data and the model."""
    recipe, data = plan.recipe, plan.run.data or plan.run.translations
    reading = f"Reading {data} and loading {plan.run.model}." if data is not None else f"Loading {plan.run.model}."
    return f"{recipe.name}: {recipe.title}\n{reading}" if recipe.name else reading


def _notes(plan: RunPlan) -> str:
    """The recipe's notes, and the settings that differ from it. Each line ends with a line break."""
    recipe, settings = plan.recipe, plan.settings()
    if not recipe.name:
        return ""
    changes = [
        f"{name}: {settings[name]}, not {value}" if name in settings else f"{name}: not set, the recipe has {value}"
        for name, value in recipe.settings.items()
        if settings.get(name) != value
    ]
    return "".join(f"- {text}\n" for text in (*recipe.notes, *recipe.differs, *changes))


def _announce(trainer: Any, plan: RunPlan, progress: Progress) -> None:
    """Print the recipe's notes and a description of the data, and replace the Trainer's progress bar with lines."""
    from transformers import PrinterCallback, ProgressCallback

    from st_contrastive.evaluation import CorpusEvaluator
    from st_contrastive.inputs import describe

    first, folder = plan.first_stage(), Path(trainer.args.output_dir)
    is_stage1 = first is not None and folder == first.folder
    soup = [folder] if is_stage1 else [plan.folder, *(other.folder for other in plan.other_soup_runs())]
    number = 1 + soup.index(folder)
    if not progress.is_watching:  # once per run, with the first stage that trains
        print(_notes(plan), end="")
    if first is not None and number == 1:
        print("Stage 1:" if is_stage1 else "Stage 2:")
    prompts, limit = trainer.data_collator.prompts, trainer.max_length
    if number == 1:  # the runs of a soup read the same data
        print(describe(trainer.train_dataset, trainer.model, prompt=prompts, max_length=limit), flush=True)
    if isinstance(trainer.evaluator, CorpusEvaluator):
        documents, questions = len(trainer.evaluator.answers), len(trainer.evaluator.queries)
        print(
            f"Test: {questions:,} sentences of {documents:,} held-out documents. Each has to find the rest of its "
            "document (nDCG@10, 0 to 100).",
            flush=True,
        )
    if len(soup) > 1:
        print(f"Run {number} of {len(soup)}, seed {trainer.args.seed}:", flush=True)
    if not progress.is_silent:
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
    progress.watch(trainer, is_last=not is_stage1, runs_after=len(soup) - number)
