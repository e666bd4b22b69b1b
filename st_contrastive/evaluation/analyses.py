"""The papers' analyses of graded pairs: in-domain retrieval, alignment and uniformity, and mutual information."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from st_contrastive._arguments import Positive, checked
from st_contrastive._random import fixed_seed
from st_contrastive.evaluation.encoding import Encoder, collapse_notes, encode_texts
from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.sts import STSPairs
from st_contrastive.objectives import info_nce


def evaluate_in_domain_retrieval(
    model: Encoder, pairs: STSPairs, *, name: str = "model", task: str = "stsb", split: str = "test",
    batch_size: int = 64,
) -> Report:  # fmt: skip
    """Recall at 1, 5 and 10 among the set's own sentences: the first of two that mean the same must find the second.

    Section 6.2 of InfoCSE, with the pairs of the set's highest score, 97 on the STS Benchmark's test split. All
    sentences of the set are searched, except the query, copies of its text, and further copies of the wanted sentence
    (the paper says nothing of copies). Ties count against the model.
    """
    least, positive = pairs.positives()
    texts = np.asarray((*pairs.first, *pairs.second), dtype=object)
    vectors = encode_texts(model, list(texts), batch_size=batch_size)
    units = F.normalize(torch.from_numpy(vectors.astype(np.float64))).numpy()
    ranks = []
    for query in positive:
        wanted = query + len(pairs)
        cosines = units @ units[query]
        others = (texts != texts[query]) & (texts != texts[wanted])
        rank = 1.0 + (cosines[others] >= cosines[wanted]).sum()
        ranks.append(rank if np.isfinite(cosines[wanted]) else math.inf)
    recalls = {f"recall@{cut}": (float(np.mean([rank <= cut for rank in ranks])), len(ranks)) for cut in (1, 5, 10)}
    settings = {"suite": "in-domain retrieval", "min_score": least, "sentences": len(texts)}
    return _report(name, task, split, vectors, recalls, settings)


def evaluate_geometry(
    model: Encoder, pairs: STSPairs, *, name: str = "model", task: str = "stsb", split: str = "dev",
    batch_size: int = 64,
) -> Report:  # fmt: skip
    """Alignment of the pairs that mean the same, and uniformity of all sentences, as SimCSE measures them.

    A pair means the same above four fifths of the set's highest score, SimCSE's 4 of 5. SimCSE uses the STS Benchmark's
    dev split.
    """
    least, same = pairs.positives(0.8 * max(pairs.scores) + 1e-6)  # 0.8 in float32 is above 0.8
    sentences = list(dict.fromkeys((*pairs.first, *pairs.second)))
    array = encode_texts(model, sentences, batch_size=batch_size)
    vectors, rows = torch.from_numpy(array.astype(np.float64)), {text: row for row, text in enumerate(sentences)}
    first, second = (vectors[[rows[side[row]] for row in same]] for side in (pairs.first, pairs.second))
    values = {
        "alignment": (float(alignment(first, second)), len(same)),
        "uniformity": (float(uniformity(vectors)), len(sentences)),
    }
    return _report(name, task, split, array, values, {"suite": "geometry", "min_score": least})


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


@checked
def evaluate_information(
    model: Encoder,
    pairs: STSPairs,
    *,
    loss: Any = None,
    translated: tuple[Sequence[str], Sequence[str]] | None = None,
    temperature: Positive = 0.05,
    name: str = "model",
    task: str = "stsb",
    split: str = "dev",
    batch_size: int = 64,
) -> Report:
    r"""Mutual information of twins, and of the pairs of a task that mean the same, in nats.

    .. math:: MI(h, h^*) = \log N + \frac{1}{N} \sum_i \log \frac{e^{sim(h_i, h_i^*) / \tau}}
        {\sum_j e^{sim(h_i, h_j^*) / \tau}}

    Eq. 10 of the Twins paper, at most log N; compare only values of equal N. Metrics, the columns of its Table 4:

    - "task-information": the two sentences of each pair with the set's highest score, 5.0 on the STS Benchmark.
    - "identical-information": h and h+, a sentence under two dropout masks. Only with dropout.
    - "fraternal-information": h and h-, a sentence fused with its translation. Only with ``loss``.

    Args:
        model: anything with ``encode``; its own embeddings are used. The paper trains [CLS].
        pairs: the task's pairs; the paper uses the STS Benchmark.
        loss: a TwinsLoss around the model, which makes the fraternal twins.
        translated: sentences and their translations; the first N make the twins, N the number of pairs. Without it the
            pairs' first sentences make the identical twins.
        temperature: tau. The paper states none; the default is SimCSE's.

    Raises:
        ValueError: there are fewer translations than pairs, or only one of ``loss`` and ``translated`` is given.
    """
    least, same = pairs.positives()
    first, second = ([side[row] for row in same] for side in (pairs.first, pairs.second))
    columns = [first] if translated is None else [list(side[: len(same)]) for side in translated]
    if min(map(len, columns)) < len(same) or (loss is None) != (translated is None):
        raise ValueError(
            f"translated must hold as many sentences and translations as the task has pairs, {len(same):,}, and loss "
            "makes fraternal twins of them: give both, or neither."
        )
    vectors = encode_texts(model, [*first, *second], batch_size=batch_size)
    own = torch.from_numpy(vectors)
    views = {"task-information": (own[: len(same)], own[len(same) :])}
    if isinstance(model, torch.nn.Module):
        anchor, *twins = dropout_views(model, columns, loss=loss, batch_size=batch_size)
        views |= {
            f"{kind}-information": (anchor, twin)
            for kind, twin in zip(("identical", "fraternal"), twins, strict=False)
            if not torch.equal(anchor, twin)  # equal without dropout
        }
    values = {}
    for metric, (rows, others) in views.items():
        values[metric] = (math.log(len(same)) - float(info_nce(rows, others, temperature=temperature)), len(same))
    settings = {"suite": "information", "temperature": temperature, "min_score": least}
    return _report(name, task, split, vectors, values, settings)


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


def _report(
    name: str, task: str, split: str, vectors: NDArray[Any], values: Mapping[str, tuple[float, int]], settings: Any
) -> Report:
    """The report of each metric's value and number of items."""
    scores = tuple(Score(task, split, metric, value, size) for metric, (value, size) in values.items())
    return Report(name, scores, settings, collapse_notes(f"{task} {split}", vectors))
