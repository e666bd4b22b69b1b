"""Does each loss train? STS-B dev before and after a short run, through both training loops of sentence-transformers.

python -m benchmarks.short_run --data wiki.txt.gz --sts sts/ --json short_run.json
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from transformers import set_seed

from benchmarks._results import arguments, write
from benchmarks._training import Recorder, build, by_fit, by_trainer, tenths
from st_contrastive.evaluation import read_sts, sts_spearman
from st_contrastive.inputs import read_corpus
from st_contrastive.methods import METHODS

SHOWN = ("simcse", "conisi", "twins", "infocse")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="sentences, one per line")
    parser.add_argument("--sts", required=True, help="folder with stsb/dev and stsb/test")
    parser.add_argument("--json", help="where the results go")
    parser.add_argument("--methods", nargs="+", default=list(SHOWN), choices=list(METHODS))
    parser.add_argument("--loops", nargs="+", default=["fit", "trainer"], choices=["fit", "trainer"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    sentences = read_corpus(args.data, limit=args.steps * args.batch_size).sentences
    dev, test = (read_sts(next(Path(args.sts, "stsb").glob(f"{split}.jsonl*"))) for split in ("dev", "test"))
    base = build(args.length)
    rows: list[dict[str, Any]] = [
        {"method": "untrained", "dev": sts_spearman(base, dev), "test": sts_spearman(base, test)}
    ]
    print(rows[0], flush=True)
    for loop in args.loops:
        for method in args.methods:
            make = METHODS[method]
            set_seed(args.seed)
            model = build(args.length)
            loss = Recorder(make.loss_class(model))
            started = time.perf_counter()
            with tempfile.TemporaryDirectory() as out:
                if loop == "fit":
                    by_fit(model, loss, make.examples(sentences), args, out)
                else:
                    by_trainer(model, loss, make.dataset(sentences), args, out, args.seed)
            seconds = time.perf_counter() - started
            means = tenths(loss.history)
            model.eval()
            rows.append(
                {
                    "method": method,
                    "loop": loop,
                    "steps": len(loss.history),
                    "first_tenth": means[0],
                    "last_tenth": means[1],
                    "dev": sts_spearman(model, dev),
                    "test": sts_spearman(model, test),
                    "seconds": round(seconds, 1),
                }
            )
            print(rows[-1], flush=True)
            write(args.json, {"arguments": arguments(args), "rows": rows})


if __name__ == "__main__":
    main()
