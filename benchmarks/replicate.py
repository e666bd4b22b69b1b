"""Recipes times seeds times suites, each cell trained and scored once, and what is known after each.

    python -m benchmarks.replicate --recipes mini-simcse mini-conisi-s --seeds 0 1 2 --data wiki.txt.gz --suites data/

Every cell is a run of ``st-contrastive train`` in a process of its own, with the best of its evaluations on the
development split kept, and of ``st-contrastive evaluate`` on the tests. Its raw scores go into the results file at
once, with the curve on the development split, versions, commit, device, wall time and peak memory; a cell that is
there is not run again, so that a run that was cut short goes on, with ``--checkpoints DIR`` within the cell too.
Several runs beside each other may share the file. Of files in ``--options`` the results keep the last part of the name.
``--models DIR`` keeps the trained models: a cell is then scored on a ``--suite`` that it lacks without training again,
and with ``--rescore`` also on those that it has, as after sets were added. ``python -m benchmarks.tables`` makes tables
and pictures of the file. ``--base NAME=FOLDER`` starts the recipes from another encoder, ``--loss-arg`` changes an
argument of the loss, and ``--label`` names what comes of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._results import changing, claimed, read, software

EMPTY: dict[str, Any] = {"cells": [], "untrained": {}}
#: Suites of sentences, read as they are trained on; of others a text is as long as the model reads.
SHORT = ("sts", "in-domain", "geometry")
#: How the names of a suite's scores end.
ENDS = {
    "sts": " spearman",
    "in-domain": " retrieval test recall@1",
    "geometry": " uniformity",
    "transfer": " accuracy",
    "retrieval": " ndcg@10",
}
RESULTS = Path(__file__).parent / "results" / "replicate.json"


def commit() -> str:
    """The commit that runs, with a mark if files differ from it; "" where there is no repository."""
    here = Path(__file__).parent
    output = [
        subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=False).stdout.strip()
        for words in (["rev-parse", "--short=10", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    ]
    return output[0] + ("+" if output[0] and output[1] else "")


def key(cell: dict[str, Any]) -> tuple[Any, ...]:
    """What a cell is one of; its label only names it."""
    return (*(cell[name] for name in ("recipe", "base", "data", "seed", "options")), *cell["set"])


def other_files(result: dict[str, Any], data: str, base: str, files: dict[str, str]) -> str:
    """The option whose file is another than that of a cell of the same data and base; "" if all are the same.

    Names alone tell cells apart, so that another file under the same name would be taken for the same.
    """
    for cell in result["cells"]:
        theirs = cell.get("files", {})
        alike = {"data": cell["data"] == data, "model": cell["base"] == base}
        alike["dev"] = all(alike.values())
        for name in files.keys() & theirs.keys():
            if alike[name] and theirs[name] != files[name]:
                return name
    return ""


def add(path: str, cell: dict[str, Any]) -> None:
    """Put a cell in the file as it is now, with the scores of the same that is there."""
    with changing(path, EMPTY) as result:
        there = [one for one in result["cells"] if key(one) == key(cell)]
        scores = {name: value for one in (*there, cell) for name, value in one["scores"].items()}
        cells = [one for one in result["cells"] if key(one) != key(cell)]
        result["cells"] = [*cells, {**cell, "scores": scores}]


def command(*words: str) -> str:
    """Run a command of the package; what it printed.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    done = subprocess.run([sys.executable, "-m", "st_contrastive", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words[:3])} failed: {done.stderr.strip()[-600:]}")
    return done.stdout


def words_of(recipe: str, seed: int, args: argparse.Namespace) -> list[str]:
    """The command that trains a cell, without its output."""
    words = ["train", "--recipe", recipe, "--seed", str(seed), "--data", args.data]
    words += [word for value in args.loss_arg for word in ("--loss-arg", value)]
    words += args.options.split() if args.options else []
    if args.base:
        words += ["--model", args.base.partition("=")[2]]
    if args.dev:
        words += ["--dev", args.dev]
    return words


