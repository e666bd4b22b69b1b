"""Retrieval among the sentences of a scored set, as InfoCSE measures it."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F

from st_contrastive.evaluation._encoding import Encoder, collapse_notes, encoded
from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.sts import STSPairs


def evaluate_in_domain_retrieval(
    model: Encoder,
    pairs: STSPairs,
    *,
    name: str = "model",
    task: str = "stsb",
    split: str = "test",
    min_score: float | None = None,
    batch_size: int = 64,
) -> Report:
    """Recall at 1, 5 and 10 among the set's own sentences: the first of two that mean the same must find the second.

    Section 6.2 of InfoCSE, with the 97 pairs of the STS Benchmark's test split of score 5. All sentences of the set are
    searched, except the query, copies of its text, and further copies of the wanted sentence (the paper says nothing of
    copies). Ties count against the model.

    Args:
        pairs: the set.
        min_score: lowest score of a pair that means the same; by default the highest of the set, InfoCSE's 5.

    Raises:
        ValueError: no pair has that score.
    """
    least, positive = pairs.positives(min_score)
    texts = np.asarray((*pairs.first, *pairs.second), dtype=object)
    vectors = encoded(model, list(texts), batch_size=batch_size)
    units = F.normalize(torch.from_numpy(vectors.astype(np.float64))).numpy()
    ranks = []
    for query in positive:
        wanted = query + len(pairs)
        cosines = units @ units[query]
        others = (texts != texts[query]) & (texts != texts[wanted])
        rank = 1.0 + (cosines[others] >= cosines[wanted]).sum()
        ranks.append(rank if np.isfinite(cosines[wanted]) else math.inf)
    scores = tuple(
        Score(task, split, f"recall@{cut}", float(np.mean([rank <= cut for rank in ranks])), len(ranks))
        for cut in (1, 5, 10)
    )
    settings = {"suite": "in-domain retrieval", "min_score": least, "sentences": len(texts)}
    return Report(name, scores, settings, collapse_notes(f"{task} {split}", vectors))
