"""What ``benchmarks.replicate`` found, as tables."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from st_contrastive.evaluation.sts import PAPERS_SETS
from st_contrastive.evaluation.sts import plain as plain_name
from st_contrastive.recipes import RECIPES, recipe

#: The tests whose mean is compared, as far as a cell has them.
TESTS = tuple(PAPERS_SETS)
Cell = dict[str, Any]
Groups = dict[tuple[str, str, str, str], dict[int, Cell]]
OVER = ("dev over SimCSE's best, same pooling and seeds (95 %)", "tests over SimCSE's")


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
    return dict(zip(parts[::2], (value.removeprefix("=") for value in parts[1::2]), strict=True))


def pooling_of(cell: Cell) -> str:
    """Under which pooling the cell's model is scored."""
    return options_of(cell).get("--pooling") or str(recipe(cell["recipe"]).options.get("pooling", "cls"))


def changes_of(cell: Cell) -> str:
    """What differs from the recipe, but for the pooling and the precision: "" of a recipe as it is."""
    others = {key: value for key, value in options_of(cell).items() if key not in ("--pooling", "--bf16")}
    return " ".join([*cell["set"], *(f"{key} {value}".strip() for key, value in others.items())])


def in_bf16(cell: Cell) -> bool:
    """Whether the cell's model was trained in bfloat16 autocast, and not in float32."""
    return "--bf16" in options_of(cell)


def groups(cells: Iterable[Cell], start: str) -> Groups:
    """Of one encoder: (recipe, pooling, changes, data) to seed to cell, [CLS] before the mean, SimCSE first.

    Of a cell that was run in both precisions, float32's.
    """
    own = [cell for cell in cells if start_of(cell) == start]
    found: Groups = {}
    order = {one.name: place for place, one in enumerate(RECIPES.values())}
    for cell in sorted(
        own, key=lambda cell: (pooling_of(cell), order[cell["recipe"]], changes_of(cell), not in_bf16(cell))
    ):
        which = (cell["recipe"], pooling_of(cell), changes_of(cell), cell["data"])
        found.setdefault(which, {})[cell["seed"]] = cell
    return found


def of_sts(cells: Iterable[Cell]) -> list[Cell]:
    """Those that were scored on STS; a cell may have been scored on another suite alone."""
    return [cell for cell in cells if any(name.endswith(" spearman") for name in cell["scores"])]


def shared_tests(result: dict[str, Any], start: str, found: Groups) -> list[str]:
    """The tests that all were scored on, so that a mean is of the same sets."""
    scored = [{"scores": scores} for scores in result["untrained"].get(start, {}).values()]
    scored += [cell for own in found.values() for cell in own.values()]
    return [name for name in TESTS if all(name in tests_of(cell["scores"]) for cell in of_sts(scored))]


def first(own: dict[int, Cell]) -> Cell:
    return next(iter(own.values()))


def plain(own: dict[int, Cell]) -> bool:
    """A recipe as it is, but for pooling and precision, with the translations that it needs."""
    cell = first(own)
    return not cell["set"] and options_of(cell).keys() <= {"--pooling", "--bf16", "--translations"}


def alike(own: dict[int, Cell], other: dict[int, Cell]) -> bool:
    """Trained on the same data and scored under the same pooling."""
    a, b = first(own), first(other)
    return (a["data"], pooling_of(a)) == (b["data"], pooling_of(b))


def as_it_is(name: str, own: dict[int, Cell], found: Groups) -> dict[int, Cell]:
    """The recipe of that name without a change, trained and scored like ``own``; nothing where it was not run."""
    same = (other for (of, *_), other in found.items() if of == name and plain(other) and alike(own, other))
    return next(same, {})


def is_simcse(own: dict[int, Cell]) -> bool:
    """SimCSE as it is, or at another temperature."""
    words = changes_of(first(own)).split()
    return recipe(first(own)["recipe"]).method == "simcse" and all(word.startswith("temperature=") for word in words)


def shown(own: dict[int, Cell]) -> bool:
    """Whether the main table has it: recipes as they are, and all of SimCSE, for its best is what they are held to."""
    return plain(own) or is_simcse(own)


def shown_groups(cells: Iterable[Cell], start: str) -> Groups:
    """Those that the main table has."""
    return {which: own for which, own in groups(cells, start).items() if shown(own)}


