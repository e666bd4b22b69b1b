"""``st-contrastive train``: train an encoder on unlabelled sentences and save it."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_contrastive._checks import first_line
from st_contrastive.cli._user_errors import UserError, user_error
from st_contrastive.methods import find_method
from st_contrastive.settings import RunSettings

if TYPE_CHECKING:
    from st_contrastive.cli._options import Options
    from st_contrastive.cli._progress import Progress
    from st_contrastive.recipes import Recipe, Run

USAGE = """st-contrastive train (--recipe NAME | --loss NAME --model NAME) --data FILE --output_dir DIR [options]
       st-contrastive train FILE.yaml [options]"""
_DESCRIPTION = "Train an encoder on text without labels, with sentence-transformers' Trainer, and save it."
_EPILOG = """\
For titled documents of your own, with a test on some of them:
  st-contrastive train --recipe own-text --data articles.csv --column title,body
      --dev corpus --output_dir out

Every argument of SentenceTransformerTrainingArguments is an option too, such as
  --learning_rate 3e-5 --max_steps 150 --per_device_train_batch_size 64 --seed 1
  --save_steps 500 --report_to tensorboard --resume_from_checkpoint true
and so is every argument of the loss, such as
  --temperature 0.05 --head null --mini_batch_size 32
  --fraternal NAME   twins: checkpoint whose tokenizer and embeddings read the
                     translations
  --auxiliary DIR    infocse: output folder of --loss pretraining, in place of
                     a recipe's first stage
  --generator NAME   diffcse: a masked-LM checkpoint
FILE.yaml holds the same names with values: st-contrastive recipes NAME prints
one, and each run writes its own, DIR/run.yaml. Options override the file;
"none" removes a setting, as in --dev none.
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    commands.add_parser("train", help="train an encoder on text without labels")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options that are given, of the run and of the Trainer; the rest may be those of a loss."""
    if {"-h", "--help"} & {*argv}:
        _parser(RunSettings).parse_args(["--help"])  # which exits
    from sentence_transformers import SentenceTransformerTrainingArguments

    file = [word for word in argv[:1] if not word.startswith("-")]
    parser = _parser(SentenceTransformerTrainingArguments, RunSettings)
    parsed, rest = parser.parse_known_args(argv[len(file) :])
    given = vars(parsed)
    return argparse.Namespace(run=run, verbose=given.pop("verbose", False), files=file, given=given, rest=rest)


def _parser(*kinds: Any) -> Options:
    from st_contrastive.cli._options import Options

    parser = Options(
        kinds, prog="st-contrastive train", usage=USAGE, description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=24),
        conflict_handler="resolve",  # of --output_dir, which both have
    )  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="show all that the libraries print")
    return parser


def _loss_options(words: Sequence[str]) -> dict[str, Any]:
    """Options that may be arguments of the loss which is trained."""
    from st_contrastive import recipes

    parser = argparse.ArgumentParser(
        prog="st-contrastive train", usage=USAGE, allow_abbrev=False, add_help=False, argument_default=argparse.SUPPRESS
    )
    for option in dict.fromkeys(word.partition("=")[0] for word in words if re.match("--[a-zA-Z]", word)):
        parser.add_argument(option, type=recipes.parse, metavar="VALUE")
    return vars(parser.parse_args(words))


def _chosen(given: Mapping[str, Any]) -> Recipe:
    """The recipe that is named, or one of the loss alone."""
    from st_contrastive import recipes

    name, loss = given.get("recipe"), given.get("loss")
    if (name is None) == (loss is None):
        raise UserError("give either --recipe NAME or --loss NAME (and --model NAME).")
    if ":" in str(loss) and "" not in sys.path:
        sys.path.append("")  # a loss of one's own may be in the current folder
    with user_error(ValueError):
        if loss is None:
            return recipes.load(str(name))
        has_stage1 = given.get("stage1") is not None and "auxiliary" in find_method(loss).checkpoints
        return recipes.Recipe("", loss, {}, stage1={} if has_stage1 else None)


def run(args: argparse.Namespace) -> int:
    """Train. 1 if the run collapsed: no model is saved then."""
    from st_contrastive.distributed import shut_down

    code = _train(args)
    shut_down()  # when nothing refers to the Trainer
    return code


def _train(args: argparse.Namespace) -> int:
    from st_contrastive import recipes
    from st_contrastive.cli._progress import Progress

    progress = Progress(silent=args.verbose)
    try:
        chosen, given = _settings(args)
        print(_described(chosen, given), end="", flush=True)
        result = recipes.run(
            chosen,
            on_trainer=lambda trainer: _announce(trainer, progress),
            on_score=progress.print_start,
            **given,
        )
    # RuntimeError: a tool of --report_to is missing; KeyError: the scores don't have the metric.
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        if progress.has_begun and not isinstance(error, OSError) and "metric_for_best_model" not in str(error):
            raise
        raise UserError(first_line(error)) from error
    if result.collapsed:  # the Trainer has warned
        print("No model is saved. Train again in another folder: a resumed run keeps its settings.", flush=True)
        return 1
    print(_verdict(result, {**chosen.settings, **given}))
    return 0


def _settings(args: argparse.Namespace) -> tuple[Recipe, dict[str, Any]]:
    """The recipe, and what is given beside it: by the file of settings, and before that by options."""
    from st_contrastive import recipes

    given: Any = {}
    for file in args.files:
        with user_error(ValueError, prefix=f"{file}: "):
            given = recipes.parse(Path(file).expanduser().read_text(encoding="utf-8"))
        if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
            raise UserError(f"{file} must hold names and values, such as `loss: simcse`; got {given!r:.80}.")
        folder = Path(file).expanduser().resolve().parent
        if [*folder.glob("checkpoint-*"), *folder.glob("stage1")]:  # of the run that wrote the file
            given.setdefault("output_dir", str(folder))
    given |= args.given
    given |= _loss_options(args.rest)
    for name, value in given.items():
        if isinstance(value, str) and value.startswith("{"):
            with user_error(ValueError, prefix=f"--{name}: "):
                given[name] = recipes.parse(value)
        if str(value).lower() == "none" and name not in recipes.TRAINING:  # of which some take the word
            given[name] = None
    if given.get("output_dir") is None:
        raise UserError("--output_dir is missing: name the folder for the model.")
    chosen = _chosen(given)
    return chosen, {name: value for name, value in given.items() if name not in ("recipe", "loss")}


def _described(recipe: Recipe, given: Mapping[str, Any]) -> str:
    notes = "".join(f"- {text}\n" for text in (*recipe.notes, *recipe.differs))
    changed = "".join(f"- {name}: {given[name]}, not {value}\n" for name, value in recipe.settings.items()
                      if name in given and given[name] != value)  # fmt: skip
    return f"{recipe.name}: {recipe.title}\n{notes}{changed}" if recipe.name else ""


def _announce(trainer: Any, progress: Progress) -> None:
    """Print what is trained on, and let the Trainer's logs be lines."""
    from transformers import PrinterCallback, ProgressCallback

    from st_contrastive.inputs import describe

    if Path(trainer.args.output_dir).name == "stage1":
        print("Stage 1:")
    prompt = trainer.data_collator.prompts
    prompt = prompt.get("sentence") if isinstance(prompt, dict) else prompt
    report = describe(trainer.train_dataset, trainer.model, prompt=prompt, max_length=trainer.max_length)
    print(report, flush=True)
    progress.announced = time.monotonic()
    if not progress.silent:
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
    trainer.add_callback(progress)


