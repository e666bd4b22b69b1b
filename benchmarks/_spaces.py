"""What else a run did to the encoder: retrieval in its domain, transfer, and how its vectors lie."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks._replicated import Cell, baseline, first, groups, named, over, pooling_of, spread, title
from st_contrastive.evaluation.transfer import PAPERS_TASKS

#: Ends the name of a transfer task's score.
ACCURACY = " test accuracy"
#: Column, the end of its scores' names, by how much they are multiplied, and digits.
COLUMNS = (
    ("R@1", "stsb retrieval test recall@1", 100, 2),
    ("R@5", "stsb retrieval test recall@5", 100, 2),
    ("R@10", "stsb retrieval test recall@10", 100, 2),
    ("transfer", ACCURACY, 100, 2),
    ("alignment", "stsb dev alignment", 1, 3),
    ("uniformity", "stsb dev uniformity", 1, 3),
    ("information", "stsb dev information", 1, 3),
    ("of dropout twins", "stsb dev twins-information", 1, 3),
)
ENDS = tuple(end for _, end, *_ in COLUMNS)


def named_so(scores: dict[str, float | None], end: str) -> set[str]:
    return {name for name in scores if name.endswith(end)}


def score_of(scores: dict[str, float | None], names: set[str]) -> float:
    """Their mean; NaN where there is none, or one of them is not a number."""
    values = [scores[name] for name in sorted(names)]
    return statistics.mean(math.nan if value is None else value for value in values) if values else math.nan


def rows(result: dict[str, Any], start: str) -> tuple[list[str], list[list[str]]]:
    """Head and rows, of what was scored so: the untrained encoder under each pooling, then its recipes.

    A mean over tasks is over those that all of the rows have.
    """
    cells = [cell for cell in result["cells"] if any(named_so(cell["scores"], end) for end in ENDS)]
    found = groups(cells, start)
    known = result["untrained"].get(start, {})
    scored = [cell["scores"] for own in found.values() for cell in own.values()]
    output = [scores for scores in known.values() if any(named_so(scores, end) for end in ENDS)]
    columns = []
    for column, end, times, digits in COLUMNS:
        has = [named_so(scores, end) for scores in (*scored, *output)]
        if any(has):
            columns.append((column, set.intersection(*filter(None, has)), times, digits))

    def line(about: list[str], runs: list[dict[str, float | None]]) -> list[str]:
        values = [
            spread([times * score_of(scores, names) for scores in runs if names <= scores.keys()] or [math.nan], digits)
            for _, names, times, digits in columns
        ]
        return [*about, *values]

    lines = []
    for pooling in dict.fromkeys([*known, *(pooling_of(first(own)) for own in found.values())]):
        if known.get(pooling) in output:
            lines.append(line(["untrained", named(pooling), ""], [known[pooling]]))
        lines += [
            line([title(own), named(pooling), str(len(own))], [cell["scores"] for cell in own.values()])
            for own in found.values()
            if pooling_of(first(own)) == pooling
        ]
    return ["", "pooling", "seeds", *(column for column, *_ in columns)], lines


def accuracies(scored: Sequence[dict[str, float | None]]) -> tuple[list[str], list[set[str]]]:
    """The transfer tasks that all have, in the papers' order, and the scores of each; then those of all together."""
    shared = set.intersection(*(named_so(scores, ACCURACY) for scores in scored))
    tasks = [task for task in PAPERS_TASKS if f"{task}{ACCURACY}" in shared]
    columns = [{f"{task}{ACCURACY}"} for task in tasks]
    return [*tasks, "mean"], [*columns, set().union(*columns)]


def above(own: dict[int, Cell], theirs: dict[int, Cell], names: set[str]) -> str:
    """By how much the mean of these scores x 100 is above theirs, paired by seed; "" without a seed that both have."""
    seeds = own.keys() & theirs.keys()
    return over([100 * (score_of(own[one]["scores"], names) - score_of(theirs[one]["scores"], names)) for one in seeds])


def transferred(result: dict[str, Any], start: str) -> tuple[list[str], list[list[str]]]:
    """Accuracy x 100 on the test of each transfer task, the mean, and how far that is from SimCSE's."""
    found = groups([cell for cell in result["cells"] if named_so(cell["scores"], ACCURACY)], start)
    before = result["untrained"].get(start, {})
    known = {pooling: scores for pooling, scores in before.items() if named_so(scores, ACCURACY)}
    tasks, columns = accuracies([*(cell["scores"] for own in found.values() for cell in own.values()), *known.values()])

    def line(about: list[str], runs: list[dict[str, float | None]], compared: str) -> list[str]:
        return [*about, *(spread([100 * score_of(one, names) for one in runs]) for names in columns), compared]

    lines = [line(["untrained", named(pooling), ""], [scores], "") for pooling, scores in known.items()]
    for own in found.values():
        about = [title(own), named(pooling_of(first(own))), str(len(own))]
        compared = above(own, baseline(own, found), columns[-1])
        lines.append(line(about, [cell["scores"] for cell in own.values()], compared))
    return ["", "pooling", "seeds", *tasks, "over SimCSE's, same seeds (95 %)"], lines
