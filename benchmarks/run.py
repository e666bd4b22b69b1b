"""Run the rows of a plan, each with several seeds, and append a JSON line for each run that is not there yet.

A plan is a YAML file::

    table: minilm-mean            # of the result lines
    untrained: all-MiniLM-L6-v2   # also scored as it is
    seeds: [1, 2, 3]
    settings: {dev: stsb, max_steps: 150}     # of every row, as recipes.run takes them
    rows:
      SimCSE: {recipe: mini-simcse}
      SimCSE, temperature 0.1: {recipe: mini-simcse, temperature: 0.1, seeds: [1]}
      MultipleNegativesRankingLoss: {baseline: mnrl, model: ..., learning_rate: 2e-5}

The paths of the data are given on the command line; a row's own ``data`` or ``translations`` is a file below
``--sets``. A command that was stopped continues where it stopped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from transformers.trainer_utils import get_last_checkpoint

from benchmarks import RESULTS, provenance
from benchmarks.baselines import BASELINES
from benchmarks.scores import all_scores
from st_contrastive import recipes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--data", required=True, help="training sentences, in any form that recipes.run reads")
    parser.add_argument("--sets", type=Path, required=True, help="folder with sts/ and transfer/ to score on")
    parser.add_argument("--out", type=Path, help="result lines; without it, results/<the plan's name>.jsonl")
    parser.add_argument("--rows", nargs="+", help="only these rows")
    parser.add_argument("--transfer", action="store_true", help="score transfer tasks too, which takes minutes per run")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings in place of the plan's")
    args = parser.parse_args()
    plan = recipes.parse(args.plan.read_text(encoding="utf-8"))
    out = args.out or RESULTS / f"{args.plan.stem}.jsonl"
    overrides = {name: recipes.parse(value) for name, _, value in (pair.partition("=") for pair in args.set)}
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    done = {(line["table"], line.get("encoder"), line["row"], line["seed"]) for line in lines}
    table = plan["table"]
    if "untrained" in plan:
        name = str(overrides.get("model", plan["untrained"]))
        line = {"table": table, "encoder": Path(name).name, "row": "untrained", "seed": 0}
        if tuple(line.values()) not in done:
            append(out, {**line, "scores": all_scores(recipes.load_model(name), args), **provenance()})
    for row, settings in plan["rows"].items():
        if args.rows and row not in args.rows:
            continue
        own = {**plan.get("settings", {}), **settings, **overrides}
        for seed in own.pop("seeds", plan["seeds"]):
            line = {"table": table, "encoder": Path(str(own["model"])).name if "model" in own else None}
            line |= {"row": row, "seed": seed}
            if tuple(line.values()) not in done:
                append(out, {**line, **one_run(own, seed, args), **provenance()})


def one_run(settings: dict[str, Any], seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train one cell in a temporary folder, and score it."""
    settings, start = dict(settings), time.perf_counter()
    files = {name: args.sets / settings.pop(name) for name in ("data", "translations") if name in settings}
    settings |= files or {"data": args.data}
    folder = Path(tempfile.mkdtemp(prefix="benchmark-"))
    try:
        if "baseline" in settings:
            model = BASELINES[settings.pop("baseline")](output_dir=folder, seed=seed, **settings)
            record: dict[str, Any] = {}
        else:
            run = recipes.run(settings.pop("recipe"), output_dir=folder, seed=seed, **settings)
            model, state = run.trainer.model, run.trainer.state
            best = state.best_model_checkpoint
            if run.saved in ("start", "mixture"):  # the row scores the trained weights, whatever the run saved
                if (checkpoint := best or get_last_checkpoint(str(folder))) is None:
                    raise ValueError(f"the run saved the {run.saved} and no checkpoint: set save_strategy in the plan.")
                model = recipes.load_model(checkpoint)
            step = int(best.rpartition("-")[2]) if best else state.global_step
            record = {"steps": state.global_step, "best_step": step, "saved": run.saved}
            losses = {entry["step"]: entry["loss"] for entry in state.log_history if "loss" in entry}
            record["losses"] = {step: losses[step] for step in (10, 100) if step in losses}
            scored = [entry for entry in state.log_history if "eval_dev_spearman" in entry]
            record |= {"dev_at": {entry["step"]: round(100 * entry["eval_dev_spearman"], 2) for entry in scored}}
        seconds = round(time.perf_counter() - start)
        return {**record, "seconds": seconds, "scores": all_scores(model, args)}
    finally:
        shutil.rmtree(folder)


_SHOWN = ("encoder", "row", "seed", "scores", "start", "trained", "mixed")


def append(out: Path, line: dict[str, Any]) -> None:
    """Append a result line, so that a later call skips this run."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(", ".join(f"{name} {value}" for name, value in line.items() if name in _SHOWN), flush=True)


if __name__ == "__main__":
    main()
