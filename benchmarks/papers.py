"""The papers' runs on a GPU, at their number of steps, in slices of at most nine minutes that go on where they stopped.

    python -m benchmarks.papers --gpu --data wiki.txt.gz --suites data/ --dev data/sts/stsb/dev.jsonl.gz --out papers/
    python -m benchmarks.papers --dry-run --data wiki.txt.gz --suites data/ --dev dev.jsonl.gz --out papers/

First ``benchmarks.language_base`` makes an encoder that has learned masked-LM alone, which stands for the papers'
BERT; ``--base NAME=FOLDER`` takes another, such as BERT itself. Then each run of the plan is a cell of
``benchmarks.replicate`` in bfloat16: the first seed of every run, then the next. ``papers_plan.json`` has the methods,
and ``--plan benchmarks/papers_ablations.json`` the ablations and the baselines that have a recipe, one seed each. The
steps are those of the recipe's epochs over the papers' 1,000,000 sentences, 15,625 an epoch, whatever number of
sentences ``--data`` has; InfoCSE's stage 1 is one epoch of ``--data``, in each of its runs.

A run of a plan has a ``recipe``, ``steps`` and ``seeds``, and may have ``translations`` (true: it needs them),
``loss_arg`` (a list of NAME=VALUE) and ``options`` (of ``st-contrastive train``).

A call ends after ``--minutes``. It then stops the run that is going on, which loses the steps since its last
checkpoint. ``DIR/state.json`` has what was done, and the seconds and calls that it took; scores are in
``DIR/replicate.json``. A run that failed is left out until ``--retry``. Call the command until it says that nothing is
left.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks._results import read, write
from benchmarks.replicate import ENDS
from st_contrastive.recipes import recipe

PLAN = Path(__file__).with_name("papers_plan.json")
#: Seconds that a run has to end after it was asked to.
PATIENCE = 20


@dataclass(frozen=True)
class Run:
    """One command, its name in the state, the option that it can't be run without, and whether all others need it."""

    name: str
    words: list[str]
    lacks: str = ""
    starts_others: bool = False


@dataclass(frozen=True)
class Planned:
    """One entry of a plan: a recipe, what changes of it, and with which seeds it runs."""

    recipe: str
    steps: int
    seeds: list[int]
    translations: bool = False
    loss_arg: list[str] = field(default_factory=list)
    options: str = ""

    @property
    def title(self) -> str:
        return " ".join([self.recipe, *self.loss_arg, *self.options.split()])


def planned(args: argparse.Namespace) -> list[Run]:
    """The commands in their order.

    Raises:
        SystemExit: the plan is not a plan.
    """
    try:
        plan = json.loads(Path(args.plan).read_text(encoding="utf-8"))
        entries = [Planned(**one) for one in plan["runs"]]
        every, base = int(plan["checkpoint_steps"]), plan["base"]
        for entry in entries:
            recipe(entry.recipe)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"--plan {args.plan} can't be used: {type(error).__name__}: {error}") from error
    out, found = Path(args.out), []
    start = args.base
    if not start:
        folder = out / base["name"]
        start = f"{base['name']}={folder / 'model'}"
        words = ["benchmarks.language_base", "--data", args.data, "--sts", str(Path(args.suites, "sts"))]
        words += [
            "--out",
            str(folder),
            "--steps",
            str(base["steps"]),
            "--batch-size",
            str(base["batch_size"]),
            "--bf16",
        ]
        found.append(Run(base["name"], words, starts_others=True))
    for place in range(max((len(entry.seeds) for entry in entries), default=0)):
        for entry in entries:
            if place >= len(entry.seeds):
                continue
            seed = str(entry.seeds[place])
            options = f"--bf16 --max-steps {entry.steps} --workers {args.workers} {entry.options}".strip()
            lacks = ""
            if entry.translations:
                options += f" --translations {args.translations}"
                options += f" --translation-encoder {args.fraternal}" if args.fraternal else ""
                lacks = "" if args.translations else "--translations"
            words = ["benchmarks.replicate", "--recipes", entry.recipe, "--seeds", seed, "--data", args.data]
            words += ["--dev", args.dev, "--suites", args.suites, "--suite", *args.suite, "--base", start]
            words += ["--models", str(out / "models"), "--checkpoints", str(out / "checkpoints")]
            words += ["--checkpoint-steps", str(every), "--json", str(out / "replicate.json")]
            words += [word for argument in entry.loss_arg for word in ("--loss-arg", argument)]
            label = ", ".join([*entry.loss_arg, *([entry.options] if entry.options else []), f"{entry.steps} steps"])
            words += ["--label", label, f"--options={options}"]
            found.append(Run(f"{entry.title} {seed}", words, lacks))
    return found


def state_of(run: Run, state: dict[str, Any]) -> str:
    if run.lacks:
        return f"left out: needs {run.lacks}"
    return str(state.get(run.name, {}).get("state", "to do"))


