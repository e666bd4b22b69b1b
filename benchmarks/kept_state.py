"""What keeping a loss's state costs: steps and checkpoints of ContrastiveTrainer over sentence-transformers' own.

    python -m benchmarks.kept_state --data wiki.txt.gz --json kept_state.json

Both train the same batches in turn within one run; the ratio of a pair is that of the medians of their steps.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from transformers import TrainerCallback, set_seed

import st_contrastive as stc
from benchmarks._results import arguments, write
from benchmarks._training import build
from st_contrastive.inputs import documentation_sentences, read_corpus
from st_contrastive.training import ContrastiveTrainer

LOSSES: dict[str, tuple[type, Any]] = {
    "SimCSE": (stc.SimCSELoss, stc.text_dataset),
    "ConIsI": (stc.ConIsILoss, stc.conisi_dataset),
    "Twins, one column": (stc.TwinsLoss, stc.twins_dataset),
    "InfoCSE": (stc.InfoCSELoss, stc.text_dataset),
    "InfoCSE, stage 1": (stc.AuxiliaryMLMPretrainingLoss, stc.text_dataset),
}


class Clock(TrainerCallback):
    """Seconds of each step, and of the one checkpoint."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.saving = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ended = time.perf_counter()
        self.steps.append(self.ended - self.started)

    def on_save(self, *_: Any, **__: Any) -> None:
        self.saving = time.perf_counter() - self.ended


def run(trainer_class: type, loss_class: type, dataset: Any, args: argparse.Namespace) -> tuple[Clock, int, int]:
    """One run; its times, and the bytes of its checkpoint and of the loss state in it."""
    set_seed(0)
    model, clock = build(args.length), Clock()
    with tempfile.TemporaryDirectory() as out:
        arguments = SentenceTransformerTrainingArguments(
            out,
            per_device_train_batch_size=args.batch_size,
            max_steps=args.steps,
            save_steps=args.steps,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer_class(model, arguments, dataset, loss=loss_class(model), callbacks=[clock]).train()
        files = {file.name: file.stat().st_size for file in Path(out).glob("checkpoint-*/**/*") if file.is_file()}
    return clock, sum(files.values()), files.get("loss_state.safetensors", 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="sentences, one per line; without, those of Python's documentation")
    parser.add_argument("--json", help="where the results go")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=32)
    args = parser.parse_args()
    count = args.steps * args.batch_size
    sentences = read_corpus(args.data, limit=count).sentences if args.data else documentation_sentences()[:count]
    rows = []
    for name, (loss_class, make_dataset) in LOSSES.items():
        dataset = make_dataset(sentences)
        ratios, saving, sizes = [], [], (0, 0)
        for _ in range(args.repeats):
            plain, *_ = run(SentenceTransformerTrainer, loss_class, dataset, args)
            kept, *sizes = run(ContrastiveTrainer, loss_class, dataset, args)
            ratios.append(statistics.median(kept.steps[1:]) / statistics.median(plain.steps[1:]))
            saving.append((plain.saving, kept.saving))
        rows.append(
            {
                "loss": name,
                "step_ratio": round(statistics.median(ratios), 3),
                "step_ratios": [round(ratio, 3) for ratio in ratios],
                "saving_seconds": [round(statistics.median(column), 2) for column in zip(*saving, strict=True)],
                "checkpoint_megabytes": round(sizes[0] / 1e6, 1),
                "of_which_loss_state": round(sizes[1] / 1e6, 3),
            }
        )
        print(rows[-1], flush=True)
    write(args.json, {"arguments": arguments(args), "rows": rows})


if __name__ == "__main__":
    main()
