r"""Why a method does not beat SimCSE: one thing changed at a time, and each term's share of the gradient.

    python -m benchmarks.why --chosen choose.json --base base/model --data wiki.txt.gz --pairs en_de.jsonl.gz \
        --dev data/sts/stsb/dev.jsonl.gz --runs runs/ --json why.json

Each method is trained at the setting that ``benchmarks.choose`` found (``--runs`` is its folder, with InfoCSE's first
stage), and with a change:

- ``share``: SimCSE and Twins with German as they are. Every ``--every`` steps, the terms and the norm of each weighted
  term's gradient in the encoder are measured, in float32, of one batch, the same each time; for ConIsI and InfoCSE,
  ``norm``, ``head`` and ``weight`` do so;
- ``norm``: ConIsI's head without its BatchNorm, at the chosen temperature and at the lowest;
- ``temperature``: ConIsI's;
- ``head``: InfoCSE's head and its temperature, changed one at a time and together;
- ``weight``: weights of InfoCSE's masked-LM term over three powers of ten, with its share of the gradient measured on
  the way. No share is aimed at: in the first 100 steps the contrastive gradient falls from 9.9 to 0.6;
- ``queue``: Twins on one column with queues of 0 to 24 batches. The oldest batch always has a quarter of the weight, so
  that a longer queue also forgets more slowly.

Scored on dev alone, the best of the evaluations. A cell that is in ``--json`` is not run again; the same command,
started several times at once, shares the cells.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from benchmarks._results import arguments, begin, changing, claimed, read
from benchmarks.choose import (
    METHODS,
    Method,
    best,
    chosen_settings,
    digest_of,
    evaluations,
    say_other_base,
    stage1,
    trainer_of,
)

EMPTY: dict[str, Any] = {"cells": []}
#: Arguments that may differ among the cells of a file.
FREE = ("chosen", "runs", "questions", "seeds", "threads")
QUEUES = (0, 1, 3, 6, 12, 24)
TEMPERATURES = (0.05, 0.1, 0.15)
WEIGHTS = (0.02, 0.6, 20.0)


@dataclass(frozen=True)
class Run:
    """One cell: what is asked, what was changed, and how.

    Args:
        question: its name.
        title: of the change.
        method: what is trained.
        setting: arguments of the loss, and ``lr``.
        alter: what is done to the loss before training.
        measured: whether the terms' gradients are measured on the way, with the first seed.
        once: whether only the first seed is run.
    """

    question: str
    title: str
    method: Method
    setting: dict[str, Any]
    alter: Callable[[Any], None] | None = None
    measured: bool = False
    once: bool = False


class _Gradients(TrainerCallback):
    """Each term and the norm of its gradient in the encoder, before the first step and every so many."""

    def __init__(self, loss: nn.Module, columns: list[dict[str, Any]], every: int) -> None:
        self.loss, self.columns, self.every = loss, columns, every
        self.found: list[dict[str, Any]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % self.every == 0:
            norms, terms = term_gradients(self.loss, self.columns)
            self.found.append({"step": state.global_step, "norms": norms, "terms": terms})


def term_gradients(loss: Any, columns: list[dict[str, Any]]) -> tuple[dict[str, float], dict[str, float]]:
    """The norm of each weighted term's gradient in the encoder, and the terms, of one batch.

    The loss's state stays as it is.
    """
    loss.train()  # an evaluation comes before
    buffers = [
        (module, name, value.clone())
        for module in loss.modules()
        for name, value in module.named_buffers(recurse=False)
    ]
    parameters = [parameter for parameter in loss.model.parameters() if parameter.requires_grad]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        terms = loss([dict(column) for column in columns])
        found = {}
        for name, term in terms.items():
            gradients = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
            parts = [gradient.norm() for gradient in gradients if gradient is not None]
            found[name] = float(torch.stack(parts).norm()) if parts else 0.0
    for module, name, value in buffers:  # a queue's may have another shape by now
        setattr(module, name, value)
    return found, {name: float(term.detach()) for name, term in terms.items()}


def without_norm(loss: Any) -> None:
    loss.head.norm = nn.Identity()


def runs(own: dict[str, dict[str, Any]], asked: Sequence[str]) -> list[Run]:
    """The cells of one seed, from the methods' chosen settings."""
    conisi, infocse, twins = (METHODS[name] for name in ("conisi-s", "infocse", "twins"))
    found = [
        Run("share", name, METHODS[name], own[name], measured=True, once=True) for name in ("simcse", "twins-german")
    ]
    found += [
        Run("norm", "with BatchNorm", conisi, own["conisi-s"], measured=True),
        *(
            Run(
                "norm", f"without BatchNorm, {value:g}", conisi, {**own["conisi-s"], "temperature": value}, without_norm
            )
            for value in sorted({min(TEMPERATURES), own["conisi-s"]["temperature"]})
        ),
    ]
    found += [
        Run("temperature", f"{value:g}", conisi, {**own["conisi-s"], "temperature": value})
        for value in TEMPERATURES
        if value != own["conisi-s"]["temperature"]  # the chosen one is the cell with BatchNorm
    ]
    found += [
        Run(
            "head",
            f"{head}, {temperature:g}",
            infocse,
            {**own["infocse"], "head": head, "temperature": temperature},
            measured=(head, temperature) == ("projector", own["infocse"]["temperature"]),
        )
        for head in ("projector", "tanh")
        for temperature in (0.05, max(0.1, own["infocse"]["temperature"]))  # the chosen one among them
    ]
    found += [
        Run("weight", f"{weight:g}", infocse, {**own["infocse"], "mlm_weight": weight}, measured=True)
        for weight in WEIGHTS
    ]
    found += [
        Run("queue", str(length), twins, {**own["twins"], "queue_batches": length, "forgetting_rate": rate})
        for length in QUEUES
        for rate in [0.75 / max(length, 1)]
    ]
    return [run for run in found if run.question in asked]


