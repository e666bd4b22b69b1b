"""What an InfoCSE step costs over SimCSE's: arithmetic, time and memory, beside the naive form.

    python -m benchmarks.infocse_cost flops --encoder base
    python -m benchmarks.infocse_cost time --data wiki.txt.gz --json infocse_time.json
    python -m benchmarks.infocse_cost memory --data wiki.txt.gz --json infocse_memory.json

A step is forward, backward and AdamW, on the same batch. Naive is the form of the authors' code: the frozen part has a
masked-LM head whose logits are thrown away, the last auxiliary layer and the trained head run at every position, and
cross-entropy skips what is not masked. ``flops`` counts with torch's counter (matrix products, with attention as such).
``time`` runs all in turn and compares the median of the ratios to SimCSE's step. ``memory`` runs each in a process of
its own: the peak above what was there before the first step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel, set_seed

from benchmarks._training import build
from st_contrastive import InfoCSELoss, SimCSELoss
from st_contrastive.inputs import documentation_sentences, read_corpus
from st_contrastive.objectives import info_nce, masked_lm

CASES = ("simcse", "infocse, own head", "infocse, tied head", "infocse, tied head, chunks", "naive")
Step = Callable[[], None]


def encoder(args: argparse.Namespace, folder: str) -> SentenceTransformer:
    """MiniLM, or BERT-base's shape with random weights: arithmetic and time do not depend on them."""
    if args.encoder == "minilm":
        model = build(args.length)
    else:
        tokenizer = build(args.length).tokenizer
        BertModel(BertConfig(), add_pooling_layer=False).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformer = Transformer(folder, max_seq_length=args.length)
        model = SentenceTransformer(modules=[transformer, Pooling(768, "cls")], device="cpu")
    # The counter sees the matrix products of attention in this form; the same for all.
    model[0].model.set_attn_implementation("eager")
    return model.train()


def naive_loss(loss: InfoCSELoss, column: dict[str, Any]) -> Tensor:
    texts = {name: torch.cat([column[name]] * 2) for name in ("input_ids", "attention_mask", "token_type_ids")}
    tokens = loss.model(dict(texts))["token_embeddings"]
    contrastive = info_nce(*loss.projector(tokens[:, 0]).chunk(2), temperature=loss.temperature)
    auxiliary = loss.auxiliary
    network, split = auxiliary.network, auxiliary.split_layer
    corrupted = loss.masking(texts["input_ids"], texts["attention_mask"])
    mask = (1 - texts["attention_mask"].float())[:, None, None] * torch.finfo(torch.float32).min
    with torch.no_grad():
        hidden = network.embeddings(input_ids=corrupted.input_ids, token_type_ids=texts["token_type_ids"])
        for layer in network.encoder.layer[:split]:
            hidden = layer(hidden, mask)
        thrown_away = auxiliary.logits(hidden.flatten(0, 1))
    hidden = torch.cat([tokens[:, :1], hidden[:, 1:]], dim=1)
    for layer in network.encoder.layer[split:]:
        hidden = layer(hidden, mask)
    labels = torch.where(corrupted.chosen, texts["input_ids"], -100).flatten()
    mlm = masked_lm(auxiliary.logits(hidden.flatten(0, 1)), labels)
    del thrown_away  # held so long, as an output object holds it
    return contrastive + loss.mlm_weight * mlm


def step_of(case: str, args: argparse.Namespace, sentences: list[str], folder: str) -> tuple[Step, Step]:
    """A whole step, and its forward and backward pass alone."""
    set_seed(42)
    model = encoder(args, folder)
    if case == "simcse":
        loss: Any = SimCSELoss(model, log_terms=False)
    else:
        most = {"most_logits": 2**22} if "chunks" in case else {}
        loss = InfoCSELoss(model, log_terms=False, tied_head="tied" in case, **most)
    loss.train()
    batch = model.preprocess(sentences)
    parameters = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-6)

    def passes() -> None:
        value = naive_loss(loss, batch) if case == "naive" else loss([dict(batch)])
        value.backward()

    def step() -> None:
        passes()
        optimizer.step()
        optimizer.zero_grad()

    return step, passes


def flops(args: argparse.Namespace, sentences: list[str], folder: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for case in args.cases:
        _, passes = step_of(case, args, sentences, folder)
        with FlopCounterMode(display=False) as counter:
            passes()
        found[case] = {"gflop": round(counter.get_total_flops() / 1e9, 1)}
        found[case]["ratio"] = round(found[case]["gflop"] / found[args.cases[0]]["gflop"], 4)
        print(case, found[case], flush=True)
    return found


def timed(args: argparse.Namespace, sentences: list[str], folder: str) -> dict[str, Any]:
    counted = flops(args, sentences, folder)
    steps = {case: step_of(case, args, sentences, folder)[0] for case in args.cases}
    seconds: dict[str, list[float]] = {case: [] for case in args.cases}
    for repeat in range(args.repeats + 1):
        for case in args.cases if repeat % 2 else args.cases[::-1]:
            started = time.perf_counter()
            steps[case]()
            if repeat:  # the first is a warm-up
                seconds[case].append(time.perf_counter() - started)
        print(f"repeat {repeat} of {args.repeats}", flush=True)
    found = {}
    for case, own in seconds.items():
        ratios = [mine / base for mine, base in zip(own, seconds[args.cases[0]], strict=True)]
        found[case] = {
            **counted[case],
            "seconds": round(statistics.median(own), 3),
            "time_ratio": round(statistics.median(ratios), 3),
            "time_ratio_min": round(min(ratios), 3),
            "time_ratio_max": round(max(ratios), 3),
            "time_over_flops": round(statistics.median(ratios) / counted[case]["ratio"], 3),
        }
        print(case, found[case], flush=True)
    return found


def memory(args: argparse.Namespace) -> dict[str, Any]:
    found = {}
    for case in args.cases:
        command = [sys.executable, "-m", "benchmarks.infocse_cost", "one", "--cases", case]
        command += ["--batch-size", str(args.batch_size), "--length", str(args.length), "--encoder", args.encoder]
        command += ["--data", args.data] if args.data else []
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[case] = json.loads(done.stdout.splitlines()[-1])
        print(case, found[case], flush=True)
    return found


def one(args: argparse.Namespace, sentences: list[str], folder: str) -> None:
    """MiB of this process before the first step, and the peak above it after two; passes, then AdamW's state too."""
    step, passes = step_of(args.cases[0], args, sentences, folder)
    before = _status("VmRSS")
    passes()
    after_passes = _status("VmHWM")
    for _ in range(2):
        step()
    print(json.dumps({"model": before, "passes": after_passes - before, "steps": _status("VmHWM") - before}))


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["flops", "time", "memory", "one"])
    parser.add_argument("--data", help="sentences, one a line; default: Python's documentation")
    parser.add_argument("--encoder", default="minilm", choices=["minilm", "base"])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES, help="the first is the measure")
    parser.add_argument("--json", help="where the results go")
    args = parser.parse_args()
    size = args.batch_size
    sentences = read_corpus(args.data, limit=size).sentences if args.data else documentation_sentences(size)
    with tempfile.TemporaryDirectory() as folder:
        if args.command == "one":
            one(args, sentences, folder)
            return
        if args.command == "memory":
            rows = memory(args)
        else:
            rows = {"flops": flops, "time": timed}[args.command](args, sentences, folder)
    if args.json:
        result = {"arguments": vars(args), "threads": torch.get_num_threads(), "torch": torch.__version__, "rows": rows}
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