def _verdict(result: Run, settings: Mapping[str, Any]) -> str:
    """The scores, what is saved and why, and what to type next; each in a line."""
    folder, is_judged = str(result.trainer.args.output_dir), bool(result.judgements)
    why = "" if result.before is None else ", judged better" if is_judged else ", which scored best"
    saved = {"trained": "the trained weights", "mixture": "the mixture of the trained weights with the start"}
    what = saved.get(str(result.saved), "the encoder that you started from")
    if result.saved == "start":
        why = f", since nothing {'is better beyond chance' if is_judged else 'scored higher'}"
        following = _another_try(result, settings)
    elif hasattr(result.trainer.loss, "save_auxiliary"):
        stage2 = ["--loss", "infocse", "--model", folder, "--auxiliary", folder, "--output_dir", f"{folder}-stage2"]
        texts = [(f"--{name}", settings[name]) for name in ("data", "column", "segment") if settings.get(name)]
        following = shlex.join(["st-contrastive", "train", *stage2, *(str(word) for pair in texts for word in pair)])
    else:
        following = f"SentenceTransformer({folder!r}) loads it; to compare: {_comparison(result, settings)}"
    return f"{result}\nSaved in {folder}: {what}{why}.\nNext: {following}"


def _another_try(result: Run, settings: Mapping[str, Any]) -> str:
    """What may help where nothing was gained."""
    from st_contrastive.inputs.segments import get_language

    start, language = result.judgements.get("start"), get_language(settings.get("segment") or "sentences") or "en"
    command = _search(settings, result, "--bm25", *([] if language == "en" else ["--language", language]))
    if command and start is not None and start.mixed_ndcg is not None and start.mixed_ndcg > start.ndcg:
        return f"mix in BM25, with which the score is {100 * start.mixed_ndcg:.2f}: {command}"
    if {result.after, result.mixed} <= {result.before, None}:
        return "the score has not moved: train for longer, or at a higher --learning_rate, in another folder."
    mix = "" if result.mixed is not None else " or --mix 0.5"
    return f"try --learning_rate {result.trainer.args.learning_rate / 3:.0e}{mix}, in another folder."


def _comparison(result: Run, settings: Mapping[str, Any]) -> str:
    """A command that compares the saved model with the start: on the user's own documents, where they are known.

    A start without a pooling of its own is read under the one that was trained.
    """
    from st_contrastive.recipes import has_pooling

    start = str(settings["model"])
    modes = (getattr(module, "pooling_mode", None) for module in result.trainer.model)
    pooling = [] if has_pooling(start) else [word for mode in modes if mode for word in ("--pooling", mode)]
    if command := _search(settings, result, *pooling, start=start):
        return command
    extra = "" if find_spec("mteb") else " (it needs the extra eval)"
    return shlex.join(["st-contrastive", "evaluate", start, str(result.trainer.args.output_dir), *pooling]) + extra


def _search(settings: Mapping[str, Any], result: Run, *options: str, start: str | None = None) -> str:
    """A command that searches in the user's documents, with the start too; "" where they are not known."""
    data, column = settings.get("data"), settings.get("column") or ()
    columns = column.split(",") if isinstance(column, str) else [*column]
    if not isinstance(data, str) or not (settings.get("dev") == "corpus" or columns):
        return ""
    models = [*([] if start is None else [start]), str(result.trainer.args.output_dir)]
    named = ["--column", ",".join(columns)] if columns else []
    return shlex.join(["st-contrastive", "search", data, *models, "a query", *named, *options])
