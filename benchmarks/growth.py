"""How a step's time, and what it holds for the backward pass, grow with batch, length, queue and encoder.

    python -m benchmarks.growth --data wiki.txt.gz --json growth.json

Every quantity is doubled a few times while the others stand still; each value is timed in turn with the others of its
row, several times, and an exponent b is fitted to time = a * value ** b by least squares of the logarithms. "Held"
counts the bytes of all tensors that autograd keeps between forward and backward pass, each storage once, but for
parameters.
The queue's row is the time of all that a queue adds (its negatives in both passes, and the push), and its share of a
step without one.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import BertConfig, BertModel, set_seed

import st_contrastive as stc
from benchmarks._forms import METHODS, translations
from benchmarks._results import read, software, write
from benchmarks._training import build
from st_contrastive.components import NegativeQueue
from st_contrastive.inputs import documentation_sentences, read_corpus
from st_contrastive.objectives import info_nce

MINILM = {"num_hidden_layers": 6, "hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}


@dataclass
class Case:
    """A step, and what it holds."""

    loss: Any
    texts: Sequence[str]
    translated: bool = False

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW([p for p in self.loss.parameters() if p.requires_grad], lr=1e-6, fused=True)
        model = self.loss.model
        columns = [self.texts, translations(self.texts)] if self.translated else [self.texts]
        self.batch = [model.preprocess(list(column)) for column in columns]

    def value(self) -> torch.Tensor:
        return self.loss([dict(column) for column in self.batch])

    def seconds(self) -> float:
        started = time.perf_counter()
        self.value().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - started

    def held(self) -> int:
        """Bytes that autograd keeps."""
        own = {p.untyped_storage().data_ptr() for p in self.loss.parameters()}
        kept: dict[int, int] = {}

        def note(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            value = self.value()
            found = sum(kept.values())  # while they are held, no storage is another's successor
        del value
        return found


def shaped(length: int, **shape: int) -> SentenceTransformer:
    tokenizer = build(length).tokenizer
    with tempfile.TemporaryDirectory() as folder:
        BertModel(BertConfig(**{**MINILM, **shape}), add_pooling_layer=False).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformer = Transformer(folder, max_seq_length=length)
    pooling = Pooling(transformer.get_embedding_dimension(), "cls")
    return SentenceTransformer(modules=[transformer, pooling], device="cpu").train()


def case(method: str, texts: Sequence[str], length: int = 32, **shape: int) -> Case:
    set_seed(42)
    model = shaped(length, **shape) if shape else build(length).train()
    make, options, translated = METHODS[method]
    return Case(make(model, log_terms=False, **options).train(), texts, translated=translated)


def grown(make: Callable[[int], Case], values: Sequence[int], repeats: int) -> dict[str, Any]:
    cases = {value: make(value) for value in values}
    seconds: dict[int, list[float]] = {value: [] for value in values}
    for turn in range(repeats + 1):
        for value in values if turn % 2 else values[::-1]:
            spent = cases[value].seconds()
            if turn:
                seconds[value].append(spent)
    time_of = {value: statistics.median(found) for value, found in seconds.items()}
    held = {value: own.held() / 2**20 for value, own in cases.items()}
    found: dict[str, Any] = {"values": list(values)}
    for name, row in (("seconds", time_of), ("held_mib", held)):
        found[name] = [round(row[value], 3) for value in values]
        logs = np.log(values), np.log([row[value] for value in values])
        found[f"{name}_exponent"] = round(float(np.polyfit(*logs, 1)[0]), 2)
    return found


def queued(texts: Sequence[str], sizes: Sequence[int], repeats: int) -> dict[str, Any]:
    """What queues of so many entries add to a step of Twins on sentences alone."""
    step = Case(stc.TwinsLoss(build(32).train(), queue_batches=0, train_pooling="cls", log_terms=False).train(), texts)
    rows = len(texts)
    queues = {size: NegativeQueue(384, size // rows, 0.5 * rows / size) for size in sizes}
    anchors = torch.randn(rows, 384, requires_grad=True)
    for queue in queues.values():
        for _ in range(queue.batches):
            queue.push(torch.randn(rows, 384))

    def seconds(queue: NegativeQueue | None) -> float:
        started = time.perf_counter()
        keys, weights = (None, None) if queue is None else queue.entries()
        info_nce(anchors, anchors.detach(), temperature=0.05, negatives=keys, negative_weights=weights).backward()
        if queue is not None:
            queue.push(anchors.detach())
        return time.perf_counter() - started

    shares: dict[int, list[float]] = {size: [] for size in sizes}
    for turn in range(repeats + 1):
        whole = step.seconds()
        for size, queue in queues.items():
            least, own = (statistics.median(seconds(given) for _ in range(5)) for given in (None, queue))
            if turn:
                shares[size].append((own - least) / whole)
    output = {size: [round(pick(own), 4) for pick in (statistics.median, min, max)] for size, own in shares.items()}
    return {"grows": "queue", "method": "Twins", "values": list(sizes), "share_of_step": list(output.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="sentences, one per line; default: Python's documentation")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--rows", nargs="+", default=["batch", "length", "layers", "width", "queue"])
    parser.add_argument("--json", help="where the results go")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="TwinsLoss was given one column")
    sentences = read_corpus(args.data).sentences if args.data else documentation_sentences(10_000)
    random.Random(0).shuffle(sentences)
    long = [" ".join(sentences[start : start + 20]) for start in range(0, 20 * 64, 20)]  # cut to any length
    rows: list[dict[str, Any]] = []

    def measure(what: str, method: str, make: Callable[[int], Case], values: Sequence[int]) -> None:
        rows.append({"grows": what, "method": method, **grown(make, values, args.repeats)})
        print(rows[-1], flush=True)

    for method in args.methods:
        if "batch" in args.rows:
            measure("batch", method, lambda n, m=method: case(m, sentences[:n]), (16, 32, 64, 128))
        if "length" in args.rows:
            measure("length", method, lambda n, m=method: case(m, long[:16], n), (16, 32, 64, 128))
    if "layers" in args.rows:
        measure("layers", "SimCSE", lambda n: case("SimCSE", sentences[:16], num_hidden_layers=n), (2, 4, 8, 16))
    if "width" in args.rows:
        measure(
            "width",
            "SimCSE",
            lambda n: case("SimCSE", sentences[:16], hidden_size=n, intermediate_size=4 * n, num_hidden_layers=4),
            (192, 384, 768),
        )
    if "queue" in args.rows:
        rows.append(queued(sentences[:64], (1024, 4096, 16384, 65536), max(args.repeats, 5)))
        print(rows[-1], flush=True)
    before = read(args.json, {"rows": []})["rows"]
    write(args.json, {**software(), "repeats": args.repeats, "rows": before + rows})


if __name__ == "__main__":
    main()
