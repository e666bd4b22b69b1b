"""How much of a run its evaluations on the development split take, at the papers' every 125 steps.

    python -m benchmarks.evaluation_share --data wiki.txt.gz --dev stsb/dev.jsonl.gz --json evaluation_share.json

Steps of SimCSE (the cheapest loss, so that the share is the largest) and evaluations in turn: ``STSEvaluator``, and
sentence-transformers' ``EmbeddingSimilarityEvaluator`` on the same pairs as it comes.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

from benchmarks._forms import form, step
from benchmarks._results import read, software, write
from benchmarks.speed import batches
from st_contrastive.evaluation import STSEvaluator


def seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def share(evaluation: float, of_step: float, every: int) -> float:
    return evaluation / (evaluation + every * of_step)


def measured(args: argparse.Namespace) -> dict[str, Any]:
    made = form("SimCSE", "ours", args.encoder, args.length)
    model = made.loss.model
    train = step(made, "fp32")
    evaluator = STSEvaluator(args.dev)
    pairs = evaluator.pairs
    library = EmbeddingSimilarityEvaluator(list(pairs.first), list(pairs.second), list(pairs.scores), batch_size=64)
    given = batches(args)
    train(given[0])  # a cold step does not count
    shares: dict[str, list[float]] = {"ours": [], "library": []}
    steps: list[float] = []
    for turn in range(args.repeats):
        model.train()
        of_step = statistics.median(seconds(lambda n=n: train(given[n % len(given)])) for n in range(1, 1 + args.steps))
        model.eval()
        names = list(shares) if turn % 2 else list(shares)[::-1]
        for name in names:
            shares[name].append(
                share(seconds(lambda n=name: (evaluator if n == "ours" else library)(model)), of_step, args.every)
            )
        steps.append(of_step)
    return {
        "encoder": args.encoder,
        "batch_size": args.batch_size,
        "length": args.length,
        "every": args.every,
        "pairs": len(pairs),
        "turns": args.repeats,
        **software(),
        "seconds_a_step": round(statistics.median(steps), 3),
        "share": {name: [round(value, 4) for value in found] for name, found in shares.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="sentences, one per line; default: Python's documentation")
    parser.add_argument("--dev", required=True, help="the development split")
    parser.add_argument("--encoder", default="minilm", choices=["minilm", "base"])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--every", type=int, default=125, help="steps between evaluations")
    parser.add_argument("--steps", type=int, default=4, help="steps timed a turn")
    parser.add_argument("--repeats", type=int, default=3, help="turns")
    parser.add_argument("--json", help="where the results go")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*labels.*")
    found = measured(args)
    print(found)
    write(args.json, [*read(args.json, []), found])


if __name__ == "__main__":
    main()
