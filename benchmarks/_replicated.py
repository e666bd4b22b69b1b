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
Groups = dict[tuple[str, str], dict[int, Cell]]
POOLINGS = {"cls": "[CLS]", "mean": "mean"}
OVER = "over SimCSE, same pooling and seeds (95 %)"


def scores_of(cell: Cell) -> dict[str, float]:
    """Spearman x 100 of each test, their mean, and dev."""
    found = cell["scores"]
    tests = {name: 100 * found[f"{name} test spearman"] for name in TESTS if f"{name} test spearman" in found}
    return {**tests, "mean": statistics.mean(tests.values()), "dev": 100 * found["stsb dev spearman"]}


def pooling_of(cell: Cell) -> str:
    """Under which pooling the cell's model is scored."""
    words = cell["options"].split()
    if "--pooling" in words:
        return str(words[words.index("--pooling") + 1])
    return str(recipe(cell["recipe"]).options.get("pooling", "cls"))


def groups(cells: Iterable[Cell], base: str) -> Groups:
    """Of one base: (recipe, label) to seed to cell, [CLS] before the mean, else in the order of the file."""
    own = [cell for cell in cells if cell["base"] == base]
    found: Groups = {}
    for cell in sorted(own, key=lambda cell: (pooling_of(cell), cell["recipe"] != BASELINE)):
        found.setdefault((cell["recipe"], cell["label"]), {})[cell["seed"]] = cell
    return found


def first(own: dict[int, Cell]) -> Cell:
    return next(iter(own.values()))


def plain(own: dict[int, Cell]) -> bool:
    """A recipe as it is, but for the pooling."""
    cell = first(own)
    return not cell["set"] and cell["options"] in ("", f"--pooling {pooling_of(cell)}")


def baseline(own: dict[int, Cell], found: Groups) -> dict[int, Cell]:
    """SimCSE on the same data under the same pooling; nothing for itself."""
    for which, other in found.items():
        same = all(of(first(own)) == of(first(other)) for of in (pooling_of, lambda cell: cell["data"]))
        if which[0] == BASELINE and plain(other) and same and other is not own:
            return other
    return {}


def title(own: dict[int, Cell]) -> str:
    cell = first(own)
    named = recipe(cell["recipe"]).title.split(", all-MiniLM")[0]
    return named if cell["label"] in ("", pooling_of(cell)) else f"{named}, {cell['label']}"


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
    """Head and rows of the table: each pooling's untrained encoder, then its recipes."""
    found = {which: own for which, own in groups(result["cells"], base).items() if plain(own)}
    names = [name for name in TESTS if all(name in scores_of(c) for own in found.values() for c in own.values())]
    columns = ("dev", *names, "mean")
    lines = []
    for pooling, scores in result["untrained"].get(base, {}).items():
        untrained = scores_of({"scores": scores})
        lines.append(["untrained", POOLINGS[pooling], "", *(f"{untrained[name]:.2f}" for name in columns), ""])
        for own in found.values():
            if pooling_of(first(own)) != pooling:
                continue
            means = [spread([scores_of(cell)[name] for cell in own.values()]) for name in columns]
            compared = over(differences(own, baseline(own, found), "mean"))
            lines.append([title(own), POOLINGS[pooling], str(len(own)), *means, compared])
    return ["", "pooling", "seeds", *columns[:-1], "mean of the tests", OVER], lines


def short_rows(result: dict[str, Any], base: str) -> tuple[list[str], list[list[str]]]:
    """The same without the single sets."""
    head, lines = rows(result, base)
    kept = [0, 1, 2, 3, len(head) - 2, len(head) - 1]
    return [head[index] for index in kept], [[line[index] for index in kept] for line in lines]