def trained(run: Run, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """The cell's curve on dev, and the terms with their gradients where they were asked for."""
    args = argparse.Namespace(**{**vars(args), "seed": seed})
    folder = Path(args.runs, "why", f"{run.question} {run.title} {seed}")
    trainer = trainer_of(run.method, run.setting, args.steps, folder, args, saving=False)
    model, loss = trainer.model, trainer.loss
    batch = trainer.train_dataset[: args.batch_size]
    features = [model.preprocess(list(column)) for column in batch.values()]
    if run.alter is not None:
        run.alter(loss)
    gradients = _Gradients(loss, features, args.every)
    if run.measured and seed == args.seeds[0]:
        trainer.add_callback(gradients)
    trainer.train()
    curve = evaluations(trainer.state.log_history)
    return {"curve": curve, "dev": best({"curve": curve}), "gradients": gradients.found}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chosen", required=True, help="results file of benchmarks.choose")
    parser.add_argument("--base", required=True, help="folder of the encoder to start from")
    parser.add_argument("--data", required=True, help="sentences, one per line")
    parser.add_argument("--pairs", required=True, help="a .tsv or .jsonl (.gz) of sentences and their translations")
    parser.add_argument("--dev", required=True, help="graded pairs: a development split, never a test")
    parser.add_argument("--runs", required=True, help="folder that benchmarks.choose has used")
    parser.add_argument("--json", required=True, help="where the cells go")
    asked = ("share", "norm", "temperature", "head", "weight", "queue")
    parser.add_argument("--questions", nargs="+", choices=asked, default=list(asked))
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[1, 2, 3],
        help="not 0, with which the settings were chosen; the gradients are of the first alone",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, default=300, help="default: 300")
    parser.add_argument("--every", type=int, default=50, help="steps between evaluations; default: 50")
    parser.add_argument("--stage1-steps", type=int, default=150, help="of InfoCSE's first stage, unless it is there")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--limit", type=int, help="take the first N sentences only")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast")
    parser.add_argument("--threads", type=int, help="of the processor; default: torch's")
    args = parser.parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    found = runs(chosen_settings(args.chosen), args.questions)
    say_other_base(args.chosen, args.base)
    own = {key: value for key, value in arguments(args).items() if key not in FREE}
    begin(args.json, EMPTY, {**own, "base": digest_of(args.base)}, "name another file.")
    if any(run.method.stage1 for run in found):
        stage1(argparse.Namespace(**{**vars(args), "seed": 0}))  # as benchmarks.choose makes it
    for seed in args.seeds:
        for run in found:
            if run.once and seed != args.seeds[0]:
                continue
            about = {
                "question": run.question, "title": run.title, "seed": seed, "steps": args.steps, "every": args.every,
                **run.setting,
            }  # fmt: skip
            with claimed(Path(args.runs, f"why {run.question} {run.title} {seed}.lock")) as mine:
                known = read(args.json, EMPTY)["cells"]
                if not mine or any(about.items() <= cell.items() for cell in known):
                    continue
                cell = {**about, **trained(run, seed, args)}
                with changing(args.json, EMPTY) as result:
                    result["cells"].append(cell)
                print(f"{run.question}, {run.title}, seed {seed}: {cell['dev']:.4f}", flush=True)


if __name__ == "__main__":
    main()
