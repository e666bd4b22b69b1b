"""What a training step of each loss costs over the bare passes that its method needs.

    python -m benchmarks.step_cost --data wiki.txt.gz --repeats 7 --json step_cost.json

Bare: transformers' own modules called on the same token counts with dropout, the sum of what comes out differentiated,
and one AdamW step over the same parameters; no pooling, head, similarity, masking, queue or cross-entropy. Both are
timed in turn within one run, and compared as the median of the ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import set_seed

from benchmarks.short_run import build
from st_contrastive import ConIsILoss, InfoCSELoss, SimCSELoss, TwinsLoss
from st_contrastive.inputs import documentation_sentences, read_corpus

Step = Callable[[], Tensor]


def optimised(step: Step, parameters: list[torch.nn.Parameter]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(parameters, lr=1e-6)

    def run() -> None:
        step().backward()
        optimizer.step()
        optimizer.zero_grad()

    return run


def encoder_pass(encoder: torch.nn.Module, rows: int, tokens: Tensor) -> Tensor:
    """The encoder on so many rows, each as wide as the batch is."""
    ids = tokens.repeat(-(-rows // len(tokens)), 1)[:rows]
    return encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[:, 0].sum()


def bare_auxiliary(loss: InfoCSELoss, tokens: Tensor, masked: Tensor) -> Tensor:
    auxiliary, ids = loss.auxiliary, tokens.repeat(2, 1)
    network, split = auxiliary.network, auxiliary.split_layer
    with torch.no_grad():
        hidden = network.embeddings(input_ids=ids)
        for layer in network.encoder.layer[:split]:
            hidden = layer(hidden)
    for layer in network.encoder.layer[split:]:
        hidden = layer(hidden)
    return auxiliary.head(hidden[masked]).mean()


def cases(sentences: list[str], length: int) -> dict[str, tuple[Callable[[], None], Callable[[], None], str]]:
    """Bare step, loss step and token counts of every method."""
    made = {}
    for name, make, columns in (
        ("simcse", SimCSELoss, 1),
        ("conisi", ConIsILoss, 1),
        ("twins, one column", TwinsLoss, 1),
        ("twins, two columns", TwinsLoss, 2),
        ("infocse", InfoCSELoss, 1),
    ):
        set_seed(42)
        model = build(length).train()
        loss = make(model, log_terms=False)
        batch = [model.preprocess(part) for part in (sentences, sentences[::-1])[:columns]]
        encoder, tokens = model[0].model, batch[0]["input_ids"]
        rows, width = tokens.shape
        parameters = [parameter for parameter in loss.parameters() if parameter.requires_grad]
        passes = [(rows, tokens)]
        if name in ("simcse", "twins, one column", "infocse"):
            passes = [(2 * rows, tokens)]
        elif name == "twins, two columns":
            passes = [(3 * rows, tokens)]
        elif name == "conisi":
            # [CLS] x [SEP] c [SEP]: both contents, and three special tokens.
            passes.append((2 * rows, torch.cat([tokens, tokens[:, 1:]], dim=1)[:, : 2 * (width - 2) + 3]))
        masked = tokens.bool()
        if name == "infocse":
            masked = loss.masking(tokens.repeat(2, 1), batch[0]["attention_mask"].repeat(2, 1)).chosen

        def bare(
            encoder: Any = encoder, passes: Any = passes, loss: Any = loss, name: str = name, masked: Tensor = masked
        ) -> Tensor:
            total = sum(encoder_pass(encoder, count, ids) for count, ids in passes)
            return total + bare_auxiliary(loss, passes[0][1], masked) if name == "infocse" else total

        def whole(loss: Any = loss, batch: Any = batch) -> Tensor:
            return loss([dict(column) for column in batch])

        shape = " + ".join(f"{count} x {ids.shape[1]}" for count, ids in passes)
        if name == "infocse":
            shape += f", {2 * rows} x {width} auxiliary, {int(masked.sum())} masked"
        made[name] = (optimised(bare, parameters), optimised(whole, parameters), shape)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="sentences, one a line; default: Python's documentation")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", help="where the results go")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="TwinsLoss was given one column")
    size = args.batch_size
    sentences = read_corpus(args.data, limit=size).sentences if args.data else documentation_sentences(size)
    steps = cases(sentences, args.length)
    seconds: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in steps}
    for repeat in range(args.repeats + 1):
        for name, (bare, whole, _) in steps.items():
            # The order alternates, so that neither always runs on warm caches.
            order = ((0, bare), (1, whole)) if repeat % 2 else ((1, whole), (0, bare))
            for kind, step in order:
                started = time.perf_counter()
                step()
                if repeat:  # the first is a warm-up
                    seconds[name][kind].append(time.perf_counter() - started)
        print(f"repeat {repeat} of {args.repeats}", flush=True)
    rows = []
    for name, (bare_times, whole_times) in seconds.items():
        ratios = [w / b for b, w in zip(bare_times, whole_times, strict=True)]
        rows.append(
            {
                "loss": name,
                "passes": steps[name][2],
                "bare_s": round(statistics.median(bare_times), 3),
                "loss_s": round(statistics.median(whole_times), 3),
                "ratio": round(statistics.median(ratios), 3),
                "ratio_min": round(min(ratios), 3),
                "ratio_max": round(max(ratios), 3),
            }
        )
        print(rows[-1])
    if args.json:
        result = {"arguments": vars(args), "threads": torch.get_num_threads(), "torch": torch.__version__, "rows": rows}
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
