"""Tables of the single experiments: short runs, InfoCSE's parts, the other language, augmentations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks._replicated import spread

Table = tuple[list[str], list[list[str]]]
_METHODS = {"simcse": "SimCSE", "conisi": "ConIsI", "twins": "Twins, one column", "infocse": "InfoCSE"}
_LOSSES = ("encoder's masked-LM loss", "auxiliary network's", "with another sentence's vector")
_ARMS = ("one column", "same tokenizer", "German embedding")
_CASES = {
    "simcse": "SimCSE",
    "infocse, loss": "InfoCSE, untrained network, weight 1e-5 in the loss",
    "infocse, gradient": "InfoCSE, untrained network, weight 0.1 on the gradient",
    "infocse, gradient, stage-1 auxiliary": "InfoCSE, network from stage 1, weight 0.1 on the gradient",
    "simcse, stage-1 encoder": "SimCSE, encoder from stage 1",
    "infocse, gradient, stage-1 encoder": "InfoCSE, encoder and network from stage 1, 0.1 on the gradient",
}


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def short_run(through: dict[str, dict[str, Any]]) -> Table:
    """``benchmarks.short_run`` through both loops; the terms' sum is ``fit``'s."""
    rows = {loop: {row["method"]: row for row in found["rows"]} for loop, found in through.items()}
    lines = []
    for method in rows["fit"]:
        loops = [rows["fit"]] if method == "untrained" else [rows["fit"], rows["trainer"]]
        scores = [percent(own[method][split]) for own in loops for split in ("dev", "test")]
        tenths = [rows["fit"][method].get(part) for part in ("first_tenth", "last_tenth")]
        terms = ["" if tenth is None else f"{sum(tenth.values()):.4f}" for tenth in tenths]
        lines.append([_METHODS.get(method, method), *scores, *[""] * (4 - len(scores)), *terms])
    columns = ["dev, `fit`", "test, `fit`", "dev, Trainer", "test, Trainer", "loss, first 10", "loss, last 10"]
    return ["", *columns], lines


def first_step(found: dict[str, Any]) -> Table:
    temperatures = list(dict.fromkeys(row["temperature"] for row in found["rows"]))
    lines: dict[str, list[str]] = {}
    for row in found["rows"]:
        lines.setdefault(row["loss"], [row["loss"]]).append(f"{row['term']:.3f}, {row['gradient']:.1f}")
    return ["", *map(str, temperatures)], list(lines.values())


def infocse_pretrain(found: dict[str, Any]) -> Table:
    lines = [
        [str(row["step"]), *(f"{row[name]:.3f}" for name in ("mlm", "own", "shuffled"))] for row in found["held_out"]
    ]
    return ["steps", *_LOSSES], lines


def infocse_depth(found: dict[str, Any]) -> Table:
    head, _ = infocse_pretrain(found["rows"][0])
    lines = [
        [f"{row['split_layer']} + {row['extra_layers']}", *line]
        for row in found["rows"]
        for line in infocse_pretrain(row)[1]
    ]
    return ["layers, encoder's + own", *head], lines


def infocse_stage1(found: dict[str, Any]) -> Table:
    """Losses with the vectors of whole sentences, as in stage 2."""
    lines = []
    for row in found["rows"]:
        own, shuffled = row["whole"]["own"], row["whole"]["shuffled"]
        losses = [f"{value:.4f}" for value in (row["mlm"], own, shuffled)]
        ratio = row["norms"]["mlm"] / row["norms"]["contrastive"]
        lines.append([row["stage 1"], *losses, f"{100 * ratio:.2f} %", percent(row["dev"])])
    return ["stage 1", *_LOSSES, "its gradient over the contrastive one, unweighted", "dev, [CLS]"], lines


def infocse_course(found: dict[str, Any]) -> Table:
    lines = [
        [
            row["start"],
            str(row["step"]),
            *(f"{row[term]:.3f}" for term in ("contrastive", "mlm")),
            f"{100 * row['mlm'] / row['contrastive']:.1f} %",
        ]
        for row in found["rows"]
    ]
    return ["from", "step", "contrastive", "masked-LM, unweighted", "masked-LM over contrastive"], lines


def infocse_precision(found: dict[str, Any]) -> Table:
    precisions = {"bfloat16": "bfloat16 autocast", "float16": "float16 autocast"}
    weights = {"gradient": "on the gradient", "loss": "in the loss"}
    lines = []
    for name, row in found["rows"].items():
        precision, _, weight = name.rpartition(", ")
        lost, below = row["auxiliary lost"], row["auxiliary below Adam's 1e-8"]
        lines.append(
            [
                precisions.get(precision, precision),
                weights[weight],
                f"{row['auxiliary error']:.3f}",
                f"{100 * lost:.1f} %",
                f"{100 * below:.1f} %",
            ]
        )
    return ["", "weight", "network's relative error", "network's entries lost", "below Adam's 1e-8"], lines


def infocse_joint(found: dict[str, Any]) -> Table:
    cases: dict[str, list[dict[str, Any]]] = {}
    for row in found["rows"]:
        cases.setdefault(row["case"], []).append(row)
    lines = []
    for case, title in (("untrained", "untrained"), ("untrained, stage-1 encoder", "encoder after stage 1")):
        for row in cases.get(case, []):
            lines.append([title, "", *(percent(row[name]) for name in ("stsb dev", "stsb test", "tests")), "", "", ""])
    for case, title in _CASES.items():
        own = cases.get(case, [])
        if not own:
            continue
        scores = [spread([100 * row[name] for row in own]) for name in ("stsb dev", "stsb test", "tests")]
        like = "simcse, stage-1 encoder" if "encoder" in case else "simcse"
        by_seed = {row["seed"]: row["tests"] for row in cases.get(like, [])}
        over = [100 * (row["tests"] - by_seed[row["seed"]]) for row in own if row["seed"] in by_seed]
        gained = spread(over) if case != like and over else ""
        after = [row["after"] for row in own if "after" in row]
        heard = ["", ""]
        if after:
            lost = [value["shuffled"] - value["own"] for value in after]
            heard = [spread([value["own"] for value in after], 3), f"+{spread(lost, 4)}"]
        lines.append([title, str(len(own)), *scores, gained, *heard])
    columns = [
        "seeds",
        "dev",
        "test",
        "mean of 4 tests",
        "tests over SimCSE",
        "masked-LM loss",
        "with another's vector",
    ]
    return ["", *columns], lines


def fraternal(found: dict[str, Any]) -> Table:
    lines = []
    for arm in _ARMS:
        own = [row for row in found["rows"] if row["arm"] == arm]
        if own:
            lines.append(
                [arm, str(len(own)), *(spread([100 * row[split] for row in own]) for split in ("dev", "test"))]
            )
    return ["", "runs", "dev", "test"], lines


def fraternal_batch64(found: dict[str, Any]) -> Table:
    rows = {(row["arm"], row.get("loop")): row for row in found["rows"]}
    lines = []
    for arm in _ARMS:
        own = [rows.get((arm, loop), {}) for loop in ("trainer", "fit")]
        lines.append([arm, *(percent(row.get(split)) for row in own for split in ("dev", "test"))])
    return ["", "dev, Trainer", "test, Trainer", "dev, `fit`", "test, `fit`"], lines


def augmentations(found: dict[str, Any]) -> Table:
    whole = next(row["spearman"] for row in found["rows"] if row["augmentation"] == "none")
    order = sorted(found["rows"], key=lambda row: -row["spearman"])
    lines = [
        [
            row["augmentation"],
            f"{row['spearman']:.2f} ± {row['spread']:.2f}" if row["draws"] > 1 else f"{row['spearman']:.2f}",
            f"{100 * row['spearman'] / whole:.1f} %",
            f"{row['cosine']:.3f}",
        ]
        for row in order
    ]
    return ["augmentation", "Spearman x 100", "kept", "cosine to the sentence"], lines


#: Each of the results of its own name.
TABLES: tuple[Callable[[dict[str, Any]], Table], ...] = (
    first_step,
    infocse_pretrain,
    infocse_depth,
    infocse_stage1,
    infocse_course,
    infocse_precision,
    infocse_joint,
    fraternal,
    fraternal_batch64,
    augmentations,
)
