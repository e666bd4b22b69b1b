from __future__ import annotations

import pytest
import torch

from st_contrastive.training import ContrastiveTrainer
from tests.cases import TRAINED_CASES, arguments_of, method_of


@pytest.fixture
def arguments(tmp_path):
    """``arguments(**changes)``: those of a run in ``tmp_path / "run"``."""
    return lambda **changes: arguments_of(changes.pop("output_dir", tmp_path / "run"), **changes)


@pytest.fixture
def made(build, sentences):
    """``made(method, **options)``: loss, and dataset."""

    def make(method="conisi", family="bert-mlm", **changes):
        options, columns = TRAINED_CASES[method]
        torch.manual_seed(0)
        loss = method_of(method).loss_class(build(family), **{**options, **changes})
        return loss, method_of(method).dataset(*[sentences, sentences[::-1]][:columns])

    return make


@pytest.fixture
def trainer(made, arguments):
    """``trainer(method, **arguments)``, each with a new loss that begins alike; ``evaluator`` goes to the Trainer."""

    def build(method="conisi", evaluator=None, callbacks=None, **changes):
        loss, data = made(method)
        return ContrastiveTrainer(
            loss.model, arguments(**changes), data, loss=loss, evaluator=evaluator, callbacks=callbacks
        )

    return build
