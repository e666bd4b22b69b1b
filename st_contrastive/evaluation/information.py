"""Mutual information of twins and of a task's pairs: eq. 10 and Table 4 of the Twins paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from st_contrastive._arguments import Positive, checked
from st_contrastive._random import fixed_seed
from st_contrastive.evaluation._encoding import Encoder, collapse_notes, encoded
from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.sts import STSPairs
from st_contrastive.objectives import info_nce


@checked
def evaluate_information(
    model: Encoder,
    pairs: STSPairs,
    *,
    loss: Any = None,
    translated: tuple[Sequence[str], Sequence[str]] | None = None,
    temperature: Positive = 0.05,
    min_score: float | None = None,
    name: str = "model",
    task: str = "stsb",
    split: str = "dev",
    batch_size: int = 64,
) -> Report:
    r"""Mutual information of twins, and of the pairs of a task that mean the same, in nats.

    .. math:: MI(h, h^*) = \log N + \frac{1}{N} \sum_i \log \frac{e^{sim(h_i, h_i^*) / \tau}}
        {\sum_j e^{sim(h_i, h_j^*) / \tau}}

    Eq. 10 of the Twins paper, at most log N; compare only values of equal N. Metrics, the columns of its Table 4:

    - "task-information": the two sentences of each pair with the highest score.
    - "identical-information": h and h+, a sentence under two dropout masks. Only with dropout.
    - "fraternal-information": h and h-, a sentence fused with its translation. Only with ``loss``.

    Args:
        model: anything with ``encode``; its own embeddings are used. The paper trains [CLS].
        pairs: the task's pairs; the paper uses the STS Benchmark.
        loss: a TwinsLoss around the model, which makes the fraternal twins.
        translated: sentences and their translations; the first N make the twins, N the number of pairs. Without it the
            pairs' first sentences make the identical twins.
        temperature: tau. The paper states none; the default is SimCSE's.
        min_score: lowest score of a pair that means the same; by default the highest of the set, which is the paper's
            "highest similarity score 5.0" on the STS Benchmark.

    Raises:
        ValueError: no pair has the score, there are fewer translations than such pairs, or only one of ``loss`` and
            ``translated`` is given.
    """
    least, same = pairs.positives(min_score)
    first, second = ([side[row] for row in same] for side in (pairs.first, pairs.second))
    columns = [first] if translated is None else [list(side[: len(same)]) for side in translated]
    if min(map(len, columns)) < len(same) or (loss is None) != (translated is None):
        raise ValueError(
            f"translated must hold as many sentences and translations as the task has pairs, {len(same):,}, and loss "
            "makes fraternal twins of them: give both, or neither."
        )
    vectors = encoded(model, [*first, *second], batch_size=batch_size)
    own = torch.from_numpy(vectors)
    views = {"task-information": (own[: len(same)], own[len(same) :])}
    if isinstance(model, torch.nn.Module):
        anchor, *twins = dropout_views(model, columns, loss=loss, batch_size=batch_size)
        views |= {
            f"{kind}-information": (anchor, twin)
            for kind, twin in zip(("identical", "fraternal"), twins, strict=False)
            if not torch.equal(anchor, twin)  # equal without dropout
        }
    scores = []
    for metric, (rows, others) in views.items():
        value = math.log(len(same)) - float(info_nce(rows, others, temperature=temperature))
        scores.append(Score(task, split, metric, value, len(same)))
    settings = {"suite": "information", "temperature": temperature, "min_score": least}
    return Report(name, tuple(scores), settings, collapse_notes(f"{task} {split}", vectors))


def dropout_views(model: Any, columns: Sequence[list[str]], *, loss: Any = None, batch_size: int = 64) -> list[Tensor]:
    """Embeddings under the dropout of seed 0, (N, d) each: two, or a TwinsLoss's anchor, identical, fraternal twin."""
    batches = []
    with _under_dropout(model), fixed_seed():
        for start in range(0, len(columns[0]), batch_size):
            texts = [column[start : start + batch_size] for column in columns]
            if loss is None:
                features = _features(model, texts[0])
                views = [model(dict(features))["sentence_embedding"] for _ in range(2)]
            elif loss.fraternal is None:
                views = loss.encode_views([_features(model, own) for own in texts])
            else:
                labels = torch.from_numpy(loss.fraternal.encode_labels(texts[1])).to(model.device)
                views = loss.encode_views([_features(model, texts[0])], labels)
            batches.append([view.float().cpu() for view in views])
    return [torch.cat(parts) for parts in zip(*batches, strict=True)]


def _features(model: Any, texts: list[str]) -> dict[str, Any]:
    features = model.preprocess(texts)
    return {key: value.to(model.device) if isinstance(value, Tensor) else value for key, value in features.items()}


@contextmanager
def _under_dropout(model: torch.nn.Module) -> Iterator[None]:
    """While open, the model is in training mode, without gradients; running averages stay as they are."""
    modes = {module: module.training for module in model.modules()}
    try:
        for module in modes:
            module.training = not isinstance(module, _BatchNorm)
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
