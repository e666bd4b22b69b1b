"""Recipes times seeds times suites, each cell trained and scored once, and what is known after each.

    python -m benchmarks.replicate --recipes mini-simcse mini-conisi-s --seeds 0 1 2 --data wiki.txt.gz --suites data/

Every cell is a run of ``st-contrastive train`` in a process of its own, with the best of its evaluations on the
development split kept, and of ``st-contrastive evaluate`` on the tests. Its raw scores go into the results file at
once, with the curve on the development split, versions, commit, device, wall time and peak memory; a cell that is there
is not run again, so that a run that was cut short goes on. ``python -m benchmarks.tables`` makes tables and pictures of
the file. ``--base NAME=FOLDER`` starts the recipes from another encoder, ``--set`` changes an argument of the loss, and
``--label`` names what comes of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks._results import read, software, write

RESULTS = Path(__file__).parent / "results" / "replicate.json"


def commit() -> str:
    """The commit that runs, with a mark if files differ from it; "" where there is no repository."""
    here = Path(__file__).parent
    told = [
        subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=False).stdout.strip()
        for words in (["rev-parse", "--short=10", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    ]
    return told[0] + ("+" if told[0] and told[1] else "")


def key(cell: dict[str, Any]) -> tuple[Any, ...]:
    return cell["recipe"], cell["label"], cell["base"], cell["seed"]


def command(*words: str) -> str:
    """Run a command of the package; what it printed.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    done = subprocess.run([sys.executable, "-m", "st_contrastive", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words[:3])} failed: {done.stderr.strip()[-600:]}")
    return done.stdout


def cell(recipe: str, seed: int, args: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Train and score."""
    out, scores = f"{folder}/out", f"{folder}/scores.json"
    words = ["train", "--recipe", recipe, "--seed", str(seed), "--data", args.data, "--output", out]
    words += [word for value in args.set for word in ("--set", value)]
    words += args.options.split() if args.options else []
    if args.base:
        words += ["--model", args.base.partition("=")[2]]
    if args.dev:
        words += ["--dev", args.dev]
    began = time.perf_counter()
    command(*words)
    seconds = time.perf_counter() - began
    record = json.loads(Path(out, "training_run.json").read_text(encoding="utf-8"))
    return {
        "scores": scored(out, args, scores),
        "curve": [(e["step"], e["eval_dev_spearman"]) for e in record["log"] if "eval_dev_spearman" in e],
        "best_step": (record["best"] or {}).get("step"),
        "steps": record["steps"],
        "loss": record["loss"],
        "seconds": round(seconds, 1),
        "peak_mib": record["peak_mib"],
        "device": record["device"],
        "versions": record["versions"],
    }


def scored(model: str, args: argparse.Namespace, file: str, *more: str) -> dict[str, float]:
    """The model's scores on the suites, by task, split and metric."""
    words = ["evaluate", model, *more, "--suite", *args.suite, "--data", args.suites, "--splits", "dev", "test"]
    words += ["--max-length", str(args.score_length)] if args.score_length else []
    command(*words, "--json", file)
    found = json.loads(Path(file).read_text(encoding="utf-8"))["scores"]
    return {f"{one['task']} {one['split']} {one['metric']}": one["value"] for one in found}


def untrained(args: argparse.Namespace) -> dict[str, Any]:
    """The scores of what the recipes start from, under [CLS] pooling and the mean's."""
    from st_contrastive.recipes import recipe

    model = args.base.partition("=")[2] if args.base else recipe(args.recipes[0]).options["model"]
    with tempfile.TemporaryDirectory() as folder:
        return {
            pooling: scored(model, args, f"{folder}/scores.json", "--pooling", pooling) for pooling in ("cls", "mean")
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--data", required=True, help="sentences, one a line")
    parser.add_argument("--dev", help="the STS Benchmark's development split, as .jsonl or .jsonl.gz")
    parser.add_argument("--suites", required=True, help="folder with sts, retrieval, transfer")
    parser.add_argument("--suite", nargs="+", default=["sts"], help="which of them; default: sts")
    parser.add_argument("--score-length", type=int, default=32, help="tokens a text in scoring; default: 32")
    parser.add_argument("--base", default="", metavar="NAME=FOLDER", help="start from this encoder")
    parser.add_argument("--label", default="", help="of what --set and --options change")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an argument of the loss")
    parser.add_argument("--options", default="", help="more options of st-contrastive train, as one string")
    parser.add_argument("--json", default=str(RESULTS), help="where the results go, and what is there is not run again")
    args = parser.parse_args()
    if (args.set or args.options) and not args.label:
        raise SystemExit("--set and --options make another cell: name it with --label.")
    base = args.base.partition("=")[0]
    cells = read(args.json, {"cells": [], "untrained": {}})
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if base not in cells["untrained"]:
        cells["untrained"][base] = untrained(args)
        write(args.json, cells)
    for seed in args.seeds:  # seed by seed, so that what is there compares
        for recipe in args.recipes:
            about = {"recipe": recipe, "label": args.label, "base": base, "seed": seed}
            if any(key(one) == key(about) for one in cells["cells"]):
                continue
            with tempfile.TemporaryDirectory() as folder:
                found = cell(recipe, seed, args, folder)
            about |= {"data": Path(args.data).name, "set": args.set, "options": args.options, "commit": commit()}
            cells["cells"].append({**about, **software(), **found})
            tests = [value for name, value in found["scores"].items() if " test " in name]
            print(about, found["best_step"], f"{100 * sum(tests) / len(tests):.2f}", found["seconds"], flush=True)
            write(args.json, cells)


if __name__ == "__main__":
    main()
