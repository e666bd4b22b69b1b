"""How hard is the contrastive task before any training? Its term and its gradient in the encoder, by temperature.

    python -m benchmarks.first_step --data wiki.txt.gz --json benchmarks/results/first_step.json

all-MiniLM-L6-v2 under [CLS] pooling with dropout, batches drawn at random, mean over them.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from functools import partial
from typing import Any

import torch

import st_contrastive as stc
from benchmarks._results import arguments, software, write
from benchmarks._training import build, random_batches
from st_contrastive.inputs import documentation_sentences, read_corpus

#: The loss, and the name of its contrastive term.
LOSSES: dict[str, tuple[Any, str]] = {
    "SimCSE": (stc.SimCSELoss, "contrastive"),
    "Twins": (stc.TwinsLoss, "identical"),
    "ConIsI": (stc.ConIsILoss, "contrastive"),
    "InfoCSE": (partial(stc.InfoCSELoss, head="projector"), "contrastive"),
}


def at_start(name: str, temperature: float, batches: list[list[str]], length: int) -> dict[str, float]:
    loss_class, term = LOSSES[name]
    model = build(length).train()
    options = {"interaction_weight": 0.0} if name == "ConIsI" else {}  # the contrastive term at full weight
    torch.manual_seed(0)
    loss = loss_class(model, temperature=temperature, **options)
    terms, norms = [], []
    for texts in batches:
        loss.zero_grad()
        value = loss([model.preprocess(texts)])[term]
        value.backward()
        terms.append(float(value.detach()))
        parts = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
        norms.append(float(torch.stack(parts).norm()))
    return {"term": round(statistics.mean(terms), 4), "gradient": round(statistics.mean(norms), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="sentences, one per line; default: Python's documentation")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.05, 0.1, 0.15, 0.2])
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--json", help="where the results go")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*one column.*")
    sentences = read_corpus(args.data).sentences if args.data else documentation_sentences(2000)
    batches = random_batches(sentences, args.batches, args.batch_size)
    rows = []
    for name in LOSSES:
        for temperature in args.temperatures:
            rows.append({"loss": name, "temperature": temperature, **at_start(name, temperature, batches, args.length)})
            print(rows[-1], flush=True)
    write(args.json, {"arguments": arguments(args), **software(), "rows": rows})


if __name__ == "__main__":
    main()