def dry_run(runs: list[Run], state: dict[str, Any]) -> None:
    for number, run in enumerate(runs, start=1):
        print(f"{number:3} {run.name}: {state_of(run, state)}")
        print(f"    python -m {shlex.join(run.words)}")


def within(words: Sequence[str], seconds: float) -> tuple[str, str]:
    """Run ``python -m words`` for so long at most: "done", "cut short" or "failed", and the end of what it said."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        # In a group of its own, so that what it starts is stopped with it.
        process = subprocess.Popen(
            [sys.executable, "-m", *words], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout=max(seconds, 0))
            state = "failed" if code else "done"
        except subprocess.TimeoutExpired:
            state = "cut short"
        finally:
            if process.poll() is None:
                _stop(process)
        output.seek(0)
        return state, output.read()[-1500:]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            for _ in range(10 * PATIENCE):
                process.poll()
                os.killpg(process.pid, 0)  # raises when none of the group is left
                time.sleep(0.1)
        except ProcessLookupError:
            break
    process.wait()


def go_on(runs: list[Run], path: str, minutes: float, *, retry: bool = False) -> int:
    """Run what is left until the time is up; how many runs are left then."""
    ends = time.monotonic() + 60 * minutes - PATIENCE
    state = read(path, {})
    if not retry and any(run.starts_others and state.get(run.name, {}).get("state") == "failed" for run in runs):
        raise SystemExit(f"The encoder that the others start from was not made: see {path}, and add --retry.")
    done = ("done",) if retry else ("done", "failed")
    todo = [run for run in runs if not run.lacks and state.get(run.name, {}).get("state") not in done]
    for place, run in enumerate(todo):
        left = ends - time.monotonic()
        if left <= 0:
            return len(todo) - place
        print(f"{run.name} ...", flush=True)
        started = time.monotonic()
        found, output = within(run.words, left)
        before = state.get(run.name, {})
        state[run.name] = {
            "state": found,
            "seconds": round(before.get("seconds", 0) + time.monotonic() - started, 1),
            "calls": before.get("calls", 0) + 1,
            **({"output": output} if found == "failed" else {}),
        }
        write(path, state)
        print(f"{run.name}: {found}", flush=True)
        if found == "failed":
            print(output, flush=True)
        if found == "cut short":
            return len(todo) - place
        if found == "failed" and run.starts_others:
            raise SystemExit("The others start from this encoder: call it again with --retry.")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="run: on a CPU it would take months")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and their state, and run nothing")
    parser.add_argument("--data", required=True, help="sentences, one per line")
    parser.add_argument("--dev", required=True, help="the STS Benchmark's development split, .jsonl or .jsonl.gz")
    parser.add_argument("--suites", required=True, help="folder with sts, and with the other suites of --suite")
    parser.add_argument(
        "--suite",
        nargs="+",
        choices=tuple(ENDS),
        default=["sts"],
        help="what the models are scored on; InfoCSE's tables 3, 10 and 11 are retrieval, transfer and in-domain",
    )
    parser.add_argument("--out", required=True, help="folder for models, checkpoints, state and scores")
    parser.add_argument("--base", default="", metavar="NAME=FOLDER", help="start from this encoder, and make none")
    parser.add_argument(
        "--translations", default="", metavar="FILE", help="those of --data; without, no Twins with them"
    )
    parser.add_argument("--fraternal", default="", metavar="NAME", help="another checkpoint than the recipe's, or none")
    parser.add_argument("--plan", default=str(PLAN), help=f"default: {PLAN.name}")
    parser.add_argument("--minutes", type=float, default=9, help="of one call; default: 9")
    parser.add_argument("--workers", type=int, default=4, help="processes that tokenise; default: 4")
    parser.add_argument("--retry", action="store_true", help="run what failed again")
    args = parser.parse_args(argv)
    for option in ("out", "translations", "fraternal"):  # they become part of one word
        if len(getattr(args, option).split()) > 1:
            raise SystemExit(f"--{option} {getattr(args, option)!r} holds a space: name another path.")
    if args.base and not all(args.base.partition("=")):
        raise SystemExit(f"--base {args.base}: give NAME=FOLDER.")
    runs, path = planned(args), str(Path(args.out, "state.json"))
    if args.dry_run:
        dry_run(runs, read(path, {}))
        return 0
    if not args.gpu:
        raise SystemExit("These runs take hours on a GPU: add --gpu, or --dry-run to see them.")
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("No CUDA device was found. --dry-run shows the runs.")
    Path(args.out).mkdir(parents=True, exist_ok=True)
    left = go_on(runs, path, args.minutes, retry=args.retry)
    state = read(path, {})
    failed = [run.name for run in runs if state.get(run.name, {}).get("state") == "failed"]
    print(f"{left} runs are left: call it again." if left else "Nothing is left.")
    if failed:
        print(f"Failed: {', '.join(failed)}; see {path}.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
