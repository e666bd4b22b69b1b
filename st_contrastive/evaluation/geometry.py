"""The geometry of a model's embeddings on scored pairs: alignment, uniformity, information, cosine by gold score."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from st_contrastive._checks import require_count
from st_contrastive._random import fixed_draws
from st_contrastive.evaluation._data_files import EvaluationDataError
from st_contrastive.evaluation._encoding import Encoder, encoded
from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.sts import STSPairs, similarities
from st_contrastive.evaluation.twins import dropout_views, has_dropout_views
from st_contrastive.objectives import alignment, mutual_information, uniformity


def evaluate_geometry(
    model: Encoder,
    pairs: STSPairs,
    *,
    name: str = "model",
    task: str = "stsb",
    split: str = "dev",
    above_score: float = 4.0,
    batch_size: int = 64,
    progress: bool = False,
) -> Report:
    """Alignment and mutual information of the pairs that mean the same, and uniformity of all sentences.

    For a SentenceTransformer also the mutual information of the pairs' first sentences under two dropout masks
    ("twins-information"), which the Twins paper compares with it (eq. 10);
    :func:`~st_contrastive.evaluation.twins_information` computes that of fraternal twins. All use the model's own
    embeddings. The paper's h is the [CLS] vector that it trains: for that, give a model whose Pooling is "cls", which
    is ``st-contrastive evaluate --pooling cls``.

    Args:
        model: anything with ``encode``.
        pairs: the set; SimCSE uses the STS Benchmark.
        name: the model's name in the report.
        task: name of the set.
        split: the split that the pairs are from.
        above_score: pairs with a higher gold score mean the same; 4 in SimCSE.
        batch_size: of encoding.
        progress: show a bar over the batches.

    Raises:
        EvaluationDataError: no pair has a higher score.
    """
    same = [row for row, score in enumerate(pairs.scores) if score > above_score]
    if not same:
        raise EvaluationDataError(
            f"No pair has a gold score above {above_score}: scale the scores to 0 to 5, or, in Python, lower "
            "above_score."
        )
    sentences = list(dict.fromkeys((*pairs.first, *pairs.second)))
    vectors = torch.from_numpy(encoded(model, sentences, batch_size=batch_size, progress=progress).astype(np.float64))
    place = {sentence: row for row, sentence in enumerate(sentences)}
    first, second = (vectors[[place[side[row]] for row in same]] for side in (pairs.first, pairs.second))
    found = {
        "alignment": (alignment(first, second), len(same)),
        "uniformity": (uniformity(vectors), len(sentences)),
        "information": (mutual_information(first, second), len(same)),
    }
    if has_dropout_views(model):
        with fixed_draws(model.device):
            views = dropout_views(model, [pairs.first[row] for row in same], batch_size=batch_size)
        if not torch.equal(*views):  # equal if the model has no dropout
            found["twins-information"] = (mutual_information(*views), len(same))
    scores = tuple(Score(task, split, metric, float(value), size) for metric, (value, size) in found.items())
    return Report(name, scores, {"suite": "geometry", "above_score": above_score})


@dataclass(frozen=True)
class SimilarityByScore:
    """Cosine similarities of the pairs in each band of gold scores, the lowest band first (Twins, Fig. 4b)."""

    bands: tuple[tuple[float, float], ...]
    similarities: tuple[tuple[float, ...], ...]

    @property
    def medians(self) -> tuple[float, ...]:
        """Median similarity of each band; NaN for a band without pairs."""
        return tuple(float(np.median(own)) if own else float("nan") for own in self.similarities)


def similarity_by_score(model: Encoder, pairs: STSPairs, *, bands: int = 5, batch_size: int = 64) -> SimilarityByScore:
    """Cosine similarities by gold score, in bands of equal width from the lowest score to the highest.

    Raises:
        ValueError: ``bands`` is less than 1.
    """
    require_count("bands", bands)
    gold = np.asarray(pairs.scores)
    found = similarities(model, pairs, batch_size=batch_size)
    edges = np.linspace(gold.min(), gold.max(), bands + 1)
    band = np.clip(np.searchsorted(edges, gold, side="right") - 1, 0, bands - 1)
    return SimilarityByScore(
        tuple(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)),
        tuple(tuple(found[band == number].tolist()) for number in range(bands)),
    )


def plot_similarity_by_score(found: dict[str, SimilarityByScore], path: str | Path) -> None:
    """Draw the bands of several models, by name, side by side into a picture file, with the median of each band."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(found), figsize=(3.4 * len(found), 3.2), sharey=True, squeeze=False)
    for axis, (name, own) in zip(axes[0], found.items(), strict=True):
        filled = [(f"{low:g} to {high:g}", part) for (low, high), part in zip(own.bands, own.similarities, strict=True)]
        filled = [(label, part) for label, part in filled if part]
        axis.violinplot([part for _, part in filled], showmedians=True)
        axis.set_xticks(range(1, len(filled) + 1), [label for label, _ in filled], fontsize=7)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("gold score")
    axes[0][0].set_ylabel("cosine similarity")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
