"""Training at a high learning rate, and how much of the trained weights to keep; one JSON line a run.

    python -m benchmarks.merging data/retrieval/scifact --keep weights --bf16

The folder holds a set in BEIR's form, as :mod:`benchmarks.own_text` reads it. Every run has the settings of its rows,
with a learning rate and a seed. Its weights are mixed with those of the start (``share``: the part of the trained
weights), and each mixture is judged by the test queries, alone and with BM25, and by ``CorpusEvaluator``.

Two runs of half the steps are also averaged: ``soup`` mixes their mean with the start, and ``stock`` takes the share of
each weight matrix from the angle between the two displacements (Model Stock, arXiv 2403.19522):
t = 2 cos / (1 + cos). Both cost as many steps as one run. A command that was stopped continues where it was.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import Tensor

from benchmarks import RESULTS, provenance
from benchmarks.own_text import SETTINGS, Search, half_interval, read
from benchmarks.run import append
from st_contrastive import recipes
from st_contrastive.evaluation import CorpusEvaluator, compare_paired

RATES = (1e-5, 3e-5, 1e-4, 3e-4)
SHARES = (0.2, 0.3, 0.5)
#: The lowest learning rate, whose runs are judged as they are.
LOWEST_RATE = RATES[0]
#: Which two seeds make the soup of each seed.
PAIRS = {1: (1, 2), 2: (2, 3), 3: (3, 1)}
Weights = Mapping[str, Tensor]


def train(model_name: str, table: str, rate: float, seed: int, bf16: bool, half: bool) -> tuple[Weights, int]:
    """The trained weights, and the number of steps."""
    with tempfile.TemporaryDirectory() as folder:
        trainer: Any = recipes.trainer(
            "own-text", model=model_name, data=table, column=["title", "body"], dev="corpus", seed=seed, bf16=bf16,
            output_dir=folder, report_to="none", eval_strategy="no", save_strategy="no",
            **{**SETTINGS, "learning_rate": rate},
        )  # fmt: skip
        if half:
            steps = -(-len(trainer.train_dataset) // trainer.args.train_batch_size) * trainer.args.num_train_epochs
            trainer.args.max_steps = int(min(trainer.args.max_steps, steps)) // 2
        trainer.train()
        model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
        return {name: weight.detach().clone() for name, weight in model.state_dict().items()}, trainer.state.global_step


def mixed(start: Weights, trained: Weights, share: float) -> dict[str, Tensor]:
    return {
        name: torch.lerp(weight, trained[name], share) if weight.is_floating_point() else weight
        for name, weight in start.items()
    }


def stock(start: Weights, first: Weights, second: Weights) -> tuple[dict[str, Tensor], float]:
    """The mean of two trained models, mixed with the start by the angle of each weight's two displacements."""
    weights, shares = {}, []
    for name, weight in start.items():
        weights[name] = weight
        if weight.is_floating_point():
            moves = [(trained[name] - weight).flatten().double() for trained in (first, second)]
            norms = moves[0].norm() * moves[1].norm()
            if norms > 0:
                cosine = float((moves[0] @ moves[1] / norms).clamp(0, 1))
                shares.append(share := 2 * cosine / (1 + cosine))
                weights[name] = weight + share * (first[name] + second[name] - 2 * weight) / 2
    return weights, sum(shares) / len(shares)


