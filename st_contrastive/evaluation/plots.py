"""Pictures: predicted similarity against gold score, and the scores of a run by step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from st_contrastive._checks import import_extra
from st_contrastive._files import complete_file
from st_contrastive.evaluation.encoding import Encoder
from st_contrastive.evaluation.sts import STSPairs, similarities, spearman

#: Formats of pictures, by the ending of the file's name.
FORMATS = (".png", ".pdf", ".svg")
#: The scale of gold scores is cut into this many bands of equal width for the medians.
_BANDS = 5


def plot_similarities(
    path: str | Path, models: Mapping[str, Encoder | NDArray[Any]], pairs: STSPairs, *, batch_size: int = 64
) -> Any:
    """Draw each model's cosine similarities against the gold scores, as Fig. 4b of the Twins paper does.

    Each model has a panel with one point for each pair, the median similarity of each fifth of the gold scale, and the
    ideal line, from 0 at the lowest gold score to 1 at the highest. Its title has the Spearman correlation.

    Args:
        path: the picture file, .png, .pdf or .svg.
        models: encoders by the title of their panel, such as one before and one after training. In place of an
            encoder, an array holds its (N,) cosine similarities of the N pairs.
        pairs: graded pairs, such as ``read_sts("stsb/test.jsonl.gz")``.

    Returns:
        matplotlib's Figure.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is no model, or ``path`` has another ending.
    """
    if not models:
        raise ValueError("models is empty: give one or more encoders, by name.")
    figure, panels = _figure(path, len(models), sharey=True)
    gold = np.asarray(pairs.scores)
    low, width = gold.min(), np.ptp(gold) / _BANDS
    bands = np.clip((gold - low) // width, 0, _BANDS - 1)
    filled = np.unique(bands)
    for panel, (name, model) in zip(panels, models.items(), strict=True):
        cosines: NDArray[Any] = (
            model if isinstance(model, np.ndarray) else similarities(model, pairs, batch_size=batch_size)[0]
        )
        panel.scatter(gold, cosines, s=4, alpha=0.3, label="pairs")
        panel.plot([low, gold.max()], [0, 1], color="gray", label="ideal")
        medians = [np.median(cosines[bands == band]) for band in filled]
        panel.plot(low + (filled + 0.5) * width, medians, color="C1", marker="o", label="median")
        panel.set(title=f"{name}: Spearman {100 * spearman(cosines, pairs):.2f}", xlabel="gold score")
    panels[0].set_ylabel("cosine similarity")
    panels[0].legend(fontsize=7)
    _save(figure, path)
    return figure


def plot_training(path: str | Path, runs: Mapping[str, str | Path]) -> Any:
    """Draw the evaluation scores of training runs by step, and the training loss below them.

    Args:
        path: the picture file, .png, .pdf or .svg.
        runs: the output folder of each run, by the label of its curve. The folder or one of its checkpoints must hold
            the Trainer's ``trainer_state.json``.

    Returns:
        matplotlib's Figure.

    Raises:
        ImportError: matplotlib is not installed.
        FileNotFoundError: a folder holds no ``trainer_state.json``.
        ValueError: no run has logged a score or a loss, or ``path`` has another ending.
    """
    curves = [
        (metric, name, steps, values)
        for name, folder in runs.items()
        for metric, (steps, values) in read_curves(folder).items()
    ]
    if not curves:
        raise ValueError(f"{', '.join(map(str, runs.values()))}: no score or loss was logged during training.")
    metrics = [*dict.fromkeys(metric for metric, *_ in curves)]
    metrics = sorted(metrics, key=lambda metric: metric == "loss")
    figure, panels = _figure(path, len(metrics), is_stacked=True, sharex=True)
    for panel, metric in zip(panels, metrics, strict=True):
        panel.set_ylabel(metric)
        for drawn, name, steps, values in curves:
            if drawn == metric:
                panel.plot(steps, values, marker="." if len(steps) < 50 else "", label=name)
    panels[-1].set_xlabel("step")
    panels[0].legend(fontsize=7)
    _save(figure, path)
    return figure


def read_curves(folder: str | Path) -> dict[str, tuple[list[int], list[float]]]:
    """The steps and values of each metric that a run has logged, from the ``trainer_state.json`` in its folder.

    Metrics are the evaluation scores, without the prefix "eval_", and "loss".
    """
    checkpoints = [path for path in Path(folder).glob("checkpoint-*") if path.name[11:].isdecimal()]
    newest = sorted(checkpoints, key=lambda path: int(path.name[11:]), reverse=True)
    files = [place / "trainer_state.json" for place in (Path(folder), *newest)]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise FileNotFoundError(f"{folder} holds no trainer_state.json: name the output folder of a training run.")
    curves: dict[str, tuple[list[int], list[float]]] = {}
    for entry in json.loads(file.read_text(encoding="utf-8"))["log_history"]:
        for name, value in entry.items():
            if name == "loss" or (name.startswith("eval_") and not name.endswith(_TIMES)):
                metric = name if name == "eval_loss" else name.removeprefix("eval_")
                steps, values = curves.setdefault(metric, ([], []))
                steps.append(int(entry["step"]))
                values.append(float(value))
    return curves


#: Endings of what the Trainer logs about the speed of an evaluation.
_TIMES = ("runtime", "per_second")


def require_plotting(path: str | Path) -> Any:
    """Require that matplotlib is installed and that the picture's name has an ending that we write.

    Returns:
        the module ``matplotlib.figure``.
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise ValueError(f"path {path} must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")
    return import_extra("matplotlib.figure", "plots")


def _figure(path: str | Path, panels: int, *, is_stacked: bool = False, **options: Any) -> tuple[Any, Sequence[Any]]:
    size = (6.4, 2.4 * panels + 0.4) if is_stacked else (4 * panels, 3.6)
    figure = require_plotting(path).Figure(figsize=size, layout="constrained")
    rows, columns = (panels, 1) if is_stacked else (1, panels)
    return figure, figure.subplots(rows, columns, squeeze=False, **options).flatten()


def _save(figure: Any, path: str | Path) -> None:
    with complete_file(Path(path)) as partial:
        figure.savefig(partial, dpi=120, format=Path(path).suffix[1:].lower())
