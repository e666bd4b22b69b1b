"""Time a training step of each loss: forward, backward and optimizer; and the encoder's passes without a loss.

Losses are measured in turn, round after round, so that a change of the machine's load affects all of them. The median
and its ratio to SimCSE's are reported. On a CPU or on a GPU::

    python -m benchmarks.speed --model sentence-transformers/all-MiniLM-L6-v2
    python -m benchmarks.speed --shape bert-base --batch 512 --precision bf16 --device cuda

With a single loss, the peak of memory is reported too::

    python -m benchmarks.speed --model ... --losses simcse --batch 1024 --loss-arg mini_batch_size=64 --rounds 1
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertModel, BertTokenizer

from benchmarks import device_name
from st_contrastive import recipes
from st_contrastive.methods import METHODS

MNRL = "MultipleNegativesRankingLoss"
#: How many rows pass through the encoder for each sentence of a batch, and of what length; ConIsI's pairs are twice as
#: long.
BARE = {"simcse": ((2, 1),), "conisi": ((1, 1), (2, 2)), "twins": ((3, 1),)}

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64},
    "bert-base": {},
    "bert-large": {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096
    },
}  # fmt: skip


def new_model(shape: str, folder: str) -> SentenceTransformer:
    """An encoder with random weights, of one of BERT's shapes."""
    words = [f"w{number}" for number in range(30_517)]
    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])}
    config = BertConfig(vocab_size=len(vocabulary), **SHAPES[shape])
    BertModel(config).save_pretrained(folder)
    BertTokenizer(vocab=vocabulary).save_pretrained(folder)
    encoder = Transformer(folder)
    return SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension(), "cls")])


