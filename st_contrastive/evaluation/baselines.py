"""Other ways to read the same encoder, as the papers' tables have beside the trained ones: no training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from st_contrastive.evaluation._encoding import Encoder, encoded


class _FirstAndLast(torch.nn.Module):
    """Pools the tokens of the lowest and of the last layer together."""

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        layers = features["all_layer_embeddings"]
        mask = features["attention_mask"][..., None].to(layers[-1].dtype)
        pooled = ((layers[1] + layers[-1]) / 2 * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)
        return {**features, "sentence_embedding": pooled}


class FirstLastAverage:
    """A SentenceTransformer's encoder, read as the mean of its first and last layers over all tokens.

    Called "first-last avg." in SimCSE's tables. The first layer is the lowest transformer layer, not the embeddings.
    The model's prompts and its ``truncate_dim`` hold here too.

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
            modules=[first, _FirstAndLast()],
            device=str(model.device),
            prompts=dict(model.prompts),
            default_prompt_name=model.default_prompt_name,
            truncate_dim=model.truncate_dim,
        )

    def encode(self, sentences: list[str], /, *, batch_size: int = 64, show_progress_bar: bool = False) -> Any:
        """(N, d) float32 array."""
        return self._with(self.reader.encode, sentences, batch_size, show_progress_bar)

    def encode_query(self, sentences: list[str], /, *, batch_size: int = 64, show_progress_bar: bool = False) -> Any:
        """The same under the model's prompt for queries, if it has one."""
        return self._with(self.reader.encode_query, sentences, batch_size, show_progress_bar)

    def encode_document(self, sentences: list[str], /, *, batch_size: int = 64, show_progress_bar: bool = False) -> Any:
        """The same under the model's prompt for documents, if it has one."""
        return self._with(self.reader.encode_document, sentences, batch_size, show_progress_bar)

    def _with(self, encode: Any, sentences: list[str], batch_size: int, progress: bool) -> Any:
        """The model's own encoder hands out all its layers for as long as this takes."""
        transformer: Any = self.reader[0]
        config = transformer.model.config
        before = config.output_hidden_states
        config.output_hidden_states = True
        try:
            return encode(sentences, batch_size=batch_size, show_progress_bar=progress)
        finally:
            config.output_hidden_states = before


class Whitened:
    """An encoder whose vectors are centred and scaled to the identity covariance: "whitening" in the papers' tables.

    Of Su et al. (2021): x becomes (x - mu) W with W = U diag(1 / sqrt(lambda)), from the eigenvectors of the
    covariance.

    Args:
        model: anything with ``encode``.
        sentences: unlabelled ones that mean and covariance are taken from, such as the sentences of the task.
        dimensions: keep that many of the largest; None keeps all.
        batch_size: of encoding the sentences.

    Raises:
        ValueError: there are too few sentences, or ``dimensions`` is none of the model's or more than the sentences
            differ in.
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
        # Directions in which the sentences do not differ tell nothing, and would be scaled beyond all.
        known = values > values[0] * 1e-10
        if dimensions is not None and dimensions > known.sum():
            raise ValueError(
                f"dimensions is {dimensions}, and the {len(different)} sentences differ in {known.sum()} directions "
                "alone: give more sentences, or fewer dimensions."
            )
        self.matrix = (directions[:, known] / np.sqrt(values[known]))[:, :dimensions]

    def encode(self, sentences: list[str], /, *, batch_size: int = 64, show_progress_bar: bool = False) -> Any:
        """(N, dimensions) array."""
        return self._encode(sentences, "", batch_size, show_progress_bar)

    def encode_query(self, sentences: list[str], /, *, batch_size: int = 64, show_progress_bar: bool = False) -> Any:
        """The same of queries, as the model encodes them."""
        return self._encode(sentences, "query", batch_size, show_progress_bar)

    def encode_document(self, sentences: list[str], /, *, batch_size: int = 64, show_progress_bar: bool = False) -> Any:
        """The same of documents, as the model encodes them."""
        return self._encode(sentences, "document", batch_size, show_progress_bar)

    def _encode(self, sentences: list[str], role: str, batch_size: int, progress: bool) -> Any:
        vectors = encoded(self.model, sentences, batch_size=batch_size, progress=progress, role=role)
        return ((vectors - self.mean) @ self.matrix).astype(np.float32)
