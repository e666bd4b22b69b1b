"""One million sentences: from the file to the first step, memory, and whether the last steps cost what the first did.

    python -m benchmarks.scale start --data wiki.txt.gz --json scale.json
    python -m benchmarks.scale flat --data wiki.txt.gz --steps 300 --json scale.json

``start`` writes a file of a million lines (the data's, each line numbered, again and again) and takes it through each
training loop in a process of its own: seconds until the first step ends, and how far resident memory grew meanwhile,
beside what the model and one step take by themselves. A small encoder stands for the real one, so that this is not the
step's time. ``flat`` trains Twins with its queue and compares the steps' times over the run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.utils.data import DataLoader
from transformers import BertConfig, BertModel, TrainerCallback

import st_contrastive as stc
from benchmarks._results import read, resident, software, write
from benchmarks._training import build
from st_contrastive.inputs import documentation_sentences, read_corpus, stream_corpus
from st_contrastive.training import ContrastiveTrainer

LOOPS = ("dataset", "fit")


def small(length: int, layers: int = 1) -> SentenceTransformer:
    tokenizer = build(length).tokenizer
    config = BertConfig(num_hidden_layers=layers, hidden_size=64, num_attention_heads=4, intermediate_size=128)
    with tempfile.TemporaryDirectory() as folder:
        BertModel(config, add_pooling_layer=False).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformer = Transformer(folder, max_seq_length=length)
    return SentenceTransformer(modules=[transformer, Pooling(64, "cls")], device="cpu")


class Watch(TrainerCallback):
    """When each step ended, and how much was resident then."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.resident = 0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ends.append(time.perf_counter())
        self.resident = max(self.resident, resident())


def arguments(folder: str, steps: int, batch_size: int, workers: int = 0) -> SentenceTransformerTrainingArguments:
    return SentenceTransformerTrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=workers,
    )


def one(args: argparse.Namespace) -> None:
    """From the file to the first step through one loop, after a step on a few sentences."""
    model = small(32)
    with tempfile.TemporaryDirectory() as folder:
        few = stc.text_dataset(["A cat sleeps.", "It rains."] * 32)
        SentenceTransformerTrainer(model, arguments(folder, 1, 64), few, loss=stc.SimCSELoss(model)).train()
        before, started = resident(), time.perf_counter()
        if args.loop == "dataset":
            data = stc.text_dataset(stream_corpus(args.data))
            rows = len(data)
            watch = Watch()
            trainer = ContrastiveTrainer(
                model, arguments(folder, 1, 64), data, loss=stc.SimCSELoss(model), callbacks=[watch]
            )
            trainer.train()
            end, grown = watch.ends[0], watch.resident - before
        else:
            examples = stc.text_examples(read_corpus(args.data).sentences)
            rows = len(examples)
            loader = DataLoader(examples, batch_size=64, shuffle=True)
            model.fit([(loader, stc.SimCSELoss(model))], steps_per_epoch=1, epochs=1, show_progress_bar=False)
            end, grown = time.perf_counter(), resident() - before
    peak = resident("VmHWM") - before
    print(json.dumps({"rows": rows, "seconds": round(end - started, 1), "grown_mib": grown, "peak_mib": peak}))


def start(args: argparse.Namespace) -> dict[str, Any]:
    lines = read_corpus(args.data).sentences if args.data else documentation_sentences(10_000)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "million.txt")
        with path.open("w", encoding="utf-8") as file:
            file.writelines(f"{number} {lines[number % len(lines)]}\n" for number in range(args.rows))
        for loop in LOOPS:
            command = [sys.executable, "-m", "benchmarks.scale", "one", "--data", str(path), "--loop", loop]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[loop] = json.loads(done.stdout.splitlines()[-1])
            print(loop, found[loop], flush=True)
    return found


def flat(args: argparse.Namespace) -> dict[str, Any]:
    lines = read_corpus(args.data).sentences if args.data else documentation_sentences(10_000)
    model, watch = small(32, layers=4), Watch()
    loss = stc.TwinsLoss(model, queue_batches=64, forgetting_rate=0.01, train_pooling="cls")
    with tempfile.TemporaryDirectory() as folder:
        data = stc.twins_dataset((lines * (1 + args.steps * 64 // len(lines)))[: args.steps * 64])
        ContrastiveTrainer(model, arguments(folder, args.steps, 64), data, loss=loss, callbacks=[watch]).train()
    spent = [after - before for before, after in zip(watch.ends[:-1], watch.ends[1:], strict=True)]
    tenth = len(spent) // 10
    tenths = [round(1000 * statistics.median(spent[k * tenth : (k + 1) * tenth]), 1) for k in range(10)]
    found = {"steps": args.steps, "median_ms_of_each_tenth": tenths}
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["start", "flat", "one"])
    parser.add_argument("--data", help="sentences, one per line; default: Python's documentation")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--loop", default=LOOPS[0], choices=LOOPS, help=argparse.SUPPRESS)
    parser.add_argument("--json", help="where the results go")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="TwinsLoss was given one column")
    if args.command == "one":
        one(args)
        return
    found = {"start": start, "flat": flat}[args.command](args)
    write(args.json, {**read(args.json, {}), args.command: {**found, **software()}})


if __name__ == "__main__":
    main()
