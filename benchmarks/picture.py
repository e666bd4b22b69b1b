"""Draw README's picture from the result lines, for wide and for narrow screens: ``python -m benchmarks.picture``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks import RESULTS
from benchmarks.lines import BASELINE, ENCODERS, ROOT, runs_of

#: Rows of the result lines, by what the picture calls them.
LANGUAGE_MODEL = {name: name for name in ("SimCSE", "ConIsI-s", "Twins with German", "InfoCSE")}
TRAINED_ENCODER = {
    "built-in MNRL": "MultipleNegativesRankingLoss",
    "SimCSE": BASELINE,
    "SimCSE, projector": "SimCSE, projector",
    "ConIsI-s": "ConIsI-s",
    "Twins": "Twins, one column",
    "InfoCSE": "InfoCSE",
}
OWN_TEXT = {
    "single sentences": ("sentences, learning rate 3e-5", "trained"),
    "sentences, half start": ("sentences, learning rate 3e-5", "mixed"),
    "title/body pairs, 1e-5": ("own-text", "trained"),
}
COLOURS = {"small language model": "#6a994e", "all-MiniLM-L6-v2": "#2a6f97", "all-mpnet-base-v2": "#c1666b"}

#: Gains of each seed over the start, by encoder, by row.
Gains = dict[str, dict[str, list[float]]]


@dataclass
class Panel:
    """A panel: its message, its unit and the gains."""

    message: str
    unit: str
    gains: Gains


def gains(runs: pd.DataFrame, rows: dict[str, str]) -> dict[str, list[float]]:
    """Gains of the mean of the STS test sets over the untrained encoder."""
    start = runs[runs["row"] == "untrained"]["tests"].item()
    return {title: (runs[runs["row"] == row]["tests"] - start).tolist() for title, row in rows.items()}


def by_row(of_encoders: dict[str, dict[str, list[float]]]) -> Gains:
    rows = next(iter(of_encoders.values()))
    return {row: {encoder: found[row] for encoder, found in of_encoders.items()} for row in rows}


def mean_range(gains: Gains) -> str:
    """The lowest and the highest mean, as ``+0.8 to +2.8``."""
    means = [sum(values) / len(values) for of_encoder in gains.values() for values in of_encoder.values() if values]
    return f"{min(means):+.1f} to {max(means):+.1f}"


def language_model() -> Panel:
    runs = runs_of("language_model.jsonl", "language-model")
    found = by_row({"small language model": gains(runs, LANGUAGE_MODEL)})
    start = runs[runs["row"] == "untrained"]["tests"].item()
    return Panel(
        f"Only a language model:\n{mean_range(found)} on similarity", f"points of Spearman, from {start:.1f}", found
    )


def trained_encoder() -> Panel:
    runs = runs_of("two_encoders.jsonl", "two encoders")
    found = by_row({encoder: gains(runs[runs["encoder"] == encoder], TRAINED_ENCODER) for encoder in ENCODERS})
    starts = " and ".join(f"{start:.1f}" for start in runs[runs["row"] == "untrained"].sort_values("encoder")["tests"])
    return Panel(f"A trained encoder:\n{mean_range(found)} on similarity", f"points of Spearman, from {starts}", found)


def own_documents() -> Panel:
    runs = pd.read_json(RESULTS / "own_text.jsonl", lines=True)
    found: Gains = {}
    for title, (row, score) in OWN_TEXT.items():
        part = runs[(runs["corpus"] == "scifact") & (runs["row"] == row)]
        found[title] = {
            encoder: (part[score] - part["start"])[part["encoder"] == encoder].dropna().tolist() for encoder in ENCODERS
        }
    part = runs[(runs["corpus"] == "scifact") & (runs["row"] == "untrained")]
    with_bm25 = part["start with bm25"] - part["start"]
    found["untrained, with BM25"] = {encoder: with_bm25[part["encoder"] == encoder].tolist() for encoder in ENCODERS}
    return Panel("Search in your documents:\npairs help, BM25 helps more", "nDCG@10 on SciFact", found)


def dots(axis: Axes, panel: Panel) -> None:
    """A dot for each seed: a line for each row, a colour for each encoder."""
    rows = list(panel.gains)
    for height, row in enumerate(reversed(rows)):
        encoders = panel.gains[row]
        for number, (encoder, values) in enumerate(encoders.items()):
            offset = 0.15 - 0.3 * number if len(encoders) > 1 else 0.0
            axis.plot(values, [height + offset] * len(values), "o", ms=4, alpha=0.8, color=COLOURS[encoder])
    axis.axvline(0, color="#555555", lw=1)
    axis.set_yticks(range(len(rows)), reversed(rows))
    axis.set_ylim(-0.6, len(rows) - 0.4)
    axis.set_xlabel(panel.unit, fontsize=9)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0, labelsize=9)
    axis.tick_params(axis="x", labelsize=9)
    axis.grid(axis="x", lw=0.3)


def draw(path: Path, *, stacked: bool) -> None:
    """Write the picture: three panels side by side, or stacked for a narrow screen."""
    matplotlib.rcParams["svg.hashsalt"] = "st_contrastive"  # the same bytes each time
    panels = [language_model(), trained_encoder(), own_documents()]
    figure = Figure(figsize=(4.3, 7.4) if stacked else (9.6, 3.1), layout="constrained")
    heights = [len(panel.gains) + 2.5 for panel in panels]
    parts = figure.subfigures(3, 1, height_ratios=heights) if stacked else figure.subfigures(1, 3)
    for part, panel in zip(parts, panels, strict=True):
        part.suptitle(panel.message, fontsize=10, fontweight="bold", x=0.02, ha="left")
        dots(part.subplots(), panel)
    handles = [Line2D([], [], marker="o", ls="", color=colour) for colour in COLOURS.values()]
    figure.legend(handles, list(COLOURS), loc="outside lower left", ncols=1 if stacked else 3, frameon=False,
                  fontsize=9)  # fmt: skip
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Write both sizes."""
    draw(ROOT / "docs" / "picture.svg", stacked=False)
    draw(ROOT / "docs" / "picture-narrow.svg", stacked=True)


if __name__ == "__main__":
    main()
