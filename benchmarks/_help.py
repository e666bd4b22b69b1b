"""The papers' ground as tables: the base that was made, the settings that were chosen, and what they came to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks._replicated import Cell, best_on_dev, differences, first, over, scores_of, spread, tests_of
from benchmarks._spaces import COLUMNS, above, accuracies, named_so, score_of
from benchmarks.choose import METHODS
from benchmarks.do_they_help import PAPER, TITLES

Table = tuple[list[str], list[list[str]]]
#: How the base is read, and the test scores of BERT-base that are published: of [CLS] and the mean by Reimers and
#: Gurevych (2019, table 1), of the first-last average by Gao et al. (2021, table 5).
READINGS = {
    "cls": ("[CLS]", {"sts12": 20.16, "sts13": 30.01, "sts16": 38.08, "stsb": 16.50}),
    "mean": ("mean", {"sts12": 38.78, "sts13": 57.98, "sts16": 61.06, "stsb": 46.35}),
    "first_last": ("first-last average", {"sts12": 39.70, "sts13": 59.38, "sts16": 66.19, "stsb": 53.87}),
}
#: Rows and what each is held to: without a part, with another, at another setting, or from another start.
HELD_TO = (
    ("InfoCSE", "SimCSE from stage 1"),
    ("InfoCSE", "InfoCSE without stage 1"),
    ("InfoCSE", "InfoCSE, SimCSE's head"),
    ("SimCSE from stage 1", "SimCSE"),
    ("ConIsI-o1", "ConIsI-s"),
    ("Twins with German", "Twins on the translated sentences"),
    ("Twins, one column", "SimCSE without head"),
    ("SimCSE without head", "SimCSE"),
    ("DiffCSE", "SimCSE"),
    ("SimCSE with masked-LM", "SimCSE"),
    *((title, f"{title}{PAPER}") for title in TITLES.values()),
    ("ConIsI-s" + PAPER, "SimCSE" + PAPER),
    ("InfoCSE" + PAPER, "SimCSE" + PAPER),
)
#: SimCSE on either data, and from either start.
SIMCSE = (TITLES["simcse"], TITLES["simcse-pairs"], "SimCSE from stage 1")
#: What the name of an untrained encoder ends with, and its title.
UNTRAINED = {"": "untrained", "-stage1": "untrained, after stage 1"}
#: Of the columns beside STS, those that are shown.
OTHERS = tuple(column for column in COLUMNS if column[0] in ("transfer", "alignment", "uniformity"))


def base_curve(curve: list[dict[str, Any]], every: int = 500) -> Table:
    """Every so many steps, and the last: held-out masked-LM loss, and dev of three readings."""
    kept = [row for row in curve if row["step"] % every == 0 or row is curve[-1]]
    lines = [[f"{row['step']:,}", f"{row['held_out']:.2f}", *(f"{row[name]:.1f}" for name in READINGS)] for row in kept]
    return ["step", "masked-LM loss, held out", *(f"dev, {title}" for title, _ in READINGS.values())], lines


def base_tests(tests: dict[str, dict[str, float]]) -> Table:
    """The base on the test sets, by how it is read, and the mean over the same sets that is published for BERT-base."""
    lines = []
    for name, (title, published) in READINGS.items():
        values = [*tests[name].values(), statistics.mean(tests[name].values())]
        bert = statistics.mean(published[one] for one in tests[name])
        lines.append([title, *(f"{value:.1f}" for value in values), f"{bert:.1f}"])
    return ["", *tests["cls"], "mean", "mean, BERT-base (published)"], lines


def chosen(result: dict[str, Any]) -> Table:
    """Each candidate that got to the last rung, with its best dev after each; the one that was chosen in bold."""
    lines = []
    rungs = sorted({cell["steps"] for cell in result["cells"]})
    for name, method in METHODS.items():
        own = [cell for cell in result["cells"] if cell["method"] == name]
        for candidate in method.candidates():
            found = {cell["steps"]: cell for cell in own if candidate.items() <= cell.items()}
            if rungs[-1] not in found:
                continue
            weight = f"{candidate[method.weight]:g}" if method.weight else ""
            line = [TITLES[name], f"{candidate['temperature']:g}", f"{candidate['lr']:g}", weight]
            line += [f"{100 * found[steps]['dev']:.2f}" for steps in rungs]
            if result["chosen"].get(name) in found.values():
                line = [f"**{value}**" if value else "" for value in line]
            lines.append(line)
    head = ["method", "temperature", "learning rate", "weight", *(f"dev, {steps} steps" for steps in rungs)]
    return head, lines


def by_title(cells: Sequence[Cell]) -> dict[str, dict[int, Cell]]:
    """Rows by their title, cells by their seed, in the order of the rows.

    Raises:
        ValueError: a title stands for two settings.
    """
    order = [title + end for title in TITLES.values() for end in ("", PAPER)]
    found: dict[str, dict[int, Cell]] = {}
    known = sorted(cells, key=lambda cell: order.index(cell["label"]) if cell["label"] in order else len(order))
    for cell in known:
        own = found.setdefault(cell["label"], {})
        own[cell["seed"]] = cell
        if any(first(own)[name] != cell[name] for name in ("set", "options")):
            raise ValueError(f"{cell['label']} was trained with two settings: take the cells of one out of the file.")
    return found


def simcse_of(own: dict[int, Cell], found: dict[str, dict[int, Cell]]) -> dict[int, Cell]:
    """SimCSE from the same encoder on the same sentences, at that of its settings that has the higher dev.

    Nothing for SimCSE itself.
    """
    others = [
        other
        for title, other in found.items()
        if title.removesuffix(PAPER) in SIMCSE
        and all(first(own)[name] == first(other)[name] for name in ("base", "data"))
    ]
    return {} if own in others else best_on_dev(own, others)


def shared_tests(result: dict[str, Any]) -> list[str]:
    """The tests that all were scored on."""
    found = [tests_of(cell["scores"]) for cell in result["cells"]]
    return [name for name in found[0] if all(name in own for own in found)] if found else []


def compared(result: dict[str, Any], name: str) -> dict[str, list[float]]:
    """Each row minus SimCSE with the same seeds: of ``dev`` or the ``mean`` of the tests."""
    found, tests = by_title(result["cells"]), shared_tests(result)
    return {title: differences(own, simcse_of(own, found), name, tests) for title, own in found.items()}


def pairs(result: dict[str, Any]) -> Table:
    """Each pair of rows of which one is held to the other: the difference, paired by seed."""
    found, tests = by_title(result["cells"]), shared_tests(result)
    lines = []
    for title, other in HELD_TO:
        own, theirs = found.get(title, {}), found.get(other, {})
        if seeds := own.keys() & theirs.keys():
            against = [over(differences(own, theirs, name, tests)) for name in ("dev", "mean")]
            lines.append([title, other, str(len(seeds)), *against])
    return ["", "minus", "seeds", "dev (95 %)", "mean of the tests (95 %)"], lines


def untrained(result: dict[str, Any], start: str) -> dict[str, dict[str, float | None]]:
    """Scores under [CLS] of the base, and of the base after stage 1, where they are known; by their titles."""
    found = {title: result["untrained"].get(f"{start}{end}", {}).get("cls") for end, title in UNTRAINED.items()}
    return {title: scores for title, scores in found.items() if scores}


def rows(result: dict[str, Any], start: str) -> Table:
    """The untrained base, then each row: STS, transfer and geometry, and how far it is from SimCSE."""
    tests = shared_tests(result)
    found = by_title(result["cells"])
    columns = ("dev", *tests, "mean")
    others = [
        (column, names, times, digits)
        for column, end, times, digits in OTHERS
        if (names := set[str]().union(*(named_so(cell["scores"], end) for cell in result["cells"])))
    ]

    def line(title: str, own: dict[int, Cell], scores: list[dict[str, float | None]]) -> list[str]:
        sts = [spread([scores_of({"scores": one}, tests)[name] for one in scores]) for name in columns]
        more = [
            spread([times * score_of(one, names) for one in scores], digits)
            if all(names <= one.keys() for one in scores)
            else ""
            for _, names, times, digits in others
        ]
        baseline = simcse_of(own, found) if own else {}
        compared_with = [over(differences(own, baseline, name, tests)) for name in ("dev", "mean")]
        held_to = first(baseline)["label"] if baseline else ""
        return [title, str(len(own)) if own else "", *sts, *more, held_to, *compared_with]

    lines = [line(title, {}, [scores]) for title, scores in untrained(result, start).items()]
    lines += [line(title, own, [cell["scores"] for cell in own.values()]) for title, own in found.items()]
    head = ["", "seeds", *columns[:-1], "mean of the tests", *(column for column, *_ in others)]
    return [*head, "compared with", "dev over it (95 %)", "tests over it (95 %)"], lines


def transferred(result: dict[str, Any], start: str) -> Table:
    """The untrained base, then each row: accuracy x 100 on each transfer task, and the mean, and that over SimCSE's."""
    found = by_title(result["cells"])
    known = untrained(result, start)
    tasks, columns = accuracies([*known.values(), *(cell["scores"] for cell in result["cells"])])

    def line(about: list[str], runs: list[dict[str, float | None]]) -> list[str]:
        return [*about, *(spread([100 * score_of(one, names) for one in runs]) for names in columns)]

    lines = [[*line([title, ""], [scores]), "", ""] for title, scores in known.items()]
    for title, own in found.items():
        theirs = simcse_of(own, found)
        compared = [first(theirs)["label"] if theirs else "", above(own, theirs, columns[-1])]
        lines.append([*line([title, str(len(own))], [cell["scores"] for cell in own.values()]), *compared])
    return ["", "seeds", *tasks, "compared with", "mean over it (95 %)"], lines
