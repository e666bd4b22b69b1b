"""What does the fraternal language do? Twins on one column, with the model's own tokenizer on both, and with a German
tokenizer and embedding layer of its own.

python -m benchmarks.fraternal --data multi30k/train.jsonl.gz --german german/ --sts sts/ --json fraternal.json
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import set_seed

from benchmarks import _experiments
from benchmarks._results import read, write
from benchmarks._training import Recorder, build, by_fit, by_trainer, tenths
from benchmarks.tables import lined
from st_contrastive import FraternalEmbedding, TwinsLoss, twins_dataset, twins_examples
from st_contrastive.evaluation import read_sts, sts_spearman
from st_contrastive.inputs import read_parallel

ARMS = ("one column", "same tokenizer", "German embedding")


def run(arm: str, loop: str, seed: int, corpus: Any, args: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    set_seed(seed)
    model = build(args.length)
    fraternal = FraternalEmbedding.from_pretrained(args.german, model) if arm == "German embedding" else None
    loss = Recorder(TwinsLoss(model, fraternal=fraternal, train_pooling="cls"))
    make = twins_examples if loop == "fit" else twins_dataset
    data = make(
        corpus.sentences,
        None if arm == "one column" else corpus.translations,
        fraternal=fraternal,
    )
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as out, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if loop == "fit":
            by_fit(model, loss, data, args, out)
        else:
            by_trainer(model, loss, data, args, out, seed)
    row = {"arm": arm, "loop": loop, "seed": seed, "steps": len(loss.history)}
    row.update(seconds=round(time.perf_counter() - started, 1), terms=tenths(loss.history))
    if fraternal is not None and fraternal.alignment is not None:
        row["alignment"] = asdict(fraternal.alignment)
    return model.eval(), row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="English-German pairs")
    parser.add_argument("--german", required=True, help="the German checkpoint; see benchmarks.german_embedding")
    parser.add_argument("--sts", required=True, help="folder with stsb/dev and stsb/test")
    parser.add_argument("--json", required=True, help="where the results go; what is there is not run again")
    parser.add_argument("--loops", nargs="+", default=["trainer"], choices=["fit", "trainer"])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-5)
    args = parser.parse_args()
    corpus = read_parallel(args.data, languages=("en", "de"), limit=args.steps * args.batch_size)
    dev, test = (read_sts(next(Path(args.sts, "stsb").glob(f"{split}.jsonl*"))) for split in ("dev", "test"))
    arguments = {key: value for key, value in vars(args).items() if key in ("steps", "batch_size", "length", "lr")}
    before = read(args.json, {"arguments": arguments, "rows": []})
    if before["arguments"] != arguments:
        raise SystemExit(f"--json {args.json} holds runs with {before['arguments']}; name another file.")
    rows: list[dict[str, Any]] = before["rows"]
    if not rows:
        base = build(args.length)
        rows.append({"arm": "untrained", "dev": sts_spearman(base, dev), "test": sts_spearman(base, test)})
    for seed in args.seeds:
        for loop in args.loops:
            for arm in args.arms:
                if any((row.get("arm"), row.get("loop"), row.get("seed")) == (arm, loop, seed) for row in rows):
                    continue
                model, row = run(arm, loop, seed, corpus, args)
                row.update(dev=sts_spearman(model, dev), test=sts_spearman(model, test))
                rows.append(row)
                print(row, flush=True)
                write(args.json, {"arguments": arguments, "rows": rows})
    for loop in args.loops:
        print(f"{loop}:\n{lined(_experiments.fraternal({'rows': [row for row in rows if row.get('loop') == loop]}))}")


if __name__ == "__main__":
    main()