def baseline(own: dict[int, Cell], found: Groups) -> dict[int, Cell]:
    """SimCSE, trained and scored alike, at the temperature that is best on dev; nothing for SimCSE itself.

    Of temperatures with fewer of the seeds than another has, none is taken.
    """
    if is_simcse(own):
        return {}
    others = [other for other in found.values() if is_simcse(other) and alike(own, other)]
    return best_on_dev(own, sorted(others, key=plain, reverse=True))  # of equal ones, the recipe as it is


def best_on_dev(own: dict[int, Cell], others: list[dict[int, Cell]]) -> dict[int, Cell]:
    """Of rows that share the most seeds with ``own``, the first with the highest dev on them: no unfinished row."""
    shared = [len(own.keys() & other.keys()) for other in others]
    full = [other for other, seeds in zip(others, shared, strict=True) if seeds == max(shared)]
    return max(full, key=lambda other: _dev(other, own.keys()), default={})


def _dev(other: dict[int, Cell], seeds: Iterable[int]) -> float:
    found = [scores_of(other[seed])["dev"] for seed in seeds if seed in other]
    return statistics.mean(found) if found and not any(map(math.isnan, found)) else -math.inf


def named(pooling: str) -> str:
    return "[CLS]" if pooling == "cls" else pooling


def short_title(name: str) -> str:
    """The recipe's title, without the name of the small encoder."""
    return recipe(name).title.split(", all-MiniLM")[0]


def title(own: dict[int, Cell]) -> str:
    cell = first(own)
    whole = short_title(cell["recipe"])
    if not plain(own):
        return f"{whole}, {cell['label']}"
    # SimCSE is shown at several temperatures: each row says which.
    return f"{whole}, temperature {recipe(cell['recipe']).loss_arguments['temperature']}" if is_simcse(own) else whole


def spread(values: list[float], digits: int = 2) -> str:
    """Mean and standard deviation; "" of what was never scored."""
    if all(map(math.isnan, values)):
        return ""
    deviation = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{deviation}"


def differences(own: dict[int, Cell], theirs: dict[int, Cell], name: str, tests: Sequence[str]) -> list[float]:
    """Of the seeds that both have."""
    return [scores_of(own[seed], tests)[name] - scores_of(theirs[seed], tests)[name] for seed in own if seed in theirs]


def interval(values: list[float]) -> tuple[float, float] | None:
    """Student's 95 % interval of the mean; None of fewer than two."""
    if len(values) < 2:
        return None
    half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1)) / math.sqrt(len(values))
    return statistics.mean(values) - half, statistics.mean(values) + half


def over(values: list[float]) -> str:
    if all(map(math.isnan, values)):
        return ""
    ends = interval(values)
    return f"{statistics.mean(values):+.2f}" + (f" ({ends[0]:+.2f} to {ends[1]:+.2f})" if ends else "")


def rows(result: dict[str, Any], start: str) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table: each pooling's untrained encoder, then its recipes."""
    found = shown_groups(of_sts(result["cells"]), start)
    tests = shared_tests(result, start, found)
    columns = ("dev", *tests, "mean")
    lines = []
    known = result["untrained"].get(start, {})
    for pooling in dict.fromkeys([*known, *(pooling_of(first(own)) for own in found.values())]):
        if of_sts([{"scores": known.get(pooling, {})}]):
            untrained = scores_of({"scores": known[pooling]}, tests)
            lines.append(["untrained", named(pooling), "", *(spread([untrained[name]]) for name in columns), "", ""])
        for own in found.values():
            if pooling_of(first(own)) != pooling:
                continue
            means = [spread([scores_of(cell, tests)[name] for cell in own.values()]) for name in columns]
            compared = [over(differences(own, baseline(own, found), name, tests)) for name in ("dev", "mean")]
            lines.append([title(own), named(pooling), str(len(own)), *means, *compared])
    return ["", "pooling", "seeds", *columns[:-1], "mean of the tests", *OVER], lines


def compared(result: dict[str, Any], start: str) -> dict[str, list[float]]:
    """Each row of the table minus SimCSE with the same seeds, on the mean of the tests."""
    found = shown_groups(of_sts(result["cells"]), start)
    tests = shared_tests(result, start, found)
    return {
        f"{title(own)} ({named(pooling_of(first(own)))})": differences(own, baseline(own, found), "mean", tests)
        for own in found.values()
    }


