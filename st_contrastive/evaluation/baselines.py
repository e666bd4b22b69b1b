"""Untrained readings of an encoder that the papers' tables compare with: first-last average and whitening."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from st_contrastive.evaluation._encoding import Encoder, encoded


class _Baseline(ABC):
    """Implements sentence-transformers' three encoding methods with one that takes the role of the texts."""

    @abstractmethod
    def _vectors(self, sentences: list[str], role: str, batch_size: int, progress: bool) -> Any:
        """(N, d) float32 array."""

    def encode(self, sentences: list[str], /, *, batch_size: int = 64, show_progress_bar: bool = False) -> Any:
        """(N, d) float32 array."""
        return self._vectors(sentences, "", batch_size, show_progress_bar)

    def encode_query(self, sentences: list[str], /, *, batch_size: int = 64, show_progress_bar: bool = False) -> Any:
        """The same for queries, under the model's prompt for them if it has one."""
        return self._vectors(sentences, "query", batch_size, show_progress_bar)

    def encode_document(self, sentences: list[str], /, *, batch_size: int = 64, show_progress_bar: bool = False) -> Any:
        """The same for documents, under the model's prompt for them if it has one."""
        return self._vectors(sentences, "document", batch_size, show_progress_bar)


class _FirstLastPooling(torch.nn.Module):
    """The mean over all tokens of the lowest and the last layer."""

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        layers = features["all_layer_embeddings"]
        mask = features["attention_mask"][..., None].to(layers[-1].dtype)
        pooled = ((layers[1] + layers[-1]) / 2 * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)
        return {**features, "sentence_embedding": pooled}


class FirstLastAverage(_Baseline):
    """A SentenceTransformer's encoder, read as the mean of its first and last layers over all tokens.

    SimCSE's tables call it "first-last avg.". The first layer is the lowest transformer layer, not the embeddings.
    The model's prompts, ``truncate_dim`` and ``similarity`` apply.

    Args:
        model: a SentenceTransformer that starts with a Transformer module.

    Raises:
        TypeError: it does not.
    """

    def __init__(self, model: Any) -> None:
        first = model[0]
        if not hasattr(first, "model") or not hasattr(first, "tokenizer"):
            raise TypeError(f"model must start with a Transformer module, got {type(first).__name__}.")
        self.reader = SentenceTransformer(
            modules=[first, _FirstLastPooling()],
            device=str(model.device),
            prompts=dict(model.prompts),
            default_prompt_name=model.default_prompt_name,
            truncate_dim=model.truncate_dim,
            similarity_fn_name=model.similarity_fn_name,
        )
        self.similarity = self.reader.similarity

    def _vectors(self, sentences: list[str], role: str, batch_size: int, progress: bool) -> Any:
        transformer: Any = self.reader[0]
        config = transformer.model.config  # the model's own, so that it is put back
        before = config.output_hidden_states
        config.output_hidden_states = True
        try:
            return encoded(self.reader, sentences, batch_size=batch_size, progress=progress, role=role)
        finally:
            config.output_hidden_states = before


class Whitened(_Baseline):
    """An encoder whose vectors are centred and scaled to the identity covariance: "whitening" in the papers' tables.

    Su et al. (2021): x becomes (x - mu) W with W = U diag(1 / sqrt(lambda)), from the eigenvectors of the covariance.

    Args:
        model: anything with ``encode``.
        sentences: unlabelled sentences, such as those of the task, from which mean and covariance are computed.
        dimensions: how many of the largest directions are kept; None keeps all.
        batch_size: of encoding the sentences.

    Raises:
        ValueError: there are too few sentences, or ``dimensions`` is more than the model has, or more than the
            sentences differ in.
    """

    def __init__(
        self, model: Encoder, sentences: Sequence[str], *, dimensions: int | None = None, batch_size: int = 64
    ) -> None:
        different = list(dict.fromkeys(sentences))
        if len(different) < 2:
            raise ValueError(f"sentences holds {len(different)} different one(s); whitening needs at least 2.")
        vectors = encoded(model, different, batch_size=batch_size).astype(np.float64)
        if dimensions is not None and not 1 <= dimensions <= vectors.shape[1]:
            raise ValueError(f"dimensions must be from 1 to {vectors.shape[1]}, the model's width, got {dimensions}.")
        self.model = model
        self.mean = vectors.mean(axis=0)
        directions, values, _ = np.linalg.svd(np.cov(vectors, rowvar=False))
        # The sentences do not differ in the other directions, which would be divided by nearly zero.
        known = values > values[0] * 1e-10
        if dimensions is not None and dimensions > known.sum():
            raise ValueError(
                f"dimensions is {dimensions}, but the {len(different)} sentences differ in {known.sum()} directions "
                "only: give more sentences, or fewer dimensions."
            )
        self.matrix = (directions[:, known] / np.sqrt(values[known]))[:, :dimensions]

    def _vectors(self, sentences: list[str], role: str, batch_size: int, progress: bool) -> Any:
        vectors = encoded(self.model, sentences, batch_size=batch_size, progress=progress, role=role)
        return ((vectors - self.mean) @ self.matrix).astype(np.float32)
