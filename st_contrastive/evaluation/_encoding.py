"""Turns texts into vectors with anything that has ``encode``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np


class Encoder(Protocol):
    """Anything with sentence-transformers' ``encode``."""

    def encode(self, sentences: list[str], /, *, batch_size: int, show_progress_bar: bool) -> Any:
        """(N, d) array of the N sentences."""


def encoded(
    model: Encoder, texts: Sequence[str], *, batch_size: int = 64, progress: bool = False, role: str = ""
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """(N, d) vectors of N texts. Equal texts are encoded once.

    Args:
        model: anything with ``encode``.
        texts: the texts.
        batch_size: of encoding.
        progress: show a bar.
        role: "query" or "document" calls the model's ``encode_query`` or ``encode_document`` if it has one, which
            puts its prompts before the texts.
    """
    different = list(dict.fromkeys(texts))
    encode = getattr(model, f"encode_{role}", model.encode) if role else model.encode
    vectors = np.asarray(encode(different, batch_size=batch_size, show_progress_bar=progress))
    if vectors.dtype == np.float16:  # products of which may overflow
        vectors = vectors.astype(np.float32)
    if len(different) == len(texts):
        return vectors
    place = {text: row for row, text in enumerate(different)}
    found: np.ndarray[Any, np.dtype[np.float32]] = vectors[[place[text] for text in texts]]
    return found


def unit(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The rows at length 1, in float64. Rows of zeros stay as they are."""
    rows = vectors.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths == 0, 1, lengths)
