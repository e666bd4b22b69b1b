"""A picture of what models predict, and of how runs went."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from st_contrastive._files import complete_file
from st_contrastive.evaluation._data import EvaluationDataError
from st_contrastive.evaluation._encoding import Encoder
from st_contrastive.evaluation.sts import STSPairs, similarities

#: What transformers logs that is neither a term of the loss nor a score.
_NOT_TERMS = ("epoch", "step", "learning_rate", "grad_norm", "total_flos", "num_tokens")


def read_curves(folder: str | Path) -> dict[str, list[tuple[int, float]]]:
    """What a run logged, by name: (step, value) of the loss, its terms, and the scores of evaluations.

    Args:
        folder: a checkpoint, or the folder of a run, of which the newest checkpoint is read.

    Raises:
        EvaluationDataError: a ``trainer_state.json`` can't be read. Without one, there are no curves.
    """
    root = Path(folder)
    checkpoints = sorted(root.glob("checkpoint-*/trainer_state.json"), key=lambda path: path.stat().st_mtime)
    path = root / "trainer_state.json" if (root / "trainer_state.json").is_file() else next(reversed(checkpoints), None)
    if path is None:
        return {}
    try:
        log = json.loads(path.read_text(encoding="utf-8"))["log_history"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvaluationDataError(f"{path} is not a Trainer's state ({type(error).__name__}: {error}).") from error
    curves: dict[str, list[tuple[int, float]]] = {}
    for entry in log:
        for key, value in entry.items():
            timing = key.endswith(("_runtime", "_per_second")) or key.startswith("train_")
            if not timing and key not in _NOT_TERMS and isinstance(value, (int, float)):
                curves.setdefault(key, []).append((entry["step"], value))
    return curves


def plot(
    path: str | Path,
    models: Mapping[str, Encoder],
    pairs: STSPairs | None,
    curves: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]],
) -> None:
    """Draw a picture file: one panel per model, and one or two per run.

    A model's panel has its cosine similarities against the gold scores, with the median of each fifth of the scale and
    the line of a perfect prediction, as Fig. 4b of the Twins paper. A run's have its losses and its scores by step.

    Args:
        path: the file; its ending names the format.
        models: the models by name, such as one before and after training.
        pairs: scored pairs; None leaves the models' panels out.
        curves: what :func:`read_curves` returns, by the run's name.

    Raises:
        ImportError: matplotlib is not installed.
        EvaluationDataError: there is nothing to draw.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("A plot needs matplotlib: install st_contrastive with its extra 'plots'.") from error
    panels = []
    for name, own in curves.items():
        scores = {key for key in own if key.endswith(("spearman", "ndcg@10"))}
        losses = {key for key in own if "loss" in key or not key.startswith("eval_")} - scores
        kinds = {f"{name}: loss": losses, f"{name}: evaluation": scores}
        panels += [(title, {key: own[key] for key in own if key in keys}) for title, keys in kinds.items() if keys]
    count = len(panels) + (len(models) if pairs is not None else 0)
    if count == 0:
        raise EvaluationDataError("There is nothing to draw: give scored pairs, or a run with a trainer_state.json.")
    figure = Figure(figsize=(4 * count, 3.6), layout="constrained")
    axes = iter(figure.subplots(1, count, squeeze=False)[0])
    if pairs is not None:
        for name, model in models.items():
            _draw_similarities(next(axes), name, model, pairs)
    for title, lines in panels:
        axis = next(axes)
        for key, points in lines.items():
            axis.plot(*zip(*points, strict=True), label=key, marker="." if len(points) < 30 else "")
        axis.set(title=title, xlabel="step")
        axis.legend(fontsize=7)
    with complete_file(Path(path)) as partial:
        figure.savefig(partial, dpi=120, format=Path(path).suffix.lstrip(".") or "png")


def _draw_similarities(axis: Any, name: str, model: Encoder, pairs: STSPairs) -> None:
    cosines, _ = similarities(model, pairs)
    gold = np.asarray(pairs.scores)
    low, width = gold.min(), np.ptp(gold) / 5
    bands = np.clip((gold - low) // width, 0, 4)
    filled = np.unique(bands)
    axis.scatter(gold, cosines, s=4, alpha=0.3)
    axis.plot([low, gold.max()], [0, 1], color="gray", label="gold score")
    medians = [np.median(cosines[bands == band]) for band in filled]
    axis.plot(low + (filled + 0.5) * width, medians, color="C1", marker="o", label="median")
    axis.set(title=name, xlabel="gold score", ylabel="cosine similarity")
    axis.legend(fontsize=7)
