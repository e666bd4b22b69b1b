"""What a training step of each loss costs: time, tokens, arithmetic and memory, beside other forms of the same step.

    python -m benchmarks.speed time --data wiki.txt.gz --encoder minilm --batch-size 64 --json speed_time.json
    python -m benchmarks.speed flops --data wiki.txt.gz --json speed_flops.json
    python -m benchmarks.speed memory --data wiki.txt.gz --json speed_memory.json
    python -m benchmarks.speed ways --data wiki.txt.gz --json speed_ways.json

The forms are those of ``benchmarks._forms``. ``time`` runs them in turn on the same batches, another batch each turn,
and compares ratios within a turn: median and range. ``flops`` counts with PyTorch's counter (matrix products, attention
as such). ``memory`` runs each form in a process of its own: the peak above what was there before the first step, after
one forward and backward pass, and after two steps with AdamW. ``ways`` times our step with each way to save left out.
Results of further calls are added to the file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from benchmarks._forms import FORMS, METHODS, form, step
from benchmarks._results import read, resident, software, write
from benchmarks._training import build, random_batches
from st_contrastive.inputs import documentation_sentences, read_corpus

BATCHES = 8


def batches(args: argparse.Namespace) -> list[list[str]]:
    """Batches with the lengths of the corpus."""
    count = BATCHES * args.batch_size
    sentences = read_corpus(args.data).sentences if args.data else documentation_sentences(count)
    return random_batches(sentences, BATCHES, args.batch_size)


def forms_of(method: str) -> tuple[str, ...]:
    return FORMS if method == "SimCSE" else FORMS[:3]


def in_turn(steps: dict[str, Callable[[Sequence[str]], Any]], args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each step, all on one batch before the next, after rounds that do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    given = batches(args)
    device = torch.device(args.device)
    for turn in range(args.warm_up + args.repeats):
        names = list(steps) if turn % 2 else list(steps)[::-1]  # neither always runs on warm caches
        for name in names:
            _wait(device)
            started = time.perf_counter()
            steps[name](given[turn % len(given)])
            _wait(device)
            if turn >= args.warm_up:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def spread(ratios: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(ratios), 3),
        "min": round(min(ratios), 3),
        "max": round(max(ratios), 3),
    }


def timed(args: argparse.Namespace) -> list[dict[str, Any]]:
    tokens = _tokens(args)
    rows = []
    for method in args.methods:
        steps = {
            kind: step(form(method, kind, args.encoder, args.length, args.device), args.precision, args.device)
            for kind in forms_of(method)
        }
        seconds = in_turn(steps, args)
        own = statistics.median(seconds["ours"])
        row = {
            **_setting(args),
            "method": method,
            "turns": args.repeats,
            "seconds": {kind: round(statistics.median(found), 3) for kind, found in seconds.items()},
            "tokens_a_second": round(tokens / own),
            "ours_over": {
                kind: spread([mine / theirs for mine, theirs in zip(seconds["ours"], found, strict=True)])
                for kind, found in seconds.items()
                if kind != "ours"
            },
        }
        print(row, flush=True)
        rows.append(row)
    return rows


def _tokens(args: argparse.Namespace) -> float:
    """Tokens of a batch's sentences, special ones included, padding not."""
    tokenizer = build(args.length).tokenizer
    counts = [
        sum(len(ids) for ids in tokenizer(batch, truncation=True, max_length=args.length)["input_ids"])
        for batch in batches(args)
    ]
    return statistics.mean(counts)


def counted(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for method in args.methods:
        found = {}
        for kind in forms_of(method):
            made = form(method, kind, args.encoder, args.length)
            for module in made.loss.modules():
                if isinstance(module, PreTrainedModel):
                    # The counter sees the matrix products of attention in this form.
                    module.set_attn_implementation("eager")
            texts = batches(args)[0]
            made.forward(texts)  # tries the encoder, once, which is not of a step
            with FlopCounterMode(display=False) as counter:
                made.forward(texts).backward()
            found[kind] = round(counter.get_total_flops() / 1e9, 1)
        rows.append({**_setting(args), "method": method, "gflop": found})
        print(rows[-1], flush=True)
    return rows


def memory(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for method in args.methods:
        found = {}
        for kind in (*forms_of(method), "mini-batches of 32"):
            command = [sys.executable, "-m", "benchmarks.speed", "one", "--methods", method, "--form", kind]
            command += ["--batch-size", str(args.batch_size), "--length", str(args.length), "--encoder", args.encoder]
            command += ["--precision", args.precision, *(["--data", args.data] if args.data else [])]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[kind] = json.loads(done.stdout.splitlines()[-1])
            print(method, kind, found[kind], flush=True)
        rows.append({**_setting(args), "method": method, "mib": found})
    return rows


def one(args: argparse.Namespace) -> None:
    """MiB of this process before the first step, and the peaks above it."""
    kind = "ours" if args.form.startswith("mini") else args.form
    made = form(args.methods[0], kind, args.encoder, args.length)
    if kind != args.form:
        made.loss.mini_batch_size = 32
    batch = batches(args)[0]
    before = resident()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
        value = made.forward(batch)
    value.backward()
    passes = resident("VmHWM") - before
    run = step(made, args.precision)
    for _ in range(2):
        run(batch)
    print(json.dumps({"before": before, "passes": passes, "steps": resident("VmHWM") - before}))


def ways(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Our step with one way to save left out, over the step with all."""
    rows = []
    for method in args.methods:
        made = form(method, "ours", args.encoder, args.length, args.device)
        run = step(made, args.precision, args.device)
        loop = step(made, args.precision, args.device, fused=False, foreach=False)

        def with_(run: Any = run, loss: Any = made.loss, **settings: Any) -> Callable[[Sequence[str]], Any]:
            usual = {"saves_padding": None, "narrows_last_layer": True, "mini_batch_size": None}

            def stepped(texts: Sequence[str]) -> None:
                for name, value in {**usual, **settings}.items():
                    setattr(loss, name, value)
                run(texts)

            return stepped

        seconds = in_turn(
            {
                "all": with_(),
                "padded to the batch's longest row": with_(saves_padding=False),
                "last layer whole": with_(narrows_last_layer=False),
                "neither": with_(saves_padding=False, narrows_last_layer=False),
                "AdamW in a loop": with_(run=loop),
                "mini-batches of 16": with_(mini_batch_size=16),
            },
            args,
        )
        found = {
            way: spread([without / whole for without, whole in zip(own, seconds["all"], strict=True)])
            for way, own in seconds.items()
            if way != "all"
        }
        rows.append({**_setting(args), "method": method, "turns": args.repeats, "over_all": found})
        print(rows[-1], flush=True)
    return rows


def _setting(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "encoder": args.encoder,
        "batch_size": args.batch_size,
        "length": args.length,
        "precision": args.precision,
        "device": args.device,
        **software(),
        "data": Path(args.data).name if args.data else "documentation",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["time", "flops", "memory", "ways", "one"])
    parser.add_argument("--data", help="sentences, one per line; default: Python's documentation")
    parser.add_argument("--encoder", default="minilm", choices=["minilm", "base"])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--device", default="cpu", help="cuda, where there is one")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=1, help="turns before that do not count")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--form", default="ours", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="where the results go")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*labels.*")
    if args.command == "one":
        one(args)
        return
    rows = {"time": timed, "flops": counted, "memory": memory, "ways": ways}[args.command](args)
    write(args.json, read(args.json, []) + rows)


if __name__ == "__main__":
    main()
