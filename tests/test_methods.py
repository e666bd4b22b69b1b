"""The registry of methods, whose strings must name existing classes and arguments."""

from __future__ import annotations

import inspect

import pytest

import st_contrastive
from st_contrastive import losses
from st_contrastive.methods import METHODS


def test_every_loss_is_registered_once():
    registered = [method.loss for method in METHODS.values()]
    assert len(set(registered)) == len(registered) > 6
    public = {name for name in st_contrastive.__all__ if name.endswith("Loss")}
    assert public <= set(registered)
    assert public <= set(losses.__all__)
    assert all(name == method.name for name, method in METHODS.items())


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_method_names_existing_arguments_and_columns(method, sentences):
    assert set(method.checkpoints) <= inspect.signature(method.loss_class).parameters.keys()
    assert method.pooling in ("cls", "mean")
    assert method.dataset(sentences).column_names == ["sentence"]
    if len(method.columns) == 2:
        columns = [sentences, [text[::-1] for text in sentences]]
        dataset = method.dataset(*columns)
        assert dataset.column_names == list(method.columns)
        assert [dataset[name][:] for name in dataset.column_names] == columns
