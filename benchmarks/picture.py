"""README's picture, from the result lines: ``python -m benchmarks.picture`` writes docs/picture.svg."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import matplotlib.lines
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import RESULTS
from benchmarks.lines import BASELINE, ENCODERS, ROOT, runs_of

STS_ROWS = {
    "untrained": "untrained",
    "MultipleNegativesRankingLoss": "MNRL (s, s)",
    BASELINE: "SimCSE",
    "SimCSE, projector": "SimCSE, projector",
    "InfoCSE": "InfoCSE",
    "Twins, one column": "Twins",
}
COLOURS = ("#2a6f97", "#c1666b")


def dots(axis: Axes, groups: dict[str, dict[str, list[float]]], title: str, unit: str) -> None:
    """A dot for each seed: a row for each of the groups, a colour for each encoder."""
    names = list(groups)
    for number, encoder in enumerate(ENCODERS):
        for place, name in enumerate(names):
            values = groups[name].get(encoder, [])
            height = len(names) - place - 0.15 + 0.3 * (1 - number)
            axis.plot(values, [height] * len(values), "o", ms=4, alpha=0.8, color=COLOURS[number])
        start = groups["untrained"].get(encoder, [])
        if start:
            axis.axvline(start[0], color=COLOURS[number], lw=0.8, ls=":")
    axis.set_yticks(range(len(names), 0, -1), names)
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel(unit, fontsize=9)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", lw=0.3)


def sts_groups() -> dict[str, dict[str, list[float]]]:
    runs = runs_of("two_encoders.jsonl", "two encoders")
    return {
        title: {
            encoder: runs[(runs["row"] == row) & (runs["encoder"] == encoder)]["tests"].tolist() for encoder in ENCODERS
        }
        for row, title in STS_ROWS.items()
    }


def search_groups() -> dict[str, dict[str, list[float]]]:
    runs = pd.read_json(RESULTS / "own_text.jsonl", lines=True)
    runs = runs[runs["corpus"] == "scifact"]
    wanted = {
        "untrained": ("own-text", "start"),
        "sentences": ("sentences, learning rate 3e-5", "trained"),
        "title/body pairs": ("own-text", "trained"),
        "half mixed": ("own-text", "mixed"),
    }
    return {
        title: {
            encoder: runs[(runs["row"] == row) & (runs["encoder"] == encoder)][score].dropna().tolist()
            for encoder in ENCODERS
        }
        for title, (row, score) in wanted.items()
    }


def draw(path: Path) -> None:
    """Write the picture."""
    matplotlib.rcParams["svg.hashsalt"] = "st_contrastive"  # the same bytes each time
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    dots(left, sts_groups(), "Similarity: mean of four STS test sets", "Spearman x 100")
    dots(right, search_groups(), "Search: SciFact", "nDCG@10 x 100")
    handles = [matplotlib.lines.Line2D([], [], marker="o", ls="", color=colour) for colour in COLOURS]
    figure.legend(handles, [f"all-{name}" for name in ("MiniLM-L6-v2", "mpnet-base-v2")], loc="outside lower center",
                  ncols=2, frameon=False, fontsize=9)  # fmt: skip
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(ROOT / "docs" / "picture.svg")
