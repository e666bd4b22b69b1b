"""Alignment and uniformity of a model's embeddings on graded pairs."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from st_contrastive.evaluation._encoding import Encoder, collapse_notes, encoded
from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.sts import STSPairs


def alignment(first: Tensor, second: Tensor) -> Tensor:
    r"""Mean squared distance of two views of the same item, (N, d) each; smaller is closer, from 0 to 4.

    .. math:: \mathbb{E}\, \lVert f(x) - f(x^+) \rVert^2

    with unit vectors f; eq. 1 of Wang and Isola (2020).

    Example:
        >>> round(alignment(torch.eye(2), torch.eye(2).flip(0)).item(), 4)  # the squared distance of right angles
        2.0
    """
    distances: Tensor = F.normalize(first, dim=-1) - F.normalize(second, dim=-1)
    return distances.square().sum(dim=1).mean()


def uniformity(vectors: Tensor) -> Tensor:
    r"""How evenly embeddings, (N, d), are spread over the sphere; smaller is more even, from -8 to 0.

    .. math:: \log\, \mathbb{E}_{x \ne y}\; e^{-2 \lVert f(x) - f(y) \rVert^2}

    over all pairs of distinct rows, whose N (N - 1) / 2 distances are held at once; eq. 2 of Wang and Isola (2020).

    Example:
        >>> round(uniformity(torch.eye(2)).item(), 4)  # log(e^(-2 * 2))
        -4.0
    """
    distances = F.pdist(F.normalize(vectors, dim=-1))
    return (-2 * distances.square()).exp().mean().log()


def evaluate_geometry(
    model: Encoder,
    pairs: STSPairs,
    *,
    name: str = "model",
    task: str = "stsb",
    split: str = "dev",
    min_score: float | None = None,
    batch_size: int = 64,
) -> Report:
    """Alignment of the pairs that mean the same, and uniformity of all sentences, as SimCSE measures them.

    Args:
        pairs: the set; SimCSE uses the STS Benchmark's dev split.
        min_score: lowest score of a pair that means the same; by default what is above four fifths of the highest,
            SimCSE's 4 of 5.

    Raises:
        ValueError: no pair has that score.
    """
    above = 0.8 * max(pairs.scores) + 1e-6  # 0.8 in float32 is above 0.8
    least, same = pairs.positives(above if min_score is None else min_score)
    sentences = list(dict.fromkeys((*pairs.first, *pairs.second)))
    array = encoded(model, sentences, batch_size=batch_size)
    vectors, rows = torch.from_numpy(array.astype(np.float64)), {text: row for row, text in enumerate(sentences)}
    first, second = (vectors[[rows[side[row]] for row in same]] for side in (pairs.first, pairs.second))
    scores = (
        Score(task, split, "alignment", float(alignment(first, second)), len(same)),
        Score(task, split, "uniformity", float(uniformity(vectors)), len(sentences)),
    )
    settings = {"suite": "geometry", "min_score": least}
    return Report(name, scores, settings, collapse_notes(f"{task} {split}", array))
