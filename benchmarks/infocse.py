"""InfoCSE's two stages on a real encoder: what stage 1 learns, and what it and the weight do to joint training.

    python -m benchmarks.infocse pretrain --data wiki.txt.gz --out stage1 --json pretrain.json
    python -m benchmarks.infocse depth --data wiki.txt.gz --base base/model --extra-layers 1 2 --json depth.json
    python -m benchmarks.infocse stage1 --data wiki.txt.gz --base base/model --stage1 stage1 --dev dev.jsonl \
        --json infocse_stage1.json
    python -m benchmarks.infocse norms --data wiki.txt.gz --stage1 stage1 --json norms.json
    python -m benchmarks.infocse course --data wiki.txt.gz --stage1 stage1 --steps 100 --every 25 --json course.json
    python -m benchmarks.infocse precision --data wiki.txt.gz --json precision.json
    python -m benchmarks.infocse joint --data wiki.txt.gz --sts sts/ --stage1 stage1 --json joint.json

``pretrain``: the masked-LM losses on sentences that it does not train on, beside the cross-entropy of the unigram
distribution of the training sentences on the same masked tokens.
``depth``: the same for auxiliary networks with so many layers of their own; nothing is saved.
``stage1``: the losses before and after a first stage that was saved, with the vectors of masked sentences, as in stage
1, and of whole ones, as in stage 2; the gradient norms of stage 2's terms, 40 % masked; and STS-B dev of [CLS].
``norms``: norm of each term's gradient at the encoder's last token states.
``course``: the same over a run of stage 2 at the paper's weight, from stage 1 and from all-MiniLM-L6-v2 without it.
``precision``: what the gradients of the masked-LM term lose in half precision, for both forms of the weight.
``joint``: STS-B dev and the STS tests after training, for each case and seed, beside SimCSE of the same seed; and the
auxiliary network's loss on held-out sentences with each sentence's own vector, and with another's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import set_seed

from benchmarks._experiments import infocse_joint
from benchmarks._results import arguments, write
from benchmarks._training import Recorder, build, by_trainer, tenths
from benchmarks.tables import lined
from st_contrastive import AuxiliaryMLMPretrainingLoss, InfoCSELoss, SimCSELoss, text_dataset
from st_contrastive.components import AuxiliaryMLM
from st_contrastive.evaluation import read_sts, sts_spearman
from st_contrastive.inputs import read_corpus
from st_contrastive.objectives import masked_lm

HELD_OUT = 512
#: The authors', not the default: it changes the contrastive gradient that the masked-LM term is held to.
HEAD = "projector"


def sentences_of(args: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Held-out sentences first, so that every command holds out the same, then those to train on."""
    found = read_corpus(args.data, limit=HELD_OUT + args.steps * args.batch_size).sentences
    return found[:HELD_OUT], found[HELD_OUT:]


