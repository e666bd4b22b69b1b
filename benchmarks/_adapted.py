"""What training on one's own corpus did to retrieval in it: ``benchmarks.replicate``'s cells, before and after."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from benchmarks import _pictures
from benchmarks._replicated import Cell, first, groups, named, over, pooling_of, short_title, spread, title
from benchmarks.keep_share import curve

METRICS = ("ndcg@10", "recall@10", "recall@100")


def tasks_of(scores: dict[str, float]) -> set[str]:
    """The sets whose test queries were ranked; what is in-domain retrieval has no nDCG."""
    return {key.rsplit(" ", 2)[0] for key in scores if key.endswith(" test ndcg@10")}


def scores_of(scores: dict[str, float], tasks: set[str]) -> dict[str, float]:
    """Each metric x 100 on the test queries, as the mean over the sets ``tasks``."""
    found = {metric: [100 * scores[f"{task} test {metric}"] for task in sorted(tasks)] for metric in METRICS}
    return {metric: statistics.mean(values) if values else math.nan for metric, values in found.items()}


def rows(result: dict[str, Any], start: str) -> tuple[list[str], list[list[str]]]:
    """Head and rows: under each pooling the untrained encoder, then its recipes, and what they gain over it.

    Means are of the sets that all were scored on.
    """
    lines = []
    known = {pooling: scores for pooling, scores in result["untrained"].get(start, {}).items() if tasks_of(scores)}
    found = groups([cell for cell in result["cells"] if tasks_of(cell["scores"])], start)
    scored = [*known.values(), *(cell["scores"] for own in found.values() for cell in own.values())]
    shared = set.intersection(*map(tasks_of, scored)) if scored else set()
    for pooling in dict.fromkeys([*known, *(pooling_of(first(own)) for own in found.values())]):
        before = dict.fromkeys(METRICS, math.nan)
        if pooling in known:
            before = scores_of(known[pooling], shared)
            lines.append(["untrained", named(pooling), "", *(spread([before[metric]]) for metric in METRICS), ""])
        lines += [_row(own, before, shared) for own in found.values() if pooling_of(first(own)) == pooling]
    return ["", "pooling", "seeds", "nDCG@10", "recall@10", "recall@100", "nDCG@10 over untrained (95 %)"], lines


def _row(own: dict[int, Cell], before: dict[str, float], tasks: set[str]) -> list[str]:
    after = [scores_of(cell["scores"], tasks) for cell in own.values()]
    means = [spread([found[metric] for found in after]) for metric in METRICS]
    gained = over([found["ndcg@10"] - before["ndcg@10"] for found in after])
    return [title(own), named(pooling_of(first(own))), str(len(own)), *means, gained]


def shares(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of ``benchmarks.keep_share``: by pooling the untrained encoder, then the mixtures with it."""
    lines: list[list[str]] = []
    untrained: set[str] = set()
    for (name, pooling), found in curves(result).items():
        (before,) = found.pop(0.0)
        if pooling not in untrained:
            lines.append(["untrained", named(pooling), "0", "", *(f"{value:.2f}" for value in before), "", ""])
            untrained.add(pooling)
        lines += [
            [short_title(name), named(pooling), f"{share:g}", *_mixture(pairs, before)]
            for share, pairs in found.items()
        ]
    head = ["", "pooling", "share", "seeds", "mean of the STS tests", "nDCG@10"]
    return [*head, "STS over untrained (95 %)", "nDCG@10 over untrained (95 %)"], lines


def curves(result: dict[str, Any]) -> dict[tuple[str, str], dict[float, list[tuple[float, float]]]]:
    """By recipe and pooling, and by share: (mean of STS, nDCG@10) of each seed."""
    kinds = [(cell["recipe"], cell["pooling"]) for cell in result["cells"] if cell["share"] > 0]
    poolings = list(dict.fromkeys(cell["pooling"] for cell in result["cells"]))
    ordered = sorted(dict.fromkeys(kinds), key=lambda kind: poolings.index(kind[1]))
    return {kind: curve(result["cells"], *kind) for kind in ordered}


def shares_picture(result: dict[str, Any], path: Path) -> None:
    titles = {kind: f"{short_title(kind[0])}, {named(kind[1])}" for kind in curves(result)}
    _pictures.shares({titles[kind]: found for kind, found in curves(result).items()}, path)


def _mixture(pairs: list[tuple[float, float]], before: tuple[float, float]) -> list[str]:
    columns = list(zip(*pairs, strict=True))
    gained = [over([value - start for value in own]) for own, start in zip(columns, before, strict=True)]
    return [str(len(pairs)), *(spread(list(own)) for own in columns), *gained]
