"""Mixtures of trained and untrained weights, by hand values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from st_contrastive.training import interpolate_weights


class Model(nn.Module):
    def __init__(self, weight, mask, count):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.register_buffer("mask", torch.tensor(mask))
        self.register_buffer("count", torch.tensor(count))


def models():
    return Model([4.0, -2.0], [-math.inf, 0.0], 7), Model([0.0, 2.0], [-math.inf, 1.0], 1)


def test_by_hand():
    model, start = models()
    interpolate_weights(model, start.state_dict(), 0.25)
    assert model.weight.tolist() == [1.0, 1.0]
    assert model.mask.tolist() == [-math.inf, 0.75]
    assert model.count.item() == 7
    assert start.weight.tolist() == [0.0, 2.0]
    for share, weight in ((0, [0.0, 2.0]), (1, [4.0, -2.0])):
        model, start = models()
        interpolate_weights(model, start.state_dict(), share)
        assert model.weight.tolist() == weight
    model, start = models()
    interpolate_weights(model.bfloat16(), start.state_dict(), 0.5)
    assert model.weight.dtype == torch.bfloat16
    assert model.weight.tolist() == [2.0, 0.0]


def test_tied_weights_are_mixed_once():
    model, start = models()
    model.again, start.again = model.weight, start.weight  # as the embeddings of T5
    interpolate_weights(model, start.state_dict(), 0.25)
    assert model.weight.tolist() == [1.0, 1.0]


def test_start_may_be_a_state_dict():
    model, start = models()
    interpolate_weights(model, {name: weight.clone() for name, weight in start.state_dict().items()}, 0.25)
    assert model.weight.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="missing in start"):
        interpolate_weights(model, {}, 0.25)


def test_other_models_are_refused(build):
    model, start = build(), build()
    for share in (-0.1, 1.5, math.nan, "half", True):
        with pytest.raises(ValueError, match="alpha must be a number of at least 0 and at most 1"):
            interpolate_weights(model, start.state_dict(), share)
    with pytest.raises(ValueError, match="start shares its weights"):
        interpolate_weights(model, model, 0.5)
    with pytest.raises(ValueError, match=r"The weight 0.* is .* missing in start"):
        interpolate_weights(model, build("distilbert"), 0.5)
    longer = build()
    longer[0].model.resize_token_embeddings(200)
    with pytest.raises(ValueError, match=r"word_embeddings.weight is \(200, 32\) in model and"):
        interpolate_weights(longer, start, 0.5)


def test_other_vocabularies_are_refused(build):
    """Their weights have the same names and shapes."""
    model, other = build(), build()
    tokens = sorted(other.tokenizer.get_vocab(), key=other.tokenizer.get_vocab().get)
    vocabulary = {token: index for index, token in enumerate(tokens[:10] + tokens[:9:-1])}
    other[0].processor = type(other.tokenizer)(vocab=vocabulary)
    with pytest.raises(ValueError, match="different vocabularies"):
        interpolate_weights(model, other, 0.5)
    interpolate_weights(model, build(pooling="mean"), 0.5)


@pytest.mark.parametrize("as_state", [False, True])
def test_adapters_are_refused(build, as_state):
    peft = pytest.importorskip("peft")
    model, start = build(), build()
    for each in (model, start):
        each.add_adapter(peft.LoraConfig(r=2, target_modules=["query"]))
    with pytest.raises(ValueError, match=r"adapters, such as .*lora_A"):
        interpolate_weights(model, start.state_dict() if as_state else start, 0.5)
    model = build()
    model.add_adapter(peft.LoHaConfig(r=2, target_modules=["query"]))
    with pytest.raises(ValueError, match=r"adapters, such as .*hada_w"):
        interpolate_weights(model, model.state_dict(), 0.5)
