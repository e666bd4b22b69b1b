"""What ``benchmarks.replicate`` found, as tables and pictures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scipy import stats

from st_contrastive.recipes import recipe

BASELINE = "mini-simcse"
#: The tests whose mean is compared, as far as a cell has them.
TESTS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")
Cell = dict[str, Any]


def scores_of(cell: Cell) -> dict[str, float]:
    """Spearman x 100 of each test, their mean, and dev."""
    found = cell["scores"]
    tests = {name: 100 * found[f"{name} test spearman"] for name in TESTS if f"{name} test spearman" in found}
    return {**tests, "mean": statistics.mean(tests.values()), "dev": 100 * found["stsb dev spearman"]}


def groups(cells: Iterable[Cell], base: str) -> dict[tuple[str, str], dict[int, Cell]]:
    """Of one base: (recipe, label) to seed to cell, in the order of the file."""
    found: dict[tuple[str, str], dict[int, Cell]] = {}
    for cell in cells:
        if cell["base"] == base:
            found.setdefault((cell["recipe"], cell["label"]), {})[cell["seed"]] = cell
    return found


def title(recipe_name: str, label: str) -> str:
    named = recipe(recipe_name).title.split(", all-MiniLM")[0]
    return f"{named}, {label}" if label else named


def spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


def differences(own: dict[int, Cell], theirs: dict[int, Cell], name: str) -> list[float]:
    """Of the seeds that both have."""
    return [scores_of(own[seed])[name] - scores_of(theirs[seed])[name] for seed in own if seed in theirs]


def interval(values: list[float]) -> tuple[float, float] | None:
    """Student's 95 % interval of the mean; None of fewer than two."""
    if len(values) < 2:
        return None
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - half, statistics.mean(values) + half


def over(values: list[float]) -> str:
    if not values:
        return ""
    ends = interval(values)
    return f"{statistics.mean(values):+.2f}" + (f" ({ends[0]:+.2f} to {ends[1]:+.2f})" if ends else "")


def rows(result: dict[str, Any], base: str) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table: the untrained encoder, then each recipe."""
    found = groups(result["cells"], base)
    names = [name for name in TESTS if all(name in scores_of(c) for own in found.values() for c in own.values())]
    head = ["", "seeds", "dev", *names, "mean of the tests", "over SimCSE, same seeds (95 %)"]
    lines = []
    for pooling, scores in result["untrained"].get(base, {}).items():
        own = scores_of({"scores": scores})
        named = f"untrained, {'[CLS]' if pooling == 'cls' else pooling}"
        lines.append([named, "", *(f"{own[name]:.2f}" for name in ("dev", *names, "mean")), ""])
    simcse = found.get((BASELINE, ""), {})
    for which, own in found.items():
        cells = list(own.values())
        columns = [spread([scores_of(cell)[name] for cell in cells]) for name in ("dev", *names, "mean")]
        compared = "" if which == (BASELINE, "") else over(differences(own, simcse, "mean"))
        lines.append([title(*which), str(len(cells)), *columns, compared])
    return head, lines


def curves(result: dict[str, Any], base: str, path: Path) -> None:
    """Dev against steps: the mean over the seeds, and how far they lie apart."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 4))
    for which, own in groups(result["cells"], base).items():
        if which[1]:
            continue
        steps = [step for step, _ in next(iter(own.values()))["curve"]]
        runs = [[100 * value for _, value in cell["curve"]] for cell in own.values()]
        runs = [run for run in runs if len(run) == len(steps)]
        means = [statistics.mean(values) for values in zip(*runs, strict=True)]
        (line,) = axis.plot(steps, means, label=title(*which), linewidth=1.2)
        if len(runs) > 1:
            ends = [(min(values), max(values)) for values in zip(*runs, strict=True)]
            axis.fill_between(steps, *zip(*ends, strict=True), alpha=0.12, color=line.get_color())
    axis.set_xlabel("step")
    axis.set_ylabel("STS-B dev, Spearman x 100")
    axis.legend(fontsize=6, ncols=2)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def forest(result: dict[str, Any], base: str, path: Path) -> None:
    """Each method minus SimCSE from the same seed, with its interval."""
    import matplotlib.pyplot as plt

    found = groups(result["cells"], base)
    simcse = found.get((BASELINE, ""), {})
    drawn = [
        (title(*which), differences(own, simcse, "mean")) for which, own in found.items() if which != (BASELINE, "")
    ]
    drawn = [(name, values) for name, values in drawn if values][::-1]
    figure, axis = plt.subplots(figsize=(8, 0.9 + 0.32 * len(drawn)))
    for place, (_, values) in enumerate(drawn):
        ends = interval(values)
        if ends:
            axis.plot(ends, [place, place], color="tab:blue", linewidth=2)
        axis.plot(values, [place] * len(values), ".", color="gray")
        axis.plot([statistics.mean(values)], [place], "o", color="tab:blue")
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(drawn)), [name for name, _ in drawn], fontsize=7)
    axis.set_xlabel("mean of the STS tests over SimCSE, same seed; 95 % interval")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