def without_folders(options: str) -> str:
    """The options as they are written down: folders are this machine's."""
    return " ".join(Path(word).name if "/" in word else word for word in options.split())


def trained(words: list[str], out: str, files: dict[str, str]) -> dict[str, Any]:
    """Train, unless it was before and the model was kept, and what is known of it.

    Raises:
        SystemExit: the model that was kept is of other files than ``files``, their digests by option.
    """
    note = Path(f"{out}.commit")  # of the run, which may have been cut short in scoring
    if not Path(out, "training_run.json").is_file():
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(commit(), encoding="utf-8")
        try:
            command(*words, "--output", out)
        except RuntimeError:
            if not Path(out, "training_run.json").is_file():  # a run that diverged is a result, and has one
                raise
    record = json.loads(Path(out, "training_run.json").read_text(encoding="utf-8"))
    if other := [name for name, value in files.items() if record["files"].get(name, value) != value]:
        raise SystemExit(f"{out} was trained with another --{other[0]} of the same name: name another --models.")
    return {
        "commit": note.read_text(encoding="utf-8"),
        "curve": [(e["step"], e["eval_dev_spearman"]) for e in record["log"] if "eval_dev_spearman" in e],
        "best_step": (record["best"] or {}).get("step"),
        "steps": record["steps"],
        "loss": record["loss"],
        "seconds": record["seconds"],
        "evaluating": round(sum(e.get("eval_runtime", 0.0) for e in record["log"]), 1),
        "peak_mib": record["peak_mib"],
        "device": record["device"],
        "files": record["files"],
        "versions": record["versions"],
    }


def lacking(scores: dict[str, float | None], suites: Sequence[str]) -> list[str]:
    """The suites of which there is no score."""
    return [suite for suite in suites if not any(name.endswith(ENDS[suite]) for name in scores)]