def retrieval_rows(result: dict[str, Any], base: str) -> tuple[list[str], list[list[str]]]:
    """Head and rows of what training on a set's own documents does to finding them."""
    found = {which: own for which, own in groups(result["cells"], base).items() if plain(own)}
    lines = []
    for pooling, scores in result["untrained"].get(base, {}).items():
        before = {name: 100 * scores[key] for name, key in _found_in(scores).items()}
        lines.append(["untrained", POOLINGS[pooling], "", *(f"{value:.2f}" for value in before.values()), ""])
        for own in found.values():
            if pooling_of(first(own)) != pooling:
                continue
            scored = [cell["scores"] for cell in own.values()]
            columns = [[100 * one[key] for one in scored] for key in _found_in(scores).values()]
            gains = [value - before["nDCG@10"] for value in columns[0]]
            lines.append([title(own), POOLINGS[pooling], str(len(own)), *map(spread, columns), over(gains)])
    return ["", "pooling", "seeds", "nDCG@10", "recall@10", "recall@100", "nDCG@10 over untrained (95 %)"], lines


def _found_in(scores: dict[str, float]) -> dict[str, str]:
    """The measures of the one set that was scored, by name."""
    names = {"nDCG@10": "ndcg@10", "recall@10": "recall@10", "recall@100": "recall@100"}
    return {name: next(key for key in scores if key.endswith(f" {metric}")) for name, metric in names.items()}


def changed(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Recipes with an argument changed, beside the recipe as it is: the sweeps."""
    lines = []
    for base in dict.fromkeys(cell["base"] for cell in result["cells"]):
        found = groups(result["cells"], base)
        for which, own in found.items():
            if plain(own):
                continue
            cell = first(own)
            like = next(
                (
                    other
                    for (name, _), other in found.items()
                    if name == which[0] and plain(other) and pooling_of(first(other)) == pooling_of(cell)
                ),
                {},
            )
            means = [spread([scores_of(one)[name] for one in own.values()]) for name in ("dev", "mean")]
            compared = [over(differences(own, like, name)) for name in ("dev", "mean")]
            what = " ".join([*cell["set"], cell["options"]]).strip()
            lines.append(
                [recipe(which[0]).title.split(", all-MiniLM")[0], base, what, str(len(own)), *means, *compared]
            )
    head = ["recipe", "base", "changed", "seeds", "dev", "tests", "dev, over the recipe's", "tests, over the recipe's"]
    return head, lines


def curves(result: dict[str, Any], base: str, path: Path) -> None:
    """Dev against steps: the mean over the seeds, and how far they lie apart; a picture for each pooling."""
    import matplotlib.pyplot as plt

    found = {which: own for which, own in groups(result["cells"], base).items() if plain(own)}
    poolings = list(dict.fromkeys(pooling_of(first(own)) for own in found.values()))
    figure, axes = plt.subplots(1, len(poolings), figsize=(5.5 * len(poolings), 4), squeeze=False)
    for axis, pooling in zip(axes[0], poolings, strict=True):
        untrained = scores_of({"scores": result["untrained"][base][pooling]})["dev"]
        axis.axhline(untrained, color="gray", linewidth=0.8, linestyle=":", label="untrained")
        for own in found.values():
            if pooling_of(first(own)) != pooling:
                continue
            steps = [step for step, _ in first(own)["curve"]]
            runs = [[100 * value for _, value in cell["curve"]] for cell in own.values()]
            runs = [run for run in runs if len(run) == len(steps)]
            means = [statistics.mean(values) for values in zip(*runs, strict=True)]
            (line,) = axis.plot(steps, means, label=title(own), linewidth=1.2)
            if len(runs) > 1:
                ends = [(min(values), max(values)) for values in zip(*runs, strict=True)]
                axis.fill_between(steps, *zip(*ends, strict=True), alpha=0.12, color=line.get_color())
        axis.set_title(f"{POOLINGS[pooling]} pooling", fontsize=9)
        axis.set_xlabel("step")
        axis.legend(fontsize=7)
    axes[0][0].set_ylabel("STS-B dev, Spearman x 100")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def forest(result: dict[str, Any], base: str, path: Path) -> None:
    """Each method minus SimCSE from the same seed, with its interval."""
    import matplotlib.pyplot as plt

    found = {which: own for which, own in groups(result["cells"], base).items() if plain(own)}
    drawn = [
        (f"{title(own)} ({POOLINGS[pooling_of(first(own))]})", differences(own, baseline(own, found), "mean"))
        for own in found.values()
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
    axis.set_xlabel("mean of the STS tests over SimCSE, same pooling and seed; 95 % interval")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