def short_rows(result: dict[str, Any], start: str) -> tuple[list[str], list[list[str]]]:
    """The same without the single sets."""
    head, lines = rows(result, start)
    kept = [*range(4), *range(len(head) - 3, len(head))]
    return [head[index] for index in kept], [[line[index] for index in kept] for line in lines]


def summary(
    result: dict[str, Any], start: str, pooling: str, names: dict[tuple[str, str], str]
) -> tuple[list[str], list[list[str]]]:
    """The untrained encoder and SimCSE, and the other rows minus SimCSE.

    Args:
        result: cells and untrained encoders.
        start: the encoder.
        pooling: under which all are scored.
        names: recipe and changes of the rows that are shown, and what each is called; SimCSE's first.
    """
    every = groups(of_sts(result["cells"]), start)
    shown_here = {which: own for which, own in every.items() if which[1] == pooling and (which[0], which[2]) in names}
    found = {(name, changes): own for (name, _, changes, _), own in shown_here.items()}
    if len(found) < len(shown_here):
        raise ValueError("a recipe was run on several texts: a summary is of one")
    four = shared_tests(result, start, shown_here)
    columns = [("dev", four), ("mean", four), ("mean", [test for test in four if test != "sts12"])]
    untrained = {"scores": result["untrained"][start][pooling]}
    simcse = found[next(iter(names))]
    lines = [["untrained", "", *(f"{scores_of(untrained, tests)[name]:.1f}" for name, tests in columns)]]
    for which, shown_as in names.items():
        own = found[which]
        if own is simcse:
            values = [statistics.mean(scores_of(cell, tests)[name] for cell in own.values()) for name, tests in columns]
            lines.append([shown_as, str(len(own)), *(f"{value:.1f}" for value in values)])
        else:
            lines.append([shown_as, str(len(own)), *(over(differences(own, simcse, *column)) for column in columns)])
    return ["", "seeds", "dev", "the tests", "without STS12"], lines


def changed(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Recipes with an argument changed, beside the recipe as it is: the sweeps."""
    lines = []
    for start in dict.fromkeys(map(start_of, result["cells"])):
        found = groups(of_sts(result["cells"]), start)
        tests = shared_tests(result, start, found)
        for (name, *_), own in found.items():
            if plain(own):
                continue
            cell = first(own)
            like = as_it_is(name, own, found)
            means = [spread([scores_of(run, tests)[one] for run in own.values()]) for one in ("dev", "mean")]
            compared = [over(differences(own, like, one, tests)) for one in ("dev", "mean")]
            pooled = [f"--pooling {options_of(cell)['--pooling']}"] if "--pooling" in options_of(cell) else []
            what = " ".join([changes_of(cell), *pooled])
            lines.append(
                [
                    short_title(name),
                    Path(start).name,
                    cell["data"].split(".")[0],
                    what,
                    str(len(own)),
                    *means,
                    *compared,
                ]
            )
    head = [
        "recipe",
        "from",
        "on",
        "changed",
        "seeds",
        "dev",
        "tests",
        "dev, over the recipe's",
        "tests, over the recipe's",
    ]
    return head, lines


def precisions(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Cells that were run in both precisions, and by how much they differ."""
    found: dict[tuple[Any, ...], dict[bool, Cell]] = {}
    for cell in of_sts(result["cells"]):
        which = (cell["recipe"], pooling_of(cell), changes_of(cell), cell["base"], cell["data"], cell["seed"])
        found.setdefault(which, {})[in_bf16(cell)] = cell
    lines = []
    for (name, _, _, _, data, seed), own in found.items():
        if len(own) == 2:
            tests = [test for test in tests_of(own[True]["scores"]) if test in tests_of(own[False]["scores"])]
            both = [scores_of(own[kind], tests) for kind in (False, True)]
            pairs = [f"{scores[which]:.2f}" for which in ("dev", "mean") for scores in both]
            name_and_changes = ", ".join(filter(None, [short_title(name), changes_of(own[True])]))
            lines.append([name_and_changes, data.split(".")[0], str(seed), *pairs])
    return ["recipe", "on", "seed", "dev, fp32", "dev, bf16", "tests, fp32", "tests, bf16"], lines
