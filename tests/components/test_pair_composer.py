from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer

from st_contrastive.components import PairComposer

FAMILIES = ["bert", "roberta", "mpnet"]


@pytest.fixture
def tokenizer(checkpoint, request):
    return AutoTokenizer.from_pretrained(checkpoint(request.param))


def contents(tokenizer, composer, *columns):
    singles = [tokenizer(texts, padding=True, return_tensors="pt") for texts in columns]
    return [composer.content(single["input_ids"], single["attention_mask"]) for single in singles]


@pytest.mark.parametrize("tokenizer", FAMILIES, indirect=True)
@pytest.mark.parametrize("max_length", [None, 30, 17, 12, 8, 7])
def test_pairs_equal_the_tokenizers_output(tokenizer, sentences, max_length):
    first, second = [*sentences, "", "rain"], [*reversed(sentences), "rain", ""]
    truncation = {} if max_length is None else {"truncation": "longest_first", "max_length": max_length}
    expected = tokenizer(first, second, padding=True, return_tensors="pt", **truncation)
    composer = PairComposer(tokenizer, max_length=max_length)
    found, width = composer(*contents(tokenizer, composer, first, second)), expected["input_ids"].shape[1]
    assert set(found) == set(expected.keys())
    assert found["attention_mask"][:, width:].sum() == 0  # ours may have more padding
    for key, value in expected.items():
        assert torch.equal(found[key][:, :width], value), key


@pytest.mark.parametrize("tokenizer", FAMILIES, indirect=True)
def test_equal_rows_are_replaced(tokenizer):
    constructed, sentences, others, expected = contents(
        tokenizer,
        PairComposer(tokenizer),
        ["rain falls", "rain falls", "dogs", ""],
        ["rain falls", "rain", "two dogs", ""],
        ["two", "dogs", "a small dog", "rain"],
        ["two", "rain falls", "dogs", "rain"],
    )
    result = constructed.unless_equal(sentences, others)
    assert result.lengths.tolist() == expected.lengths.tolist()
    rows = zip(result.ids.tolist(), expected.ids.tolist(), expected.lengths.tolist(), strict=True)
    assert all(ours[:length] == theirs[:length] for ours, theirs, length in rows)


@pytest.mark.parametrize(("types", "highest"), [(None, 1), (2, 1), (1, 0)])
def test_unknown_token_types_become_the_encoders_last(checkpoint, types, highest):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("bert"))
    composer = PairComposer(tokenizer, types=types)
    (content,) = contents(tokenizer, composer, ["rain", "a cat"])
    assert composer(content, content)["token_type_ids"].max() == highest
