"""Encoders with known vectors, and a function that writes rows to a file."""

from __future__ import annotations

import gzip
import json

import numpy as np
import torch


class Letters:
    """Encodes a text as the counts of its letters."""

    def __init__(self, letters="abc"):
        self.letters = letters

    def encode(self, sentences, *, batch_size, show_progress_bar):
        assert len(set(sentences)) == len(sentences)  # each text once
        return np.array([[text.count(letter) for letter in self.letters] for text in sentences], dtype=np.float32)


class Constant:
    """Encodes all texts as one vector."""

    def __init__(self, value):
        self.value = value

    def encode(self, sentences, **_):
        return np.full((len(sentences), 3), self.value, dtype=np.float32)


class Same:
    """One vector for all texts, as a SentenceTransformer returns them."""

    model_card_data = None

    def encode_query(self, texts, **_):
        return torch.ones(len(texts), 3)

    encode_document = encode_query

    def similarity(self, queries, answers):
        return queries @ answers.T


def write(path, rows):
    """Write rows to a .jsonl or .jsonl.gz file, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path
