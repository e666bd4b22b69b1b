"""Alignment and uniformity of a model's embeddings on scored pairs."""

from __future__ import annotations

import numpy as np
import torch

from st_contrastive.evaluation._data import EvaluationDataError
from st_contrastive.evaluation._encoding import Encoder, collapse_notes, encoded
from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.sts import STSPairs
from st_contrastive.objectives import alignment, uniformity


def evaluate_geometry(
    model: Encoder,
    pairs: STSPairs,
    *,
    name: str = "model",
    task: str = "stsb",
    split: str = "dev",
    above_score: float = 4.0,
    batch_size: int = 64,
) -> Report:
    """Alignment of the pairs that mean the same, and uniformity of all sentences, as SimCSE measures them.

    Args:
        pairs: the set; SimCSE uses the STS Benchmark's dev split.
        above_score: pairs with a higher gold score mean the same; 4 in SimCSE.

    Raises:
        EvaluationDataError: no pair has a higher score.
    """
    same = [row for row, score in enumerate(pairs.scores) if score > above_score]
    if not same:
        raise EvaluationDataError(f"No pair has a gold score above above_score={above_score}: scale them to 0 to 5.")
    sentences = list(dict.fromkeys((*pairs.first, *pairs.second)))
    array = encoded(model, sentences, batch_size=batch_size)
    vectors, rows = torch.from_numpy(array.astype(np.float64)), {text: row for row, text in enumerate(sentences)}
    first, second = (vectors[[rows[side[row]] for row in same]] for side in (pairs.first, pairs.second))
    scores = (
        Score(task, split, "alignment", float(alignment(first, second)), len(same)),
        Score(task, split, "uniformity", float(uniformity(vectors)), len(sentences)),
    )
    return Report(
        name, scores, {"suite": "geometry", "above_score": above_score}, collapse_notes(f"{task} {split}", array)
    )
