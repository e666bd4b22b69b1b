"""What ``benchmarks.replicate`` found, as tables and pictures."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from st_contrastive.evaluation.sts import PAPERS_SETS
from st_contrastive.evaluation.sts import plain as plain_name
from st_contrastive.recipes import recipe

#: The tests whose mean is compared, as far as a cell has them.
TESTS = tuple(PAPERS_SETS)
Cell = dict[str, Any]
Groups = dict[tuple[str, str, str], dict[int, Cell]]
POOLINGS = {"cls": "[CLS]", "mean": "mean"}
OVER = ("dev over SimCSE's, same pooling and seeds (95 %)", "tests over SimCSE's")


def tests_of(scores: dict[str, float]) -> list[str]:
    """Those of the papers' tests that were scored."""
    known = {plain_name(key.rsplit(" ", 2)[0]) for key in scores if key.endswith(" test spearman")}
    return [name for name in TESTS if name in known]


def scores_of(cell: Cell, names: Sequence[str] | None = None) -> dict[str, float]:
    """Spearman x 100 of each test, of those of ``names`` alone, if they are given; their mean, and dev."""
    found = {}
    for key, value in cell["scores"].items():
        task, split, metric = key.rsplit(" ", 2)
        if metric == "spearman":
            found[plain_name(task), split] = math.nan if value is None else 100 * value
    tests = {name: found[name, "test"] for name in (tests_of(cell["scores"]) if names is None else names)}
    return {
        **tests,
        "mean": statistics.mean(tests.values()) if tests else math.nan,
        "dev": found.get(("stsb", "dev"), math.nan),
    }


def start_of(cell: Cell) -> str:
    """The encoder that the cell's run started from."""
    return cell["base"] or str(recipe(cell["recipe"]).options["model"])


def options_of(cell: Cell) -> dict[str, str]:
    """Its options of ``st-contrastive train``, each with what follows it."""
    _, *parts = re.split(r"\s*(--[\w-]+)\s*", cell["options"])
    return dict(zip(parts[::2], parts[1::2], strict=True))


def pooling_of(cell: Cell) -> str:
    """Under which pooling the cell's model is scored."""
    return options_of(cell).get("--pooling") or str(recipe(cell["recipe"]).options.get("pooling", "cls"))


def groups(cells: Iterable[Cell], start: str) -> Groups:
    """Of one encoder: (recipe, label, data) to seed to cell, [CLS] before the mean, SimCSE before the others."""
    own = [cell for cell in cells if start_of(cell) == start]
    found: Groups = {}
    for cell in sorted(own, key=lambda cell: (pooling_of(cell), recipe(cell["recipe"]).method != "simcse")):
        found.setdefault((cell["recipe"], cell["label"], cell["data"]), {})[cell["seed"]] = cell
    return found


def shared_tests(result: dict[str, Any], start: str, found: Groups) -> list[str]:
    """The tests that all were scored on, so that a mean is of the same sets."""
    scored = [cell["scores"] for own in found.values() for cell in own.values()]
    scored += result["untrained"].get(start, {}).values()
    return [name for name in TESTS if all(name in tests_of(scores) for scores in scored)]


def first(own: dict[int, Cell]) -> Cell:
    return next(iter(own.values()))


def plain(own: dict[int, Cell]) -> bool:
    """A recipe as it is, but for the pooling and the translations that it needs."""
    cell = first(own)
    return not cell["set"] and options_of(cell).keys() <= {"--pooling", "--translations"}


def baseline(own: dict[int, Cell], found: Groups) -> dict[int, Cell]:
    """SimCSE on the same data under the same pooling; nothing for itself."""
    for other in found.values():
        same = pooling_of(first(own)) == pooling_of(first(other)) and first(own)["data"] == first(other)["data"]
        if recipe(first(other)["recipe"]).method == "simcse" and plain(other) and same and other is not own:
            return other
    return {}


def title(own: dict[int, Cell]) -> str:
    cell = first(own)
    named = recipe(cell["recipe"]).title.split(", all-MiniLM")[0]
    return named if cell["label"] in ("", pooling_of(cell)) else f"{named}, {cell['label']}"


