"""Titles beside their own bodies and beside others'."""

from __future__ import annotations

import random

import pytest
import torch

from st_contrastive.evaluation import title_agreement


class Words:
    """Texts as counts of their words, of a small vocabulary."""

    words = "cat dog rain man book garden sun bread milk train".split()

    def encode_query(self, texts, **_):
        return torch.tensor([[float(text.split().count(word)) for word in self.words] for text in texts])

    encode_document = encode_query

    def similarity_pairwise(self, first, second):
        return torch.cosine_similarity(first, second)


def table(count, right):
    """Titles of one word and bodies of three; so many of the titles are in their bodies."""
    draw = random.Random(0)
    rows = []
    for index in range(count):
        own, *others = draw.sample(Words.words, 5)
        rows.append((own if index < right * count else others[3], f"{own} {others[0]} {others[1]} {index}"))
    return rows


@pytest.mark.parametrize(("right", "decision"), [(1.0, "good"), (0.6, "weak"), (0.0, "equal")])
def test_the_decision(right, decision):
    agreement = title_agreement(Words(), table(500, right))
    assert agreement.decision == decision
    assert agreement.low <= agreement.closer_share <= agreement.high
    assert (agreement.same_row_similarity > agreement.other_row_similarity) == (right > 0)


def test_by_hand():
    """A tie is half; a body that is repeated counts once, with its last title."""
    agreement = title_agreement(Words(), [("cat", "cat dog"), ("rain", "rain"), ("man", "rain")])
    assert (agreement.pairs, agreement.closer_share) == (2, 0.75)
    agreement = title_agreement(Words(), [("cat", "cat dog"), ("rain", "rain"), ("rain", "rain")])
    assert (agreement.pairs, agreement.closer_share, agreement.other_row_similarity) == (2, 1.0, 0.0)
    assert agreement.same_row_similarity == pytest.approx((1 + 2**-0.5) / 2)


def test_a_single_body_is_refused():
    with pytest.raises(ValueError, match="two different bodies"):
        title_agreement(Words(), [("cat", "cat"), ("dog", "cat")])
