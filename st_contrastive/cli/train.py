"""``st-contrastive train``: train an encoder on unlabelled sentences and save it."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from st_contrastive._checks import first_line
from st_contrastive.cli._arguments import UserError, user_error
from st_contrastive.cli._arguments import name as name_of_file
from st_contrastive.methods import METHODS

if TYPE_CHECKING:
    from st_contrastive.recipes import Recipe, Run

USAGE = """st-contrastive train (--recipe NAME | --loss NAME --model NAME) --data FILE --output_dir DIR [options]
       st-contrastive train FILE.yaml [options]"""
_EPILOG = """\
Titles and bodies of your own documents, with a verdict by a test made of them:
  st-contrastive train --recipe own-text --data articles.csv --column title,body
      --dev corpus --output_dir out

Every argument of SentenceTransformerTrainingArguments is an option too, such as
  --learning_rate 3e-5 --max_steps 150 --per_device_train_batch_size 64 --bf16
  --save_steps 500 --report_to tensorboard --resume_from_checkpoint true
FILE.yaml has the same names with values, as st-contrastive recipes NAME prints
them, and DIR/run.yaml those of a run. Options override it; "none" removes a
setting, as in --dev none.
"""
#: Options, their metavars and help; the names are those of ``recipes.run``.
_OPTIONS = {
    "recipe": ("NAME", "own-text, or another that st-contrastive recipes lists"),
    "loss": ("NAME", f"{', '.join(METHODS)}; or a loss of your own, my_module:MyLoss"),
    "model": ("NAME", "encoder to start from: a folder or a hub name"),
    "data": ("FILE", "text, csv, tsv, json(l) or parquet, also compressed; a folder; a data set of the hub"),
    "output_dir": ("DIR", "folder of the model and its checkpoints"),
    "column": ("NAME", "column of --data that holds the texts; of two, such as title,body, each row is a pair"),
    "pairs": ("HOW", "first: the first sentence of each document and the rest of it are a pair"),
    "segment": ("HOW", "cut documents: sentences, by rules for English, or a language's code; default: lines"),
    "repeats": ("true|false", "train on exact repeats of one column too, as the papers do; default: false"),
    "translations": ("FILE", "twins: pairs of a sentence and its translation, in place of --data"),
    "fraternal": ("NAME", "twins: checkpoint whose tokenizer and embeddings read the translations"),
    "auxiliary": ("DIR", "infocse: folder that --loss pretraining wrote, in place of a recipe's first stage"),
    "generator": ("NAME", "diffcse: a masked-LM checkpoint"),
    "augment": ("NAME[=RATE]", "make the second text of each pair: repetition, deletion, insertion or synonyms for "
                "simcse and momentum, antonyms for conisi"),
    "dev": ("FILE", "graded pairs (sentence1, sentence2, score); stsb, the STS Benchmark's; or corpus, a test made of "
            "documents that are held out of --data. It is scored before and after training, and the best weights are "
            "saved, which may be those of the start"),
    "mix": ("SHARE", "also score a mixture of so much of the trained weights with the start's; without --dev, save it"),
    "pooling": ("NAME", "cls, mean, lasttoken; default: the model's own, else as in the loss's paper"),
    "max_length": ("N", "tokens that training reads of a text; default: the model's own"),
}  # fmt: skip
_VALUES = ("max_length", "mix", "repeats")


def value(text: str) -> Any:
    """A number, true or false, or the word that removes a setting."""
    words = {"none": "none", "true": True, "false": False}
    return words[text.lower()] if text.lower() in words else int(text) if text.isdigit() else float(text)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command with its own options, for the help; :func:`parse` knows the Trainer's too."""
    parser = commands.add_parser(
        "train",
        help="train an encoder on text without labels",
        description="Train an encoder on text without labels with sentence-transformers' Trainer, and save it.",
        usage=USAGE,
        epilog=_EPILOG,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=24),
    )
    _add_options(parser)


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = functools.partial(parser.add_argument, default=argparse.SUPPRESS)
    add("config", nargs="?", type=name_of_file, metavar="FILE.yaml", help=argparse.SUPPRESS)
    for name, (metavar, text) in _OPTIONS.items():
        add(f"--{name}", metavar=metavar, help=text, type=value if name in _VALUES else str)
    add("--languages", nargs=2, metavar=("FROM", "TO"), help="twins: the two fields of --translations")
    add("--loss_arg", action="append", metavar="NAME=VALUE", help="an argument of the loss; repeatable")
    add("--card_examples", action="store_true", help="let the model card quote the training text")
    add("--verbose", action="store_true", help="show all that the libraries print")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options that are given, and nothing else; with the Trainer's under their own names."""
    from sentence_transformers import SentenceTransformerTrainingArguments
    from transformers import HfArgumentParser

    arguments: Any = SentenceTransformerTrainingArguments
    parser = HfArgumentParser(
        arguments, prog="st-contrastive train", usage=USAGE, allow_abbrev=False, add_help=False,
        conflict_handler="resolve",  # of --output_dir, which both have
    )  # fmt: skip
    _add_options(parser)
    names = [field.name for field in fields(arguments)]
    # A name that the namespace has gets no default.
    parsed, unknown = parser.parse_known_args(argv, argparse.Namespace(**dict.fromkeys(names, argparse.SUPPRESS)))
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_hint(unknown[0])}")
    given = {name: value for name, value in vars(parsed).items() if value != argparse.SUPPRESS}
    whole = {name: int(value) for name, value in given.items() if isinstance(value, float) and value.is_integer()}
    return argparse.Namespace(**given | whole, run=run)  # 25 steps, not 25.0