def scored(model: str, suites: Sequence[str], args: argparse.Namespace, *more: str) -> dict[str, float | None]:
    """The model's scores on the suites, by task, split and metric."""
    scores: dict[str, float | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        for suite in suites:
            length = args.score_length or (32 if suite in SHORT else None)
            words = ["evaluate", model, *more, "--suite", suite, "--eval-data", args.suites]
            words += ["--max-length", str(length)] if length else []
            file = Path(folder, f"{suite}.json")
            command(*words, "--json", str(file))
            found = json.loads(file.read_text(encoding="utf-8"))["scores"]
            scores |= {f"{one['task']} {one['split']} {one['metric']}": one["value"] for one in found}
    return scores


def score_untrained(start: str, name: str, args: argparse.Namespace) -> None:
    """Put the encoder's scores before training in the file; of two processes one makes them."""
    with claimed(Path(f"{args.json}.untrained.lock")) as mine:
        known = read(args.json, EMPTY)["untrained"].get(name, {})
        todo = {
            pooling: args.suite if args.rescore else lacking(known.get(pooling, {}), args.suite)
            for pooling in args.untrained
        }
        if not any(todo.values()):
            return
        if not mine:
            print(f"{name} untrained is scored by another process.")
            return
        for pooling, suites in todo.items():
            scores = scored(start, suites, args, "--pooling", pooling)
            with changing(args.json, EMPTY) as result:
                before = result["untrained"].setdefault(name, {})
                before[pooling] = {**before.get(pooling, {}), **scores}


def start_of(recipe_name: str, base: str) -> str:
    """What a recipe starts from."""
    from st_contrastive.recipes import recipe

    return base.partition("=")[2] or str(recipe(recipe_name).options["model"])


def main(argv: Sequence[str] | None = None) -> None:
    from st_contrastive.cli._record import digests

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--data", required=True, help="sentences, one per line")
    parser.add_argument("--dev", help="the STS Benchmark's development split, as .jsonl or .jsonl.gz")
    parser.add_argument("--suites", required=True, help="folder with sts, retrieval, transfer")
    parser.add_argument("--suite", nargs="+", choices=list(ENDS), default=["sts"], help="which of them; default: sts")
    parser.add_argument(
        "--score-length", type=int, help="tokens a text in scoring; default: 32, and of retrieval and transfer all"
    )
    parser.add_argument("--models", help="keep the trained models in this folder")
    parser.add_argument("--checkpoints", help="keep checkpoints in this folder, to go on within a cell")
    parser.add_argument("--checkpoint-steps", type=int, default=100, help="default: 100")
    parser.add_argument(
        "--untrained", nargs="*", choices=("cls", "mean"), default=["cls", "mean"],
        help="poolings under which the encoder is scored before training; default: both",
    )  # fmt: skip
    parser.add_argument("--rescore", action="store_true", help="score kept models on suites they have scores of too")
    parser.add_argument("--base", default="", metavar="NAME=FOLDER", help="start from this encoder")
    parser.add_argument("--label", default="", help="of what --loss-arg and --options change")
    parser.add_argument("--loss-arg", action="append", default=[], metavar="NAME=VALUE", help="an argument of the loss")
    parser.add_argument("--options", default="", help="more options of st-contrastive train, as --options='--bf16'")
    parser.add_argument("--json", default=str(RESULTS), help="where the results go, and what is there is not run again")
    args = parser.parse_args(argv)
    if (args.loss_arg or args.options.replace("--bf16", "").strip()) and not args.label:
        raise SystemExit("--loss-arg and --options make another cell: name it with --label.")
    if args.base and not all(args.base.partition("=")):
        raise SystemExit(f"--base {args.base}: give NAME=FOLDER.")
    if args.rescore and not args.models:
        raise SystemExit("--rescore needs --models DIR, where the trained models were kept.")
    base = args.base.partition("=")[0]
    files = digests(argparse.Namespace(data=args.data, dev=args.dev, model=args.base.partition("=")[2]))
    if other := other_files(read(args.json, EMPTY), Path(args.data).name, base, files):
        raise SystemExit(f"{args.json} has cells of another --{'base' if other == 'model' else other}: rename it.")
    for start in dict.fromkeys(start_of(name, args.base) for name in args.recipes):
        score_untrained(start, base or start, args)
    for seed in args.seeds:  # seed by seed, so that what is there compares
        for name in args.recipes:
            about = {
                "recipe": name, "label": args.label, "base": base, "data": Path(args.data).name, "seed": seed,
                "options": without_folders(args.options), "set": [without_folders(value) for value in args.loss_arg],
            }  # fmt: skip
            there = next((one for one in read(args.json, EMPTY)["cells"] if key(one) == key(about)), None)
            with tempfile.TemporaryDirectory() as folder:
                words = words_of(name, seed, args)
                # Of these very words: a model of others is another cell's.
                mark = hashlib.sha256("\n".join(words).encode()).hexdigest()[:8]
                out = str(Path(args.models or folder, f"{name}-{seed}-{mark}"))
                checkpoints = Path(args.checkpoints or folder, f"{name}-{seed}-{mark}")
                if args.checkpoints:
                    words += ["--resume", "--checkpoint-steps", str(args.checkpoint_steps)]
                    words += ["--checkpoints", str(checkpoints)]
                anew = there is None or args.rescore
                suites = args.suite if anew else lacking(there["scores"], args.suite)
                if there is None:
                    there = {**about, **software(), **trained(words, out, files)}
                elif not suites:
                    print(f"{about} is there.", flush=True)
                    continue
                elif not Path(out).is_dir():
                    print(f"{about} is there, but not its model {out}, to score {', '.join(suites)}.", flush=True)
                    continue
                there["scores"] = scored(out, suites, args)
            add(args.json, there)
            if args.checkpoints:
                shutil.rmtree(checkpoints, ignore_errors=True)
            print(about, there["best_step"], there["seconds"], there["scores"], flush=True)


if __name__ == "__main__":
    main()
