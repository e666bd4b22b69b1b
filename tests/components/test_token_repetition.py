"""ESimCSE's repetition of tokens against a slow loop, and what it keeps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from st_contrastive.components import TokenRepetition
from st_contrastive.encoder.rows import Rows


def rows_of(lengths, width=None, **constants):
    """Texts whose tokens are all different, 1, 2, ... in each; token types tell the halves apart; padding is 0."""
    ids = torch.zeros(len(lengths), width or max(lengths), dtype=torch.long)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = torch.arange(1, length + 1)
    texts = {"input_ids": ids, "attention_mask": (ids > 0).long(), "token_type_ids": (ids > 3).long()}
    return Rows(texts, {"year": list(range(len(lengths)))}, constants)


def slow(ids, repeated):
    """One row, with the tokens at the places ``repeated`` twice."""
    found = []
    for place, token in enumerate(ids):
        found += [token] * (2 if place in repeated else 1)
    return found


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.sampled_from([0.1, 0.32, 0.5, 1.0]),
       st.sampled_from([None, 40, 44]), st.sampled_from([0, 1, 4]), st.integers(0, 10**6))  # fmt: skip
def test_tokens_are_repeated_in_place_and_nothing_is_lost(lengths, rate, max_length, prompt, seed):
    torch.manual_seed(seed)
    rows = rows_of(lengths, prompt_length=prompt)
    longer = TokenRepetition(rate, max_length)(rows)
    # A prompt is what all texts begin with.
    prompt = min(prompt, *lengths) if len(lengths) > 1 else min(prompt, rows.width)
    assert (longer.per_row, longer.constants) == (rows.per_row, rows.constants)
    assert {key: part.shape for key, part in longer.texts.items()} == dict.fromkeys(rows.texts, longer.ids.shape)
    assert rows.width <= longer.width <= rows.width + max(0, min(10, int(rate * rows.width)) - 1)
    for row, length in enumerate(lengths):
        size = int(longer.mask[row].sum())
        assert longer.mask[row].tolist() == [1] * size + [0] * (longer.width - size)
        tokens = longer.ids[row, :size].tolist()
        repeated = {token - 1 for token in tokens if tokens.count(token) == 2}
        assert tokens == slow(rows.ids[row, :length].tolist(), repeated)
        assert len(repeated) == size - length <= max(0, min(10, int(rate * length)) - 1)
        assert max_length is None or size <= max(max_length, length)
        assert not repeated & {0, length - 1, *range(prompt)}
        assert longer.texts["token_type_ids"][row, :size].tolist() == [int(token > 3) for token in tokens]


def test_each_number_and_each_place_is_as_likely():
    """Of a text of 20 tokens 0 to 5 are repeated at a rate of 0.32, 6 or more never; each of the 18 in the middle."""
    count = 6000
    longer = TokenRepetition(0.32)(rows_of([20] * count))
    assert longer.width == 25
    sizes = torch.bincount(longer.mask.sum(dim=1) - 20, minlength=6) / count
    assert sizes.tolist() == pytest.approx([1 / 6] * 6, abs=0.02)
    tokens = torch.bincount(longer.ids[longer.mask.bool()], minlength=21)[1:] / count - 1
    assert tokens.tolist() == pytest.approx([0.0, *[2.5 / 18] * 18, 0.0], abs=0.02)
    most = TokenRepetition(1.0)(rows_of([200] * 400))
    assert set((most.mask.sum(dim=1) - 200).tolist()) == set(range(10))


def test_the_rows_of_a_batch_are_drawn_apart_and_its_padding_counts_for_nothing():
    rows = rows_of([30] * 8, width=50)
    longer = TokenRepetition(0.5)(rows)
    assert len({tuple(row) for row in longer.ids.tolist()}) > 4
    assert int(longer.mask.sum(dim=1).max()) <= 39
    short = TokenRepetition(0.32)(rows_of([1, 2, 3, 6], width=9))  # too short for one of them
    assert torch.equal(short.ids * short.mask, rows_of([1, 2, 3, 6], width=short.width).ids)


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_model_reads_what_it_makes(build, sentences, family):
    model = build(family, dropout=False)
    rows = Rows.of(model.preprocess(sentences, prompt="the red "), aligned=True)
    longer = TokenRepetition(0.5, 64)(rows)
    assert longer.width > rows.width
    assert torch.equal(longer.ids[:, : rows.prompt_length], rows.ids[:, : rows.prompt_length])
    specials = torch.tensor(model.tokenizer.all_special_ids)
    counts = [int(torch.isin(part.ids[part.mask.bool()], specials).sum()) for part in (rows, longer)]
    assert counts[0] == counts[1] == 2 * len(sentences)
    assert model(longer.features())["sentence_embedding"].isfinite().all()