def held_out_batches(model: SentenceTransformer, loss: Any, sentences: list[str]) -> list[tuple[Any, Any]]:
    """Batches with their masks, drawn once: every measurement sees the same."""
    torch.manual_seed(1234)
    batches = []
    for start in range(0, len(sentences), 64):
        features = model.preprocess(sentences[start : start + 64])
        features = {name: features[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
        batches.append((features, loss.masking(features["input_ids"], features["attention_mask"])))
    return batches


def unigram(model: SentenceTransformer, train: list[str], batches: list[tuple[Any, Any]]) -> float:
    """Cross-entropy of the training tokens' distribution (add-one) on the masked tokens."""
    counts = torch.ones(len(model.tokenizer))
    for start in range(0, len(train), 512):
        encoded = model.tokenizer(train[start : start + 512], truncation=True, max_length=model.max_seq_length)
        ids = torch.tensor([token for row in encoded["input_ids"] for token in row[1:-1]])
        counts += torch.bincount(ids, minlength=len(counts))
    targets = torch.cat([features["input_ids"][corrupted.chosen] for features, corrupted in batches])
    return float(-(counts / counts.sum()).log()[targets].mean())


@torch.no_grad()
def auxiliary_losses(
    model: SentenceTransformer, auxiliary: AuxiliaryMLM, batches: list[tuple[Any, Any]], masked_vectors: bool
) -> dict[str, float]:
    """Mean loss with each sentence's own vector, and with its neighbour's: of the masked text, or of the text."""
    was_training = model.training, auxiliary.training
    model.eval()
    auxiliary.eval()
    sums: dict[str, list[tuple[float, int]]] = {"own": [], "shuffled": []}
    for features, corrupted in batches:
        masked = {**features, "input_ids": corrupted.input_ids}
        vectors = model({**(masked if masked_vectors else features)})["token_embeddings"][:, 0]
        targets = features["input_ids"][corrupted.chosen]
        for name, given in (("own", vectors), ("shuffled", vectors.roll(1, 0))):
            loss = masked_lm(auxiliary(masked, corrupted.chosen, given), targets)
            sums[name].append((float(loss), len(targets)))
    model.train(was_training[0])
    auxiliary.train(was_training[1])
    return {name: sum(loss * count for loss, count in found) / sum(c for _, c in found) for name, found in sums.items()}


@torch.no_grad()
def encoder_loss(model: SentenceTransformer, auxiliary: AuxiliaryMLM, batches: list[tuple[Any, Any]]) -> float:
    model.eval()
    total, count = 0.0, 0
    for features, corrupted in batches:
        tokens = model({**features, "input_ids": corrupted.input_ids})["token_embeddings"]
        targets = features["input_ids"][corrupted.chosen]
        encoder = model[0].model
        total += float(masked_lm(auxiliary.logits(tokens[corrupted.chosen], encoder), targets)) * len(targets)
        count += len(targets)
    model.train()
    return total / count


class Watched(Recorder):
    """A recorder that measures now and then."""

    def __init__(self, loss: torch.nn.Module, every: int, measure: Callable[[int], None]) -> None:
        super().__init__(loss)
        self.every, self.measure = every, measure

    def forward(self, features: Any, labels: Any = None) -> Any:
        if len(self.history) % self.every == 0:
            state = torch.get_rng_state()
            self.measure(len(self.history))
            torch.set_rng_state(state)
        return super().forward(features, labels)


def pretrain(args: argparse.Namespace) -> dict[str, Any]:
    model, loss, result = first_stage(args, None)
    model.save_pretrained(args.out)
    loss.save_auxiliary(args.out)
    return result


def depth(args: argparse.Namespace) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    for extra in args.extra_layers:
        _, loss, result = first_stage(args, extra)
        rows.append({"split_layer": loss.network.split_layer, "extra_layers": extra, **result})
        save(args, {"rows": rows})
    return {"rows": rows}


def first_stage(args: argparse.Namespace, extra_layers: int | None) -> tuple[Any, Any, dict[str, Any]]:
    """The model and the loss after stage 1, and the masked-LM losses on the way."""
    set_seed(args.seed)
    held_out, train = sentences_of(args)
    model = build(args.length, args.base)
    loss = AuxiliaryMLMPretrainingLoss(model, mask_rate=args.mask_rate, extra_layers=extra_layers)
    batches = held_out_batches(model, loss, held_out)
    baseline = unigram(model, train, batches)
    print(f"unigram {baseline:.4f}", flush=True)
    curve: list[dict[str, float]] = []

    def measure(step: int) -> None:
        auxiliary = loss.auxiliary
        found = auxiliary_losses(model, auxiliary, batches, masked_vectors=True)
        curve.append({"step": step, "mlm": encoder_loss(model, auxiliary, batches), **found})
        print(curve[-1], flush=True)

    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        recorder = Watched(loss, args.every, measure)
        by_trainer(model, recorder, text_dataset(train), args, out, args.seed)
    measure(len(recorder.history))
    result = {
        "unigram": baseline,
        "held_out": curve,
        "training_tenths": tenths(recorder.history),
        "seconds": round(time.perf_counter() - started, 1),
    }
    return model.eval(), loss, result


def stage1(args: argparse.Namespace) -> dict[str, Any]:
    """Of the base with an untrained network, and of what the first stage made of both."""
    held_out = read_corpus(args.data, limit=HELD_OUT).sentences
    dev = read_sts(args.dev)
    rows = []
    for name, encoder, auxiliary in (("before", args.base, None), ("after", args.stage1, args.stage1)):
        set_seed(args.seed)
        model = build(args.length, encoder)
        batches = held_out_batches(model, AuxiliaryMLMPretrainingLoss(model, mask_rate=args.mask_rate), held_out)
        loss = InfoCSELoss(model, auxiliary=auxiliary, head=HEAD)
        row: dict[str, Any] = {"stage 1": name, "mlm": encoder_loss(model, loss.auxiliary, batches)}
        for vectors_of, masked in (("masked", True), ("whole", False)):
            row[vectors_of] = auxiliary_losses(model, loss.auxiliary, batches, masked_vectors=masked)
        rows.append({**row, "norms": gradient_norms(loss, held_out), "dev": sts_spearman(model.eval(), dev)})
        print(rows[-1], flush=True)
    return {"rows": rows}


def gradient_norms(loss: InfoCSELoss, sentences: list[str]) -> dict[str, float]:
    """Mean over four batches of 64."""
    loss.train()
    rows = [loss.gradient_norms(loss.model.preprocess(sentences[start : start + 64])) for start in range(0, 256, 64)]
    return {term: statistics.mean(row[term] for row in rows) for term in rows[0]}


def norms(args: argparse.Namespace) -> dict[str, Any]:
    held_out, _ = sentences_of(args)
    found = {}
    for name, encoder, auxiliary in (
        ("no stage 1", None, None),
        ("stage 1, auxiliary network", None, args.stage1),
        ("stage 1, both", args.stage1, args.stage1),
    ):
        set_seed(args.seed)
        loss = InfoCSELoss(build(args.length, encoder), auxiliary=auxiliary, head=HEAD)
        found[name] = gradient_norms(loss, held_out)
        found[name]["ratio"] = found[name]["mlm"] / found[name]["contrastive"]
        print(name, found[name], flush=True)
    return found


def course(args: argparse.Namespace) -> dict[str, Any]:
    held_out, train = sentences_of(args)
    rows: list[dict[str, Any]] = []
    for start, folder in (("stage 1", args.stage1), ("MiniLM, no stage 1", None)):
        set_seed(args.seed)
        model = build(args.length, folder)
        loss = InfoCSELoss(model, auxiliary=folder, head=HEAD)

        def measure(step: int, start: str = start, loss: InfoCSELoss = loss) -> None:
            rows.append({"start": start, "step": step, **gradient_norms(loss, held_out)})
            print(rows[-1], flush=True)

        recorder = Watched(loss, args.every, measure)
        with tempfile.TemporaryDirectory() as out:
            by_trainer(model, recorder, text_dataset(train), args, out, args.seed)
        measure(len(recorder.history))
        save(args, {"rows": rows})
    return {"rows": rows}


def precision(args: argparse.Namespace) -> dict[str, Any]:
    """One batch, dropout off, weight 1e-5: gradients against those in float32 at full scale."""
    held_out, _ = sentences_of(args)
    weight, found = 1e-5, {}
    set_seed(args.seed)
    model = build(args.length).eval()
    state = None
    reference: dict[str, Tensor] = {}
    for kind, dtype, scale in (
        ("float32", None, 1.0),
        ("bfloat16", torch.bfloat16, 1.0),
        ("float16", torch.float16, 1.0),
        ("float16, loss scaled by 2^16", torch.float16, 65536.0),
    ):
        for weighting in ("gradient", "loss"):
            loss = InfoCSELoss(model, weighting=weighting, mlm_weight=weight, head=HEAD).eval()
            if state is None:
                state = {name: value.clone() for name, value in loss.state_dict().items()}
            loss.load_state_dict(state)
            loss.zero_grad()
            torch.manual_seed(args.seed)
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                terms = loss([model.preprocess(held_out[: args.batch_size])])
            (scale * terms["mlm"]).backward()
            gradients = {n: p.grad / scale for n, p in loss.named_parameters() if p.grad is not None}
            # In float32 the two forms agree but for the factor: what is compared is at the scale of each.
            own = {n: g / (weight if weighting == "loss" else 1) for n, g in gradients.items() if "auxiliary" in n}
            groups = {"auxiliary": own, "encoder": {n: g / weight for n, g in gradients.items() if n[:5] == "model"}}
            row: dict[str, float] = {}
            for group, tensors in groups.items():
                if f"{kind} {weighting}" == "float32 gradient":
                    reference |= {name: value.clone() for name, value in tensors.items()}
                flat = torch.cat([tensors[name].flatten() for name in sorted(tensors)])
                exact = torch.cat([reference[name].flatten() for name in sorted(tensors)])
                row[f"{group} error"] = float((flat - exact).norm() / exact.norm())
                row[f"{group} lost"] = float(((flat == 0) & (exact != 0)).sum() / (exact != 0).sum())
            raw = torch.cat([gradients[name].flatten() for name in sorted(own)]).abs()
            row["auxiliary below Adam's 1e-8"] = float((raw < 1e-8).float().mean())
            found[f"{kind}, {weighting}"] = {name: round(value, 6) for name, value in row.items()}
            print(f"{kind}, {weighting}", found[f"{kind}, {weighting}"], flush=True)
            save(args, {"rows": found})
    return {"rows": found}


#: Name: encoder and auxiliary network from stage 1 or not, and the arguments of the loss; None is SimCSE.
CASES: dict[str, tuple[bool, bool, dict[str, Any] | None]] = {
    "simcse": (False, False, None),
    "infocse, loss": (False, False, {"weighting": "loss", "mlm_weight": 1e-5}),
    "infocse, gradient": (False, False, {"weighting": "gradient"}),
    "infocse, gradient, stage-1 auxiliary": (False, True, {"weighting": "gradient"}),
    "infocse, loss, stage-1 auxiliary": (False, True, {"weighting": "loss", "mlm_weight": 1e-5}),
    "simcse, stage-1 encoder": (True, False, None),
    "infocse, gradient, stage-1 encoder": (True, True, {"weighting": "gradient"}),
    "projector alone": (False, False, {"mlm_weight": 0.0}),
}


def joint(args: argparse.Namespace) -> dict[str, Any]:
    held_out, train = sentences_of(args)
    sets = {
        f"{path.parent.name} {path.name.split('.')[0]}": read_sts(path)
        for pattern in ("*/dev.jsonl*", "*/test.jsonl*")
        for path in sorted(Path(args.sts).glob(pattern))
    }
    rows: list[dict[str, Any]] = []

    def score(model: SentenceTransformer) -> dict[str, float]:
        model.eval()
        scores = {name: sts_spearman(model, pairs) for name, pairs in sets.items()}
        tests = [value for name, value in scores.items() if name.endswith("test")]
        return {**scores, "tests": statistics.mean(tests)}

    for name, encoder in (("untrained", None), ("untrained, stage-1 encoder", args.stage1)):
        rows.append({"case": name, **score(build(args.length, encoder))})
        print(rows[-1], flush=True)
    for seed in args.seeds:
        for name in args.cases:
            from_encoder, from_auxiliary, options = CASES[name]
            set_seed(seed)
            model = build(args.length, args.stage1 if from_encoder else None)
            loss: Any = SimCSELoss(model)
            if options is not None:
                chosen = {"mlm_weight": args.mlm_weight, "head": HEAD, **options}
                loss = InfoCSELoss(model, auxiliary=args.stage1 if from_auxiliary else None, **chosen)
            batches = held_out_batches(model, loss, held_out[:256]) if options and loss.mlm_weight else []
            row: dict[str, Any] = {"case": name, "seed": seed}
            if batches:
                row["before"] = auxiliary_losses(model, loss.auxiliary, batches, masked_vectors=False)
            set_seed(seed)
            started = time.perf_counter()
            recorder = Recorder(loss)
            with tempfile.TemporaryDirectory() as out:
                by_trainer(model, recorder, text_dataset(train), args, out, seed)
            row["seconds"] = round(time.perf_counter() - started, 1)
            if batches:
                row["after"] = auxiliary_losses(model, loss.auxiliary, batches, masked_vectors=False)
            row["tenths"] = tenths(recorder.history)
            rows.append({**row, **score(model)})
            print(rows[-1], flush=True)
            save(args, {"rows": rows})
    print(lined(infocse_joint({"rows": rows})))
    return {"rows": rows}


def save(args: argparse.Namespace, result: dict[str, Any]) -> None:
    write(args.json, {"arguments": arguments(args), **result})


COMMANDS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "pretrain": pretrain,
    "depth": depth,
    "stage1": stage1,
    "norms": norms,
    "course": course,
    "precision": precision,
    "joint": joint,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=list(COMMANDS))
    parser.add_argument("--data", required=True, help="sentences, one per line")
    parser.add_argument("--sts", help="folder with stsb/dev and the tests")
    parser.add_argument("--dev", help="stage1: the STS Benchmark's development split")
    parser.add_argument("--stage1", help="folder that pretrain wrote, or benchmarks.choose")
    parser.add_argument("--base", help="pretrain, depth and stage1: folder of the encoder; default: all-MiniLM-L6-v2")
    parser.add_argument("--extra-layers", type=int, nargs="+", default=[1, 2], help="depth: of the auxiliary network")
    parser.add_argument("--out", default="stage1", help="where pretrain saves")
    parser.add_argument("--json", help="where the results go")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--mask-rate", type=float, default=0.4)
    parser.add_argument("--mlm-weight", type=float, default=1e-5, help="joint: of the cases weighted by gradient")
    parser.add_argument("--every", type=int, default=100, help="pretrain, depth and course: steps between measurements")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[42, 43, 44])
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()
    result = COMMANDS[args.command](args)
    save(args, result if "rows" in result else {"rows": result})


if __name__ == "__main__":
    main()
