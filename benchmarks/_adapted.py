"""What training on one's own corpus did to retrieval in it: ``benchmarks.replicate``'s cells, before and after."""

from __future__ import annotations

import math
import statistics
from typing import Any

from benchmarks._replicated import POOLINGS, Cell, first, groups, over, pooling_of, spread, title

METRICS = ("ndcg@10", "recall@10", "recall@100")


def scores_of(scores: dict[str, float]) -> dict[str, float]:
    """Each metric x 100 on the test queries, as the mean over the sets that were scored."""
    found: dict[str, list[float]] = {}
    for key, value in scores.items():
        _, split, metric = key.rsplit(" ", 2)
        if split == "test" and metric in METRICS:
            found.setdefault(metric, []).append(100 * value)
    return {metric: statistics.mean(found.get(metric, [math.nan])) for metric in METRICS}


def rows(result: dict[str, Any], start: str) -> tuple[list[str], list[list[str]]]:
    """Head and rows: under each pooling the untrained encoder, then its recipes, and what they gain over it."""
    lines = []
    for pooling, scores in result["untrained"].get(start, {}).items():
        before = scores_of(scores)
        lines.append(["untrained", POOLINGS[pooling], "", *(f"{before[metric]:.2f}" for metric in METRICS), ""])
        for own in groups(result["cells"], start).values():
            if pooling_of(first(own)) == pooling:
                lines.append(_row(own, before))
    return ["", "pooling", "seeds", "nDCG@10", "recall@10", "recall@100", "nDCG@10 over untrained (95 %)"], lines


def _row(own: dict[int, Cell], before: dict[str, float]) -> list[str]:
    after = [scores_of(cell["scores"]) for cell in own.values()]
    means = [spread([found[metric] for found in after]) for metric in METRICS]
    gained = over([found["ndcg@10"] - before["ndcg@10"] for found in after])
    return [title(own), POOLINGS[pooling_of(first(own))], str(len(own)), *means, gained]
