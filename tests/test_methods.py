"""The registry of methods: what its strings name is there."""

from __future__ import annotations

import inspect

import pytest

import st_contrastive
from st_contrastive import losses
from st_contrastive.methods import METHODS, PRETRAINING
from st_contrastive.recipes import Recipe

ALL = [*METHODS.values(), PRETRAINING]


def test_every_loss_is_registered_once():
    classes = [method.loss for method in ALL]
    assert len(set(classes)) == len(classes) == 8
    public = {name for name in st_contrastive.__all__ if name.endswith("Loss")}
    assert public == set(classes) <= set(losses.__all__)
    assert all(name == method.name for name, method in METHODS.items())


@pytest.mark.parametrize("method", ALL, ids=lambda method: method.name)
def test_what_a_method_names_is_there(method, sentences):
    parameters = inspect.signature(method.loss_class).parameters
    assert {*method.arguments, *method.checkpoints} <= parameters.keys()
    assert all(parameters[name].default is not inspect.Parameter.empty for name in method.arguments)
    assert 1 <= len(method.arguments) <= 2
    assert method.pooling in ("cls", "mean")
    for name in (method.loss, f"{method.builder}_examples", f"{method.builder}_dataset"):
        assert name in st_contrastive.__all__
    assert method.dataset(sentences).column_names == ["sentence"]
    assert [example.texts for example in method.examples(sentences)] == [[text] for text in sentences]
    if len(method.columns) == 2:
        columns = [sentences, [text[::-1] for text in sentences]]
        second = columns[1] if method.builder == "twins" else lambda text, rng: text[::-1]
        made = method.dataset(sentences, second)
        assert made.column_names == list(method.columns)
        assert [made[name][:] for name in made.column_names] == columns


def test_a_recipe_of_no_method_is_refused():
    with pytest.raises(ValueError, match="recipe 'mine': there is no method 'bert'; give one of simcse, conisi, twins"):
        Recipe("mine", "Mine", "bert", {})
