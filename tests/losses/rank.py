"""One rank of ``test_ranks``: its share of a batch, against the whole batch in one process. Not a test by itself."""

from __future__ import annotations

import sys
import warnings

import torch
import torch.distributed as dist
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from st_contrastive import FraternalEmbedding, InfoCSELoss, SimCSELoss, TwinsLoss, twins_dataset

#: Loss, options, text columns.
CASES = {
    "simcse": (SimCSELoss, {}, 1),
    "twins": (TwinsLoss, {"queue_batches": 2}, 2),
    "twins-german": (TwinsLoss, {"queue_batches": 2}, 1),
    "infocse": (InfoCSELoss, {"mlm_weight": 0, "projector": False}, 1),
}


def build(folder: str) -> SentenceTransformer:
    transformer = Transformer(folder)
    model = SentenceTransformer(modules=[transformer, Pooling(32, "cls")], device="cpu").double().train()
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return model


def run(case, folder, german, columns):
    """Gradients of the last of three steps, so that a queue is in use, and the queue."""
    loss_class, options, count = CASES[case]
    torch.manual_seed(0)
    model = build(folder)
    labels = None
    if case == "twins-german":
        fraternal = FraternalEmbedding.from_pretrained(german, model)
        options = {**options, "fraternal": fraternal}
        labels = torch.tensor(twins_dataset(columns[0], columns[1], fraternal=fraternal)["label"][:])
    loss = loss_class(model, **options, gather_across_devices=True, log_terms=False).double()
    for _ in range(3):
        loss.zero_grad()
        loss([model.preprocess(part) for part in columns[:count]], labels).backward()
    gradients = {name: p.grad for name, p in loss.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    return gradients, loss.queue.entries() if case.startswith("twins") else ()


def main() -> None:
    folder, german, *texts = sys.argv[1:]
    warnings.simplefilter("ignore")
    half = len(texts) // 2
    shares = [(part, part[::-1]) for part in (texts[:half], texts[half:])]
    whole = [first + second for first, second in zip(*shares, strict=True)]
    alone = {case: run(case, folder, german, whole) for case in CASES}

    dist.init_process_group("gloo")
    assert dist.get_world_size() == 2
    for case, (expected, queue) in alone.items():
        found, own_queue = run(case, folder, german, shares[dist.get_rank()])
        assert set(found) == set(expected)
        assert len(found) > 20
        for name, gradient in found.items():
            dist.all_reduce(gradient)
            torch.testing.assert_close(gradient / 2, expected[name], rtol=1e-6, atol=1e-10)
        for ours, theirs in zip(own_queue, queue, strict=True):
            torch.testing.assert_close(ours, theirs)
        print(f"{case} agrees", flush=True)


if __name__ == "__main__":
    main()
