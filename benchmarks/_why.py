"""What ``benchmarks.why`` found, as tables and a picture."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks._pictures import seeds
from benchmarks._replicated import over, spread
from benchmarks.do_they_help import TITLES

Cell = dict[str, Any]
Table = tuple[list[str], list[list[str]]]
#: What each question's cells train, and what was changed in them.
ASKED = {
    "norm": ("ConIsI-s", "BatchNorm in its head"),
    "temperature": ("ConIsI-s", "temperature"),
    "head": ("InfoCSE", "head and temperature"),
    "weight": ("InfoCSE", "weight of the masked-LM term"),
    "queue": ("Twins", "batches in the queue"),
}

#: The arguments by whose values a question's cells are ordered.
NUMBERS = {"temperature": "temperature", "weight": "mlm_weight", "queue": "queue_batches"}


def devs(cells: Iterable[Cell]) -> dict[tuple[str, str], dict[int, float]]:
    """By question and title: the best dev x 100 by seed, in the order of what was changed.

    Raises:
        ValueError: a title stands for two settings.
    """

    def order(cell: Cell) -> tuple[float, str]:
        return cell.get(NUMBERS.get(cell["question"], ""), 0), cell["title"]

    found: dict[tuple[str, str], dict[int, float]] = {}
    for question in ASKED:
        for cell in sorted((cell for cell in cells if cell["question"] == question), key=order):
            own = found.setdefault((question, cell["title"]), {})
            if cell["seed"] in own:
                raise ValueError(f"{question}, {cell['title']} was run with two settings: take one out of the file.")
            own[cell["seed"]] = 100 * cell["dev"]
    return found


def measured(cells: Iterable[Cell]) -> dict[str, Cell]:
    """By method: the cell, at the chosen setting, of which the gradients were measured."""
    found = {
        ASKED[cell["question"]][0] if cell["question"] in ASKED else TITLES[cell["title"]]: cell
        for cell in cells
        if cell["gradients"] and cell["question"] != "weight"
    }
    return {title: found[title] for title in TITLES.values() if title in found}


def held_to(cells: Iterable[Cell]) -> dict[str, tuple[str, str]]:
    """By question: the question and title of the cells at the chosen setting; of queues, of those without one."""
    chosen = {cell["question"]: (cell["question"], cell["title"]) for cell in measured(cells).values()}
    shared = {"temperature": "norm", "weight": "head"}  # their changes start from the same cells
    found = {question: chosen.get(shared.get(question, question), ("", "")) for question in ASKED}
    return {**found, "queue": ("queue", "0")}


def changed(result: dict[str, Any]) -> Table:
    """Each change, and how far it is from the method at its chosen setting; of queues, from none.

    A weight has the term's share of the gradient beside it, where that was measured last.
    """
    found = devs(result["cells"])
    weights = {cell["title"]: cell for cell in result["cells"] if cell["question"] == "weight" and cell["gradients"]}
    known = held_to(result["cells"])
    lines = []
    for (question, title), own in found.items():
        method, what = ASKED[question]
        other = found.get(known[question], {})
        values = [own[seed] - other[seed] for seed in own if seed in other]
        same = known[question] == (question, title)
        compared = "" if same or not values else over(values)
        if question == "weight" and title in weights:
            step, shares = list(shares_of(weights[title]).items())[-1]
            title += f" ({100 * shares['mlm']:.1f} % of the gradient at step {step})"
        lines.append([method, what, title, str(len(own)), spread(list(own.values())), compared])
    return ["method", "changed", "to", "seeds", "dev", "over the chosen setting, or no queue (95 %)"], lines


def gradients(result: dict[str, Any]) -> Table:
    """Each term as it is logged, and its part of the weighted terms' gradient norms, at each step measured."""
    found = measured(result["cells"])
    steps = sorted({one["step"] for cell in found.values() for one in cell["gradients"]})
    lines = []
    for method, cell in found.items():
        shares, terms = shares_of(cell), {one["step"]: one["terms"] for one in cell["gradients"]}
        for term in next(iter(terms.values())):
            shown = [
                f"{terms[step][term]:.3f}, {100 * shares[step][term]:.0f} %" if step in terms else "" for step in steps
            ]
            lines.append([method, term, *shown])
    return ["method", "term", *(f"step {step}" for step in steps)], lines


def shares_of(cell: Cell) -> dict[int, dict[str, float]]:
    """By step, each term's part of the sum of the terms' gradient norms."""
    found = {}
    for one in cell["gradients"]:
        total = sum(one["norms"].values()) or 1.0
        found[one["step"]] = {name: norm / total for name, norm in one["norms"].items()}
    return found


def picture(result: dict[str, Any], path: Path) -> None:
    """A panel a question: dev of each change with its interval; and the terms' shares of the gradient."""
    import matplotlib.pyplot as plt

    found, known = devs(result["cells"]), held_to(result["cells"])
    figure, grid = plt.subplots(2, 3, figsize=(11, 6.5))  # one for the gradients, and one for each question
    axes = grid.flat
    for place, (method, cell) in enumerate(measured(result["cells"]).items()):
        shares = shares_of(cell)
        terms = list(next(iter(shares.values())))
        for term, style in zip(terms, ("-", "--", ":"), strict=False):
            if len(terms) > 1:
                values = [one[term] for one in shares.values()]
                axes[0].plot(list(shares), values, style, color=f"C{place}", label=f"{method}: {term}")
    axes[0].set_title("share of the gradient", fontsize=9)
    axes[0].set_xlabel("step")
    axes[0].legend(fontsize=6, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    for axis, (question, (method, what)) in zip(axes[1:], ASKED.items(), strict=True):
        start = known[question]
        drawn = {"as chosen": list(found[start].values())} if start in found and start[0] != question else {}
        drawn |= {title: list(own.values()) for (of, title), own in found.items() if of == question}
        for place, values in enumerate(drawn.values()):
            seeds(axis, values, place, across=False)
        axis.set_xticks(range(len(drawn)), drawn, fontsize=6, rotation=12 if question in ("norm", "head") else 0)
        axis.set_title(f"{method}: {what}", fontsize=9)
        axis.set_ylabel("STS-B dev, Spearman x 100", fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
