from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer

from st_contrastive.components import PairComposer

FAMILIES = ["bert", "roberta", "mpnet"]


@pytest.fixture
def tokenizer(checkpoint, request):
    return AutoTokenizer.from_pretrained(checkpoint(request.param))


def compose(tokenizer, first, second, **options):
    composer = PairComposer(tokenizer, **options)
    parts = []
    for texts in (first, second):
        single = tokenizer(texts, padding=True, return_tensors="pt")
        parts.append(composer.content(single["input_ids"], single["attention_mask"]))
    return composer(*parts)


def assert_same_pairs(found, expected):
    """Equal to the tokenizer's output; ours may be wider by padding alone."""
    width = expected["input_ids"].shape[1]
    assert expected["attention_mask"].sum() > 0
    assert set(found) == set(expected.keys())
    assert found["attention_mask"][:, width:].sum() == 0
    for key, value in expected.items():
        assert torch.equal(found[key][:, :width], value), key


@pytest.mark.parametrize("tokenizer", FAMILIES, indirect=True)
@pytest.mark.parametrize("max_length", [None, 30, 17, 12, 8, 7])
def test_equals_the_tokenizer(tokenizer, sentences, max_length):
    first, second = [*sentences, "", "rain"], [*reversed(sentences), "rain", ""]
    truncation = {} if max_length is None else {"truncation": "longest_first", "max_length": max_length}
    expected = tokenizer(first, second, padding=True, return_tensors="pt", **truncation)
    assert_same_pairs(compose(tokenizer, first, second, max_length=max_length), expected)


@pytest.mark.parametrize("tokenizer", FAMILIES, indirect=True)
def test_rows_that_are_equal_are_replaced(tokenizer):
    composer = PairComposer(tokenizer)

    def content(*texts):
        single = tokenizer(list(texts), padding=True, return_tensors="pt")
        return composer.content(single["input_ids"], single["attention_mask"])

    sentences, others = content("rain falls", "rain", "two dogs", ""), content("two", "dogs", "a small dog", "rain")
    result = content("rain falls", "rain falls", "dogs", "").unless_equal(sentences, others)
    expected = content("two", "rain falls", "dogs", "rain")
    assert result.lengths.tolist() == expected.lengths.tolist()
    rows = zip(result.ids.tolist(), expected.ids.tolist(), expected.lengths.tolist(), strict=True)
    assert all(ours[:length] == theirs[:length] for ours, theirs, length in rows)


@pytest.mark.parametrize(("types", "highest"), [(None, 1), (2, 1), (1, 0)])
def test_higher_token_types_become_the_encoders_last(checkpoint, types, highest):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("bert"))
    single = tokenizer(["rain", "a cat"], padding=True, return_tensors="pt")
    composer = PairComposer(tokenizer, types=types)
    content = composer.content(single["input_ids"], single["attention_mask"])
    assert composer(content, content)["token_type_ids"].max() == highest