def spread(values: list[float], digits: int = 2) -> str:
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def differences(own: dict[int, Cell], theirs: dict[int, Cell], name: str, tests: Sequence[str]) -> list[float]:
    """Of the seeds that both have."""
    return [scores_of(own[seed], tests)[name] - scores_of(theirs[seed], tests)[name] for seed in own if seed in theirs]


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


def rows(result: dict[str, Any], start: str) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table: each pooling's untrained encoder, then its recipes."""
    found = {which: own for which, own in groups(result["cells"], start).items() if plain(own)}
    tests = shared_tests(result, start, found)
    columns = ("dev", *tests, "mean")
    lines = []
    for pooling, scores in result["untrained"].get(start, {}).items():
        untrained = scores_of({"scores": scores}, tests)
        lines.append(["untrained", POOLINGS[pooling], "", *(f"{untrained[name]:.2f}" for name in columns), "", ""])
        for own in found.values():
            if pooling_of(first(own)) != pooling:
                continue
            means = [spread([scores_of(cell, tests)[name] for cell in own.values()]) for name in columns]
            compared = [over(differences(own, baseline(own, found), name, tests)) for name in ("dev", "mean")]
            lines.append([title(own), POOLINGS[pooling], str(len(own)), *means, *compared])
    return ["", "pooling", "seeds", *columns[:-1], "mean of the tests", *OVER], lines


def short_rows(result: dict[str, Any], start: str) -> tuple[list[str], list[list[str]]]:
    """The same without the single sets."""
    head, lines = rows(result, start)
    kept = [*range(4), *range(len(head) - 3, len(head))]
    return [head[index] for index in kept], [[line[index] for index in kept] for line in lines]


def changed(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Recipes with an argument changed, beside the recipe as it is: the sweeps."""
    lines = []
    for start in dict.fromkeys(map(start_of, result["cells"])):
        found = groups(result["cells"], start)
        tests = shared_tests(result, start, found)
        for which, own in found.items():
            if plain(own):
                continue
            cell = first(own)
            like: dict[int, Cell] = next(
                (
                    other
                    for (name, _, data), other in found.items()
                    if (name, data) == (which[0], which[2])
                    and plain(other)
                    and pooling_of(first(other)) == pooling_of(cell)
                ),
                {},
            )
            means = [spread([scores_of(one, tests)[name] for one in own.values()]) for name in ("dev", "mean")]
            compared = [over(differences(own, like, name, tests)) for name in ("dev", "mean")]
            what = " ".join([*cell["set"], cell["options"]]).strip()
            lines.append(
                [
                    recipe(which[0]).title.split(", all-MiniLM")[0],
                    Path(start).name,
                    what,
                    str(len(own)),
                    *means,
                    *compared,
                ]
            )
    head = ["recipe", "from", "changed", "seeds", "dev", "tests", "dev, over the recipe's", "tests, over the recipe's"]
    return head, lines


def curves(result: dict[str, Any], start: str, path: Path) -> None:
    """Dev against steps: the mean over the seeds, and how far they lie apart; a picture for each pooling."""
    import matplotlib.pyplot as plt

    found = {which: own for which, own in groups(result["cells"], start).items() if plain(own)}
    poolings = list(dict.fromkeys(pooling_of(first(own)) for own in found.values()))
    figure, axes = plt.subplots(1, len(poolings), figsize=(5.5 * len(poolings), 4), squeeze=False)
    for axis, pooling in zip(axes[0], poolings, strict=True):
        untrained = scores_of({"scores": result["untrained"][start][pooling]})["dev"]
        axis.axhline(untrained, color="gray", linewidth=0.8, linestyle=":", label="untrained")
        for own in found.values():
            if pooling_of(first(own)) != pooling or not first(own)["curve"]:
                continue
            steps = [step for step, _ in first(own)["curve"]]
            runs = [[100 * (math.nan if v is None else v) for _, v in cell["curve"]] for cell in own.values()]
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


def forest(result: dict[str, Any], start: str, path: Path) -> None:
    """Each method minus SimCSE from the same seed, with its interval."""
    import matplotlib.pyplot as plt

    found = {which: own for which, own in groups(result["cells"], start).items() if plain(own)}
    tests = shared_tests(result, start, found)
    drawn = [
        (f"{title(own)} ({POOLINGS[pooling_of(first(own))]})", differences(own, baseline(own, found), "mean", tests))
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
