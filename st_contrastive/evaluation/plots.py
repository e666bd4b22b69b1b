"""A picture of what models predict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from st_contrastive._checks import import_extra
from st_contrastive._files import complete_file
from st_contrastive.evaluation._encoding import Encoder
from st_contrastive.evaluation.sts import STSPairs, similarities


def plot(path: str | Path, models: Mapping[str, Encoder], pairs: STSPairs, *, batch_size: int = 64) -> None:
    """Draw each model's cosine similarities against the gold scores, as Fig. 4b of the Twins paper.

    Beside the pairs are the median of each fifth of the scale, and the line of a perfect prediction.

    Args:
        path: the picture file; its ending names the format.
        models: the models by name, such as one before and after training. Each gets a panel.

    Raises:
        ImportError: matplotlib is not installed.
    """
    matplotlib = import_extra("matplotlib.figure", "plots")
    gold = np.asarray(pairs.scores)
    low, width = gold.min(), np.ptp(gold) / 5
    bands = np.clip((gold - low) // width, 0, 4)
    filled = np.unique(bands)
    figure = matplotlib.Figure(figsize=(4 * len(models), 3.6), layout="constrained")
    axes = figure.subplots(1, len(models), squeeze=False)[0]
    for axis, (name, model) in zip(axes, models.items(), strict=True):
        cosines, _ = similarities(model, pairs, batch_size=batch_size)
        axis.scatter(gold, cosines, s=4, alpha=0.3)
        axis.plot([low, gold.max()], [0, 1], color="gray", label="gold score")
        medians = [np.median(cosines[bands == band]) for band in filled]
        axis.plot(low + (filled + 0.5) * width, medians, color="C1", marker="o", label="median")
        axis.set(title=name, xlabel="gold score", ylabel="cosine similarity")
        axis.legend(fontsize=7)
    with complete_file(Path(path)) as partial:
        figure.savefig(partial, dpi=120, format=Path(path).suffix.lstrip(".") or "png")