def texts(rows: int, tokens: int, *, mixed: bool) -> list[str]:
    """Sentences of ``tokens`` tokens; ``mixed`` lengths run from a quarter of that to all of it."""
    words = "one two three four five six seven eight nine ten".split()
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(tokens // 4, tokens + 1, (rows,), generator=generator) if mixed else [tokens] * rows
    return [
        " ".join(words[(row + place) % 10] for place in range(int(length) - 2)) for row, length in enumerate(lengths)
    ]


def step_of(loss: nn.Module, columns: list[dict[str, Any]], autocast: Any) -> Callable[[], None]:
    """A function that makes a step: forward, backward, optimizer."""
    optimizer = torch.optim.AdamW([p for p in loss.parameters() if p.requires_grad], lr=1e-5)

    def step() -> None:
        with autocast():
            value = loss(columns, None)
        (sum(value.values()) if isinstance(value, dict) else value).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class BarePasses(nn.Module):
    """The encoder's forward and backward passes of a loss, without anything else."""

    def __init__(self, model: SentenceTransformer, passes: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        self.model, self.passes = model, passes

    def forward(self, columns: list[dict[str, Any]], labels: None) -> torch.Tensor:
        """The sum of all vectors."""
        total = torch.zeros((), device=self.model.device)
        for copies, length in self.passes:
            features = {
                key: value.repeat(copies, length) if isinstance(value, torch.Tensor) else value
                for key, value in columns[0].items()
            }
            total = total + self.model(features)["sentence_embedding"].float().sum()
        return total


class Operations(TorchDispatchMode):
    """Counts torch's operations, except views."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


def print_operations(losses: list[str], folder: str) -> None:
    """Print how many operations a step of each loss adds to the encoder's passes. Rows are padded, as on a GPU."""
    encoder = new_model("tiny", folder)
    sentences = texts(5, 16, mixed=True)

    def count(step: Callable[[], torch.Tensor], module: nn.Module) -> int:
        for _ in range(5):  # the first steps do more: a queue fills
            module.zero_grad(set_to_none=True)
            with Operations() as counted:
                step().backward()
        return counted.count

    for name in losses:
        model = copy.deepcopy(encoder).train()
        columns = columns_of(model, name, sentences, "cpu")
        bare = BarePasses(model, BARE.get(name, BARE["simcse"]))
        own = count(lambda bare=bare, columns=columns: bare(columns, None), model)
        loss = MultipleNegativesRankingLoss(model) if name == MNRL else METHODS[name].loss_class(model)
        loss.group_by_length = False  # as on a GPU

        def step(loss: nn.Module = loss, columns: list[dict[str, Any]] = columns) -> torch.Tensor:
            value = loss([dict(column) for column in columns], None)
            return sum(value.values()) if isinstance(value, dict) else value

        print(f"{name:32} {count(step, loss) - own:5} beyond {own} of the passes")


def columns_of(model: SentenceTransformer, name: str, sentences: list[str], device: str) -> list[dict[str, Any]]:
    """The text columns that a loss takes."""
    second = {"twins": sentences[::-1], MNRL: sentences}
    columns = [sentences, *([second[name]] if name in second else [])]
    return [
        {key: value.to(device) if hasattr(value, "to") else value for key, value in model.preprocess(column).items()}
        for column in columns
    ]


def peak_memory(device: str) -> float:
    """The peak of memory of this process on the device, in GB."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # of KiB, on Linux


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="an encoder")
    parser.add_argument("--shape", choices=SHAPES, help="in place of --model: random weights")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--mixed", action="store_true", help="texts of mixed lengths")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32")
    parser.add_argument("--compile", nargs="?", const="inductor", metavar="BACKEND", help="as torch_compile=True")
    parser.add_argument("--losses", nargs="+", default=[*METHODS, MNRL], choices=[*METHODS, MNRL])
    parser.add_argument("--loss-arg", action="append", default=[], metavar="NAME=VALUE", help="for each loss of ours")
    parser.add_argument("--json", help="append a JSON line to this file")
    parser.add_argument("--operations", action="store_true", help="count the operations of a step of a tiny BERT")
    args = parser.parse_args()
    folder = TemporaryDirectory()  # of the encoder of --shape, which a loss may read again

    if args.operations:
        print_operations(args.losses, folder.name)
        return

    def autocast() -> Any:
        bf16 = args.precision == "bf16"
        return torch.autocast(args.device.partition(":")[0], torch.bfloat16) if bf16 else nullcontext()

    encoder = new_model(args.shape, folder.name) if args.shape else recipes.load_model(args.model)

    def fresh() -> SentenceTransformer:
        return copy.deepcopy(encoder).to(args.device).train()

    def synchronise() -> None:
        if args.device.startswith("cuda"):
            torch.cuda.synchronize()

    sentences = texts(args.batch, args.tokens, mixed=args.mixed)
    options = {name: recipes.parse(value) for name, _, value in (pair.partition("=") for pair in args.loss_arg)}
    single = len(args.losses) == 1
    steps: dict[str, Callable[[], None]] = {}
    for name in args.losses:
        model = fresh()
        columns = columns_of(model, name, sentences, args.device)
        loss = MultipleNegativesRankingLoss(model) if name == MNRL else METHODS[name].loss_class(model, **options)
        modules = {name: loss}
        if name in BARE and not single:
            modules[f"{name}, bare passes"] = BarePasses(fresh(), BARE[name])
        for title, module in modules.items():
            if args.compile:  # as the Trainer does, after the loss was built
                module.model = torch.compile(module.model, backend=args.compile)
            steps[title] = step_of(module, columns, autocast)
    before = peak_memory(args.device)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(args.rounds + 2):
        for name, step in steps.items():
            synchronise()
            start = time.perf_counter()
            step()
            synchronise()
            if number >= 2:
                times[name].append(time.perf_counter() - start)
    medians = {name: median(values) for name, values in times.items()}
    reference = medians.get("simcse", next(iter(medians.values())))
    for name, seconds in medians.items():
        print(f"{name:32} {1000 * seconds:9.1f} ms {args.batch / seconds:9.0f} sentences/s {seconds / reference:6.2f}")
    peak = round(peak_memory(args.device) - before, 2) if single else None
    if single:
        print(f"peak memory in addition to the weights: {peak} GB")
    if args.json:
        with open(args.json, "a", encoding="utf-8") as file:
            setting = {name: getattr(args, name) for name in ("batch", "tokens", "mixed", "precision", "compile")}
            device = device_name() if args.device.startswith("cuda") else args.device
            run = {"encoder": args.shape or args.model, **setting, "device": device, "torch": torch.__version__}
            run |= {"seconds": medians}
            if single:
                threshold = "MALLOC_MMAP_THRESHOLD_"  # of glibc
                run |= {"options": options, "peak_gb": peak, threshold: os.environ.get(threshold)}
            file.write(json.dumps(run) + "\n")


if __name__ == "__main__":
    main()
