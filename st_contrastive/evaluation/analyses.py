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

#: Rows whose distances to all others are computed at a time.
_BLOCK = 512
#: Distances without the matrix product, which rounds more.
_EXACT = "donot_use_mm_for_euclid_dist"


def evaluate_in_domain_retrieval(
    model: Encoder, pairs: STSPairs, *, name: str = "model", task: str = "stsb", split: str = "test",
    batch_size: int = 64,
) -> Report:  # fmt: skip
    """Recall at 1, 5 and 10 of a sentence's partner among all sentences of the set.

    Section 6.2 of InfoCSE. The queries are the first sentences of the pairs with the highest gold score; the STS
    Benchmark's test split has 97. Each has to retrieve the second sentence of its pair. The query, copies of its text
    and further copies of the wanted sentence are not searched; the paper does not mention copies. Ties count against
    the model.
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
    """Alignment of pairs that mean the same, and uniformity of all sentences, as SimCSE measures them.

    Two sentences mean the same if their gold score is above four fifths of the highest one, which is SimCSE's 4 of 5.
    SimCSE uses the STS Benchmark's dev split.
    """
    # 0.8 in float32 is above 0.8.
    least, same = pairs.positives(0.8 * max(pairs.scores) + 1e-6)
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
    r"""Mean squared distance between two views of each item, (N, d) both; from 0 to 4, and smaller is closer.

    .. math:: \mathbb{E}\, \lVert f(x) - f(x^+) \rVert^2

    where f are unit vectors; eq. 1 of Wang and Isola (2020).

    Example:
        >>> round(alignment(torch.eye(2), torch.eye(2).flip(0)).item(), 4)  # the squared length of (1, -1)
        2.0
    """
    distances: Tensor = F.normalize(first, dim=-1) - F.normalize(second, dim=-1)
    return distances.square().sum(dim=1).mean()


def uniformity(vectors: Tensor) -> Tensor:
    r"""How evenly (N, d) embeddings are spread over the sphere; from -8 to 0, and smaller is more even.

    .. math:: \log\, \mathbb{E}_{x \ne y}\; e^{-2 \lVert f(x) - f(y) \rVert^2}

    over all pairs of different rows; eq. 2 of Wang and Isola (2020).

    Example:
        >>> round(uniformity(torch.eye(2)).item(), 4)  # log(e^(-2 * 2))
        -4.0
    """
    units, total = F.normalize(vectors, dim=-1), vectors.new_zeros(())
    for start in range(0, len(units), _BLOCK):  # rather than all N (N - 1) / 2 distances at once
        distances = torch.cdist(units[start : start + _BLOCK], units[start:], compute_mode=_EXACT)
        total = total + (-2 * distances.square()).exp().triu(1).sum()
    return (2 * total / (len(units) * (len(units) - 1))).log()


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
    r"""Mutual information, in nats, of twins and of the pairs of a task that mean the same.

    .. math:: MI(h, h^*) = \log N + \frac{1}{N} \sum_i \log \frac{e^{sim(h_i, h_i^*) / \tau}}
        {\sum_j e^{sim(h_i, h_j^*) / \tau}}

    Eq. 10 of the Twins paper. A value is at most log N, so compare only values with equal N. The metrics are the
    columns of the paper's Table 4:

    - "task-information": the two sentences of each pair with the highest gold score, 5.0 on the STS Benchmark.
    - "identical-information": h and h+, a sentence encoded with two dropout masks. A model without dropout has none.
    - "fraternal-information": h and h-, a sentence and its fusion with the translation. It needs ``loss``.

    Args:
        model: anything with ``encode``. The paper trains [CLS].
        pairs: the task's pairs; the paper uses the STS Benchmark.
        loss: the TwinsLoss of the model, which computes the fraternal twins.
        translated: sentences and their translations. The twins are computed from the first N, where N is the number of
            pairs. None takes the first sentences of the pairs, for identical twins only.
        temperature: tau. The paper does not give it; the default is SimCSE's.

    Raises:
        ValueError: there are fewer translations than pairs, or only one of ``loss`` and ``translated`` is not None.
    """
    least, same = pairs.positives()
    first, second = ([side[row] for row in same] for side in (pairs.first, pairs.second))
    columns = [first] if translated is None else [list(side[: len(same)]) for side in translated]
    if min(map(len, columns)) < len(same) or (loss is None) != (translated is None):
        raise ValueError(
            f"translated must have at least {len(same):,} sentences and translations, the number of the task's pairs, "
            "and loss computes fraternal twins from them: give both arguments or neither."
        )
    vectors = encode_texts(model, [*first, *second], batch_size=batch_size)
    sentences = torch.from_numpy(vectors)
    views = {"task-information": (sentences[: len(same)], sentences[len(same) :])}
    if isinstance(model, torch.nn.Module):
        anchor, *twins = dropout_views(model, columns, loss=loss, batch_size=batch_size)
        views |= {
            f"{kind}-information": (anchor, twin)
            for kind, twin in zip(("identical", "fraternal"), twins, strict=False)
            if not torch.equal(anchor, twin)  # they are equal without dropout
        }
    values = {}
    for metric, (rows, others) in views.items():
        values[metric] = (math.log(len(same)) - float(info_nce(rows, others, temperature=temperature)), len(same))
    settings = {"suite": "information", "temperature": temperature, "min_score": least}
    return _report(name, task, split, vectors, values, settings)


def dropout_views(model: Any, columns: Sequence[list[str]], *, loss: Any = None, batch_size: int = 64) -> list[Tensor]:
    """Embeddings with dropout (seed 0), (N, d) each: two of each sentence, or the three views of a TwinsLoss.

    The three are the anchor, the identical twin and the fraternal twin.
    """
    batches = []
    with _under_dropout(model), fixed_seed():
        for start in range(0, len(columns[0]), batch_size):
            texts = [column[start : start + batch_size] for column in columns]
            if loss is None:
                features = _features(model, texts[0])
                views = [model(dict(features))["sentence_embedding"] for _ in range(2)]
            elif loss.fraternal is None:
                views = loss.encode_views([_features(model, column) for column in texts])
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
    """Put the model into training mode, without gradients and without updates of running averages."""
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
    """The report of metrics, each with its value and its number of items."""
    scores = tuple(Score(task, split, metric, value, size) for metric, (value, size) in values.items())
    return Report(name, scores, settings, collapse_notes(f"{task} {split}", vectors))
