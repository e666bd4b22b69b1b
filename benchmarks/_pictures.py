"""What ``benchmarks.replicate`` found, as pictures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._replicated import first, interval, named, pooling_of, scores_of, shown_groups, title


def curves(result: dict[str, Any], start: str, path: Path) -> None:
    """Dev against steps: the mean over the seeds, and how far they lie apart; a picture for each pooling."""
    import matplotlib.pyplot as plt

    found = shown_groups(result["cells"], start)
    poolings = list(dict.fromkeys(pooling_of(first(own)) for own in found.values()))
    figure, axes = plt.subplots(1, len(poolings), figsize=(5.5 * len(poolings), 4), squeeze=False)
    for axis, pooling in zip(axes[0], poolings, strict=True):
        axis.set_prop_cycle(color=plt.get_cmap("tab20").colors)
        if pooling in result["untrained"].get(start, {}):
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
        axis.set_title(f"{named(pooling)} pooling", fontsize=9)
        axis.set_xlabel("step")
        axis.legend(fontsize=6)
    axes[0][0].set_ylabel("STS-B dev, Spearman x 100")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def forest(differences: dict[str, list[float]], path: Path) -> None:
    """Each method minus SimCSE from the same seed, with its interval.

    Args:
        differences: by method, one difference a seed; a method with fewer than three is left out.
        path: the file.
    """
    import matplotlib.pyplot as plt

    drawn = [(name, values) for name, values in differences.items() if len(values) > 2][::-1]
    figure, axis = plt.subplots(figsize=(8, 0.9 + 0.32 * len(drawn)))
    for place, (_, values) in enumerate(drawn):
        seeds(axis, values, place, across=True)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(range(len(drawn)), [name for name, _ in drawn], fontsize=7)
    axis.set_ylim(-0.6, len(drawn) - 0.4)
    axis.set_xlabel("mean of the STS tests over SimCSE's, 95 % interval")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def seeds(axis: Any, values: list[float], place: float, *, across: bool) -> None:
    """One value a seed as dots, their mean and its interval, along the x axis or along the y axis."""

    def draw(along: Sequence[float], *style: Any, **more: Any) -> None:
        other = [place] * len(along)
        axis.plot(*((along, other) if across else (other, along)), *style, **more)

    # Two seeds' interval is so wide that nothing else would be seen.
    if len(values) > 2 and (ends := interval(values)):
        draw(ends, color="tab:blue", linewidth=2)
    draw(values, ".", color="gray")
    draw([statistics.mean(values)], "o", color="tab:blue")


def shares(curves: dict[str, dict[float, list[tuple[float, float]]]], path: Path) -> None:
    """STS and retrieval against the share of the trained weights: the mean over the seeds, and how far they lie apart.

    Args:
        curves: by title and share, (mean of STS, nDCG@10) of each seed.
        path: the file.
    """
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5))
    for axis, place, measured in zip(axes, (0, 1), ("mean of the STS tests", "retrieval, nDCG@10"), strict=True):
        for name, found in curves.items():
            values = {share: [pair[place] for pair in pairs] for share, pairs in found.items()}
            (line,) = axis.plot(list(values), [statistics.mean(own) for own in values.values()], "o-", label=name)
            ends = [(min(own), max(own)) for own in values.values()]
            axis.fill_between(list(values), *zip(*ends, strict=True), alpha=0.12, color=line.get_color())
        axis.set_title(measured, fontsize=9)
        axis.set_xlabel("share of the trained weights")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