def _hint(option: str) -> str:
    """The option that sets an argument of a loss."""
    from st_contrastive.recipes import loss_arguments

    name = option.lstrip("-").partition("=")[0].replace("-", "_")
    takers = [method.name for method in METHODS.values() if name in loss_arguments(method)]
    return f". --loss_arg {name}=VALUE sets it for the loss {', '.join(takers)}." if takers else ""


def run(args: argparse.Namespace) -> int:
    """Train. 1 if the run collapsed: no model is saved then."""
    from st_contrastive import recipes
    from st_contrastive.cli._progress import Progress

    begun = Progress(None)

    def on_trainer(trainer: Any) -> None:
        nonlocal begun
        begun = _announce(trainer, verbose=verbose)

    try:
        chosen, given = _settings(args)
        verbose = given.pop("verbose", False) or getattr(args, "verbose", False)
        print(_described(chosen, given), end="", flush=True)
        if ":" in str(chosen.loss):
            sys.path.append("")  # a loss of one's own may be in the current folder
        result = recipes.run(
            chosen,
            on_trainer=on_trainer,
            on_score=lambda score: print(f"Score before training: {100 * score:.2f}", flush=True),
            **given,
        )
    except (OSError, RuntimeError, TypeError, ValueError) as error:  # RuntimeError: a tool of --report_to is missing
        if begun.has_begun and not isinstance(error, OSError):
            raise
        raise UserError(first_line(error)) from error
    if result.collapsed:
        print("No model is saved.", flush=True)  # the Trainer has warned
        return 1
    print(_verdict(result, given.get("model") or chosen.settings["model"]))
    return 0


def _settings(args: argparse.Namespace) -> tuple[Recipe, dict[str, Any]]:
    """The recipe, and what is given beside it: by the file of settings, and before that by options."""
    from sentence_transformers import SentenceTransformerTrainingArguments

    from st_contrastive import recipes

    given: Any = {}
    if "config" in args:
        with user_error(ValueError, prefix=f"{args.config}: "):
            given = recipes.parse(Path(args.config).expanduser().read_text(encoding="utf-8"))
        if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
            raise UserError(f"{args.config} must hold names and values, such as `loss: simcse`; got {given!r:.80}.")
    given |= {name: value for name, value in vars(args).items() if name not in ("run", "config", "verbose", "loss_arg")}
    for item in getattr(args, "loss_arg", []):
        name, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"--loss_arg {item}: give NAME=VALUE.")
        given[name] = recipes.parse(value)
    trainers = {field.name for field in fields(SentenceTransformerTrainingArguments)}  # some take the word "none"
    taken = {name for name, value in given.items() if str(value).lower() == "none" and name not in trainers}
    given |= dict.fromkeys(taken)
    name, loss = given.pop("recipe", None), given.pop("loss", None)
    if (name is None) == (loss is None):
        raise UserError("give either --recipe NAME or --loss NAME (and --model NAME).")
    if given.get("output_dir") is None:
        raise UserError("--output_dir is missing: name the folder for the model.")
    return recipes.load(name) if name else recipes.Recipe("", loss, {}, stage1=given.pop("stage1", None)), given


def _described(recipe: Recipe, given: dict[str, Any]) -> str:
    notes = "".join(f"- {text}\n" for text in (*recipe.notes, *recipe.differs))
    changed = "".join(f"- {name}: {given[name]}, not {value}\n" for name, value in recipe.settings.items()
                      if name in given and given[name] != value)  # fmt: skip
    return f"{recipe.name}: {recipe.title}\n{notes}{changed}" if recipe.name else ""


def _announce(trainer: Any, *, verbose: bool) -> Any:
    """Print what is trained on, and let the Trainer's logs be lines."""
    from transformers import PrinterCallback, ProgressCallback

    from st_contrastive.cli._progress import Progress
    from st_contrastive.inputs import describe

    if Path(trainer.args.output_dir).name == "stage1":
        print("Stage 1:")
    prompt = trainer.args.prompts
    prompt = prompt.get("sentence") if isinstance(prompt, dict) else prompt
    report = describe(trainer.train_dataset, trainer.model, prompt=prompt, max_length=trainer.max_length)
    print(report, flush=True)
    progress = Progress(trainer.args.metric_for_best_model if trainer.evaluator is not None else None)
    if verbose:
        progress.on_log = lambda *args, **kwargs: None  # type: ignore[method-assign]
    else:
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
    trainer.add_callback(progress)
    return progress


def _verdict(result: Run, start: str) -> str:
    """Three lines: the scores, what is saved and why, and what to type next."""
    folder, why = result.trainer.args.output_dir, "" if result.before is None else ", which scored best"
    saved = {"trained": "the trained weights", "mixture": "the mixture of the trained weights with the start"}
    following = f"SentenceTransformer({folder!r}) loads it; st-contrastive evaluate {start} {folder} compares the two."
    if result.saved == "start":
        why = ", since nothing scored higher" + (f" by more than {100 * result.margin:.1f}" if result.margin else "")
        mix = "" if result.mixed is not None else " or --mix 0.5"
        following = f"try --learning_rate {result.trainer.args.learning_rate / 3:.0e}{mix}, in another folder."
    what = saved.get(str(result.saved), "the encoder that you started from")
    return f"{result}\nSaved in {folder}: {what}{why}.\nNext: {following}"
