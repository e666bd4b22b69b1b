"""A run whose encoder no longer tells texts apart is said to have collapsed."""

from __future__ import annotations

import pytest
import torch
from transformers import TrainerCallback

from tests.filters import TRAINING

pytestmark = [*TRAINING]


class After(TrainerCallback):
    """Changes the weights after each step."""

    def __init__(self, change):
        self.change = change

    def on_step_end(self, args, state, control, model=None, **kwargs):
        with torch.no_grad():
            for parameter in model.parameters():
                self.change(parameter)


def test_learning_rate_50(trainer):
    run = trainer("simcse", learning_rate=50.0, max_steps=20, lr_scheduler_type="constant", save_strategy="no")
    with pytest.warns(UserWarning, match="The run collapsed") as caught:
        run.train()
    assert "50" in run.collapsed
    assert sum("collapsed" in str(warning.message) for warning in caught) == 1


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_equal_vectors_and_such_that_are_not_finite(trainer, value):
    run = trainer("simcse", max_steps=1, save_strategy="no", callbacks=[After(lambda weight: weight.fill_(value))])
    with pytest.warns(UserWarning, match="The run collapsed"):
        run.train()
    assert ("equal" if value == 0 else "not finite") in run.collapsed


def test_vectors_that_were_equal_before_training(trainer):
    run = trainer("simcse", max_steps=1, save_strategy="no")
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.zero_()
    run.train()
    assert run.collapsed is None
    assert "equal" in run.fault_at_start


def test_a_loss_that_is_not_finite(trainer):
    run = trainer("simcse", max_steps=1, save_strategy="no", logging_nan_inf_filter=False)
    run.compute_loss = lambda model, inputs, **_: next(model.parameters()).sum() * float("nan")
    with pytest.warns(UserWarning, match="last logged loss is nan"):
        run.train()


def test_a_usual_run_did_not_collapse(trainer):
    run = trainer("conisi", save_strategy="no")
    run.collapsed = "from before"
    run.train()
    assert run.collapsed is None
    assert run.model.training
    run.train_dataset = run.train_dataset.select([0] * 8)  # one text alone can't tell
    run.train()
    assert run.collapsed is None
