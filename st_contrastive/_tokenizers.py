"""Calls of the user's tokenizer that do not change it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedTokenizerBase


@contextmanager
def keep_settings(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Restore the tokenizer's truncation and padding at the end: transformers stores those of the last call in it."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)  # None in tokenizers that are written in Python
    truncation, padding = getattr(backend, "truncation", None), getattr(backend, "padding", None)
    try:
        yield
    finally:
        if backend is not None:
            backend.enable_truncation(**truncation) if truncation else backend.no_truncation()
            backend.enable_padding(**padding) if padding else backend.no_padding()
