"""A run whose encoder no longer tells texts apart is said to have collapsed."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from transformers import TrainerCallback

from st_contrastive import SimCSELoss, text_dataset
from st_contrastive.training import ContrastiveTrainer
from st_contrastive.training.collapse import find_collapse, find_vector_fault


class After(TrainerCallback):
    """Changes the weights after each step."""

    def __init__(self, change):
        self.change = change

    def on_step_end(self, args, state, control, model=None, **kwargs):
        with torch.no_grad():
            for parameter in model.parameters():
                self.change(parameter)


@pytest.mark.parametrize("method", ["simcse", "conisi", "twins", "infocse", "diffcse", "momentum", "pretraining"])
def test_a_term_at_its_chance_level_is_a_collapse(made, arguments, method):
    """Weights and the queue are counted; what is not contrasted is not watched."""
    options = {"twins": {"identical_weight": 8.0, "fraternal_weight": 0.1}, "infocse": {"contrastive_weight": 8.0}}
    loss, data = made(method, **options.get(method, {}))
    loss([loss.model.preprocess(data[name][:4]) for name in data.column_names if name != "label"])  # fills a queue
    run = ContrastiveTrainer(loss.model, arguments(), data, loss=loss)
    levels = loss.chance_levels(4)
    assert bool(levels) == (method != "pretraining")
    for name, level in levels.items():
        run.state.log_history = [{"loss": 1.0, name: round(level, 4)}] * 12
        with pytest.warns(UserWarning, match=f"its {name} loss ends at .*learning_rate"):
            assert find_collapse(run)
        run.state.log_history = [{"loss": 1.0, name: 0.95 * level}] * 12
        assert find_collapse(run) is None
        run.state.log_history = [{"loss": 1.0, name: level}] * 3  # too early to tell
        assert find_collapse(run) is None


class Own(SimCSELoss):
    """A user's loss whose term has another name."""

    def compute_terms(self, step, batches, labels):
        return {"mine": 8 * super().compute_terms(step, batches, labels)["contrastive"]}

    def chance_levels(self, batch_size):
        return {"mine": 8 * self.chance_level(batch_size)}


@pytest.mark.parametrize("rate", [1e-3, 50.0])
def test_a_custom_loss_is_checked_for_collapse(build, arguments, sentences, rate):
    loss = Own(build())
    options = arguments(learning_rate=rate, max_steps=20, lr_scheduler_type="constant", save_strategy="no")
    run = ContrastiveTrainer(loss.model, options, text_dataset(sentences), loss=loss)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.train()
    assert sum("collapsed" in str(warning.message) for warning in caught) == (rate > 1)
    assert rate < 1 or re.search("mine.* 50", run.collapsed)


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_equal_or_infinite_vectors_are_a_collapse(trainer, value):
    run = trainer("simcse", max_steps=1, save_strategy="no", callbacks=[After(lambda weight: weight.fill_(value))])
    with pytest.warns(UserWarning, match="The run collapsed"):
        run.train()
    assert ("equal" if value == 0 else "not finite") in run.collapsed


def test_vectors_that_were_equal_before_the_run_are_not_a_collapse(trainer):
    def run(**options):
        run = trainer("simcse", **options)
        with torch.no_grad():
            for name, parameter in run.model.named_parameters():
                if "embeddings" not in name:
                    parameter.zero_()
        return run

    for steps, resume in ((2, None), (4, True)):
        trained = run(max_steps=steps)
        trained.train(resume_from_checkpoint=resume)
        assert trained.collapsed is None
        assert "equal" in trained.fault_at_start


def test_the_printed_number_of_a_collapse_is_the_compared_one(trainer):
    run = trainer("simcse", save_strategy="no")
    level = run.loss.chance_level(4)
    run.state.log_history = [{"loss": 1.0, "contrastive": level + change} for change in (0,) * 9 + (0.4, 0.4, -0.5)]
    with pytest.warns(UserWarning, match=rf"ends at {level + 0.1:.3g} .*equal vectors have {level:.3g}"):
        assert find_collapse(run)


def test_an_infinite_loss_is_a_collapse(trainer):
    run = trainer("simcse", max_steps=1, save_strategy="no", logging_nan_inf_filter=False)
    run.compute_loss = lambda model, inputs, **_: next(model.parameters()).sum() * float("nan")
    with pytest.warns(UserWarning, match="last logged loss is nan"):
        run.train()


def test_a_normal_run_is_not_a_collapse(trainer):
    run = trainer("conisi", save_strategy="no")
    run.collapsed = "from before"
    run.train()
    assert run.collapsed is None
    assert run.model.training
    run.train_dataset = run.train_dataset.select([0] * 8)  # one text is not enough
    run.train()
    assert run.collapsed is None


def test_data_without_texts_is_not_examined(trainer):
    """Such as images, which are not hashable."""
    run = trainer()
    run.train_dataset = [{"image": [n], "caption": "a"} for n in range(8)]
    assert find_vector_fault(run) is None