class Judge:
    """Judges weights against the start, by the test queries and on the documents that are held out."""

    def __init__(self, model_name: str, table: str, search: Search) -> None:
        self.model, self.search = SentenceTransformer(model_name, device="cpu"), search
        self.start = {name: weight.detach().clone() for name, weight in self.model.state_dict().items()}
        with tempfile.TemporaryDirectory() as folder:
            trainer: Any = recipes.trainer(
                "own-text", model=model_name, data=table, column=["title", "body"], dev="corpus", output_dir=folder
            )
        self.evaluator: CorpusEvaluator = trainer.evaluator
        self.of_start = (search(self.model), self.evaluator.judge(self.model))

    def __call__(self, weights: Weights) -> dict[str, Any]:
        self.model.load_state_dict(weights)
        found: dict[str, Any] = {}
        for key, scores, before in zip(("", " with bm25"), self.search(self.model), self.of_start[0], strict=True):
            found[f"start{key}"] = round(before.mean(), 3)
            found[f"score{key}"] = round(scores.mean(), 3)
            found[f"interval{key}"] = half_interval(scores - before)
        judgement = self.evaluator.judge(self.model)
        comparison = compare_paired(self.of_start[1], judgement)
        found |= {"corpus gain": round(100 * comparison.gain.mean, 3), "lead": round(comparison.lead.mean, 4)}
        if comparison.gain_with_bm25 is not None:
            found["corpus gain with bm25"] = round(100 * comparison.gain_with_bm25.mean, 3)
        return {**found, "decision": comparison.decision}


def runs(args: argparse.Namespace, done: set[tuple[Any, ...]]) -> Iterator[dict[str, Any]]:
    """The result lines that are missing."""
    corpus = args.folder.name + (f"-{args.documents}" if args.documents else "")
    encoder = Path(args.model).name
    args.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        table = str(Path(folder, f"{corpus}.csv"))
        with open(table, "w", newline="", encoding="utf-8") as file:
            rows = ([row["title"], row["text"]] for row in read(args.folder, "corpus") if row["title"] and row["text"])
            csv.writer(file).writerows([["title", "body"], *rows])
        judge: Judge | None = None

        def weights_of(rate: float, seed: int, half: bool) -> tuple[Weights, int]:
            kept = args.keep / f"{args.folder.name}-{encoder}-{rate:g}-{seed}{'-half' if half else ''}.safetensors"
            if not kept.is_file():
                found, steps = train(args.model, table, rate, seed, args.bf16, half)
                save_file({name: weight.contiguous() for name, weight in found.items()}, kept, {"steps": str(steps)})
            with kept.open("rb") as opened:
                header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
            return load_file(kept), int(header["__metadata__"]["steps"])

        for seed in args.seeds:
            for rate in args.rates:
                names = [("whole", share) for share in (SHARES if rate != LOWEST_RATE else (0.5, 1.0))]
                if rate != LOWEST_RATE:
                    names += [("soup", share) for share in SHARES] + [("stock", None)]
                for kind, share in names:
                    if kind not in args.kinds:
                        continue
                    name = {"corpus": corpus, "encoder": encoder, "rate": rate, "seed": seed, "kind": kind}
                    if (*name.values(), share) in done:
                        continue
                    judge = judge or Judge(args.model, table, Search(args.folder, args.documents))
                    if kind == "whole":
                        found, steps = weights_of(rate, seed, half=False)
                    else:
                        two = [weights_of(rate, each, half=True) for each in PAIRS[seed]]
                        found, steps = mixed(two[0][0], two[1][0], 0.5), two[0][1]
                        if kind == "stock":
                            found, mean_share = stock(judge.start, two[0][0], two[1][0])
                            name["mean share"] = round(mean_share, 3)
                    weights = found if share is None else mixed(judge.start, found, share)
                    yield {**name, "share": share, "steps": steps, **judge(weights)}


def main(argv: Any = None, out: Callable[..., None] = append) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--rates", nargs="+", type=float, default=[*RATES])
    parser.add_argument("--kinds", nargs="+", default=["whole", "soup", "stock"], choices=["whole", "soup", "stock"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], choices=[*PAIRS])
    parser.add_argument("--documents", type=int, help="size of the corpus: all relevant documents and others at random")
    parser.add_argument("--bf16", action="store_true", help="train in bfloat16")
    parser.add_argument("--keep", type=Path, required=True, help="folder for trained weights, which several lines use")
    parser.add_argument("--out", type=Path, default=RESULTS / "merging.jsonl")
    args = parser.parse_args(argv)
    lines = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    names = ("corpus", "encoder", "rate", "seed", "kind", "share")
    for line in runs(args, {tuple(row[name] for name in names) for row in lines}):
        out(args.out, {**line, **provenance()})


if __name__ == "__main__":
    main()
