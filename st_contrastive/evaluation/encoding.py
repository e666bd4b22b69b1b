"""Encode texts with anything that has ``encode``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class Encoder(Protocol):
    """Anything that has ``encode`` as sentence-transformers' models do."""

    def encode(self, sentences: list[str], /, *, batch_size: int, show_progress_bar: bool) -> Any:
        """(N, d) vectors of N sentences."""


def encode_texts(model: Encoder, texts: Sequence[str], *, batch_size: int = 64) -> NDArray[Any]:
    """(N, d) vectors of N texts, in float32 or a wider type. Equal texts are encoded once."""
    unique, rows = np.unique(np.asarray(texts, dtype=object), return_inverse=True)
    vectors: NDArray[Any] = np.asarray(model.encode(unique.tolist(), batch_size=batch_size, show_progress_bar=False))
    if vectors.dtype == np.float16:  # their products may overflow
        vectors = vectors.astype(np.float32)
    return vectors[rows]


def collapse_notes(task: str, vectors: NDArray[Any]) -> tuple[str, ...]:
    """Notes on vectors whose scores mean nothing, because they are not finite or all equal; empty for other vectors."""
    if not np.isfinite(vectors).all():
        return (f"{task}: the model's vectors are not finite (NaN or infinity), so its scores mean nothing.",)
    if len(vectors) > 1 and np.allclose(vectors, vectors[:1], rtol=1e-5, atol=1e-7):
        return (f"{task}: the model encodes all texts as the same vector, so its scores mean nothing.",)
    return ()
