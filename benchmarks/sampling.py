"""Batches of like length: does quality suffer, and how much padding is left?

    python -m benchmarks.sampling --data wiki.txt.gz --sts sts/ --seeds 0 1 2 --json sampling.json

SimCSE from all-MiniLM-L6-v2 under [CLS] pooling through the Trainer, with random batches and with LengthBatchSampler,
from the same seeds; what is in the file is not run again. "Padded" is all tokens of the batches over those that are
none of padding.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.base.sampler import DefaultBatchSampler
from torch.utils.data import RandomSampler
from transformers import set_seed

from benchmarks._results import arguments, read, write
from benchmarks._training import build, by_trainer
from st_contrastive import SimCSELoss, text_dataset
from st_contrastive.evaluation import read_sts, sts_spearman
from st_contrastive.inputs import read_corpus
from st_contrastive.training import LengthBatchSampler


def padded(lengths: list[int], batches: list[list[int]]) -> float:
    return sum(len(batch) * max(lengths[row] for row in batch) for batch in batches) / sum(lengths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="sentences, one per line")
    parser.add_argument("--sts", required=True, help="folder with stsb/dev and stsb/test")
    parser.add_argument("--json", help="where the results go")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-5)
    args = parser.parse_args()
    sentences = read_corpus(args.data, limit=args.steps * args.batch_size).sentences
    dev, test = (read_sts(next(Path(args.sts, "stsb").glob(f"{split}.jsonl*"))) for split in ("dev", "test"))
    data = text_dataset(sentences)
    tokenizer = build(args.length).tokenizer
    lengths = [len(ids) for ids in tokenizer(sentences, truncation=True, max_length=args.length)["input_ids"]]
    seeded = torch.Generator().manual_seed(0)
    by_length = LengthBatchSampler(data, args.batch_size, True, generator=torch.Generator())
    at_random = DefaultBatchSampler(RandomSampler(data, generator=seeded), args.batch_size, True)
    left = {"random": padded(lengths, list(at_random)), "by length": padded(lengths, list(by_length))}
    rows: list[dict[str, Any]] = read(args.json, {"rows": []})["rows"]
    for seed in args.seeds:
        for name, more in (("random", {}), ("by length", {"batch_sampler": LengthBatchSampler})):
            if any((row["batches"], row["seed"]) == (name, seed) for row in rows):
                continue
            set_seed(seed)
            model = build(args.length)
            started = time.perf_counter()
            with tempfile.TemporaryDirectory() as out:
                by_trainer(model, SimCSELoss(model), data, args, out, seed, **more)
            scores = {"dev": sts_spearman(model, dev), "test": sts_spearman(model, test)}
            rows.append({"batches": name, "seed": seed, **scores, "seconds": round(time.perf_counter() - started)})
            print(rows[-1], flush=True)
            write(args.json, {"arguments": arguments(args), "rows": rows})
    output = {}
    for name in left:
        own = [row for row in rows if row["batches"] == name]
        output[name] = {"padded": round(left[name], 3)}
        for split in ("dev", "test"):
            values = [100 * row[split] for row in own]
            output[name][split] = [round(statistics.mean(values), 2), round(statistics.stdev(values), 2)]
    print(output)
    write(args.json, {"arguments": arguments(args), "summary": output, "rows": rows})


if __name__ == "__main__":
    main()
