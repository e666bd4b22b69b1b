"""Encoding: the order of vectors, equal texts, half precision."""

from __future__ import annotations

import numpy as np

from st_contrastive.evaluation.encoding import encode_texts
from st_contrastive.evaluation.transfer import TransferSplit, features
from tests.evaluation.encoders import Letters


class Half(Letters):
    """Vectors whose squares overflow in float16."""

    def encode(self, sentences, **options):
        return (300 * super().encode(sentences, **options)).astype(np.float16)


def test_each_text_is_encoded_once_and_in_its_place():
    assert encode_texts(Letters(), ["b", "a", "b"]).tolist() == [[0, 1, 0], [1, 0, 0], [0, 1, 0]]


def test_half_precision_is_widened():
    vectors = encode_texts(Half(), ["aab", "b"])
    assert vectors.dtype == np.float32
    assert (vectors @ vectors.T).tolist() == [[450_000, 90_000], [90_000, 90_000]]
    assert features(Half(), TransferSplit((("aa",), ("ab",)), ("0",))).tolist() == [[300, 300, 0, 180_000, 0, 0]]
