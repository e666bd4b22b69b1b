"""Training with fit, the Trainer, old_fit and a plain loop. Saved models load without this package."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from torch.utils.data import DataLoader

import st_contrastive as stc
from tests.cases import CASES, ONE_OF_EACH, arguments_of, method_of, without_the_package

#: Options for both `fit` and `old_fit`.
FIT_OPTIONS = {"epochs": 2, "warmup_steps": 0, "optimizer_params": {"lr": 1e-3}, "show_progress_bar": False}
NAMES = (*ONE_OF_EACH, "conisi-given", "twins-momentum")


class Run:
    """A loss and a copy of its weights before training. 9 rows in batches of 4, so that the last batch has one row."""

    def __init__(self, name, model, sentences, **options):
        loss_class, case_options, count, self.terms = CASES[name]
        self.method, self.model = method_of(name), model
        self.texts = [sentences[:9], sentences[:0:-1]][:count]
        self.loss = loss_class(model, **case_options, **options)
        self.before = [p.detach().clone() for p in self._used_weights()]
        assert len(self.before) > (20 if name != "twins" else 10)

    def _used_weights(self):
        unused = ("pooler", "position_embeddings", "word_embeddings", "classifier.bias", "key.bias")
        return [
            p
            for name, p in self.loss.named_parameters()
            if p.requires_grad and not any(part in name for part in unused)
        ]

    def assert_trained(self):
        after = self._used_weights()
        assert all(parameter.isfinite().all() for parameter in after)
        assert not any(torch.equal(new, old) for new, old in zip(after, self.before, strict=True))


@pytest.fixture
def new_run(build, sentences, tmp_path, monkeypatch):
    """``new_run(case, **options)``: a :class:`Run`."""
    monkeypatch.chdir(tmp_path)
    return lambda name, **options: Run(name, build(), sentences, **options)


@pytest.mark.parametrize("name", NAMES)
def test_fit(new_run, tmp_path, name):
    """The saved model loads without this package. Of the loss it only holds the name and the citation."""
    run = new_run(name)
    names = set(run.model.state_dict())
    loader = DataLoader(stc.input_examples(run.method.dataset(*run.texts)), batch_size=4, shuffle=True)
    run.model.fit(train_objectives=[(loader, run.loss)], output_path=str(tmp_path / "out"), **FIT_OPTIONS)
    run.assert_trained()
    assert set(run.model.state_dict()) == names
    files = " ".join(path.name for path in (tmp_path / "out").rglob("*"))
    assert not any(part in files for part in ("queue", "head", "loss"))
    with without_the_package():
        found = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(run.texts[0])
    np.testing.assert_allclose(found, run.model.eval().encode(run.texts[0]), atol=1e-6)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"loss:{type(run.loss).__name__}" in card
    assert run.loss.citation.strip().splitlines()[0] in card
    assert all(f'"{argument}": ' in card for argument in run.loss.get_config_dict())


def test_labels_from_fit_are_warned_about(new_run):
    run = new_run("simcse")
    pairs = stc.input_examples(stc.text_dataset(run.texts[0], run.texts[0][::-1]))
    for labels, count in (([1] * 9, 0), ([0, 1, 1] * 3, 1)):
        for example, label in zip(pairs, labels, strict=True):
            example.label = label
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            run.model.fit(train_objectives=[(DataLoader(pairs, batch_size=9), run.loss)], epochs=1)
        assert sum("does not use labels" in str(warning.message) for warning in warned) == count
        run.loss = stc.SimCSELoss(run.model)


@pytest.mark.parametrize("name", NAMES)
def test_trainer_with_evaluation_between(new_run, tmp_path, name):
    run = new_run(name)
    arguments = arguments_of(tmp_path, eval_strategy="steps", eval_steps=1, save_strategy="no")
    data = run.method.dataset(*run.texts)
    evaluated = run.method.dataset(*(column[:3] for column in run.texts))
    # sentence-transformers also accepts a function that builds the loss.
    trainer = SentenceTransformerTrainer(run.model, arguments, data, evaluated, loss=lambda model: run.loss)
    trainer.train()
    run.assert_trained()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 6
    assert all(math.isfinite(entry["loss"]) for entry in logged)
    for term in run.terms:
        assert all(term in entry for entry in logged)
        assert any(f"eval_{term}" in entry for entry in trainer.state.log_history)
    if name == "twins":  # batches of 1, 4 and 4 rows in training, and none from the evaluation
        assert len(run.loss.queue) == 4 + 4 + 1


@pytest.mark.parametrize("name", ["infocse", "simcse"])
def test_old_fit(new_run, tmp_path, name):
    run = new_run(name)
    loader = DataLoader(stc.input_examples(run.method.dataset(*run.texts)), batch_size=4)
    run.model.old_fit(train_objectives=[(loader, run.loss)], output_path=str(tmp_path / "out"), **FIT_OPTIONS)
    run.assert_trained()


@pytest.mark.parametrize("name", NAMES)
def test_plain_loop_with_accumulation(new_run, sentences, name):
    """Two backward passes of half the loss are one step."""
    run = new_run(name)
    optimizer = torch.optim.AdamW([p for p in run.loss.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(3):
        for _ in range(2):
            value = run.loss([run.model.preprocess(column) for column in run.texts])
            (value / 2).backward()
        assert math.isfinite(value.item())
        optimizer.step()
        optimizer.zero_grad()
    run.assert_trained()


def test_several_losses_in_one_fit(build, sentences, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = build()
    data = [stc.text_dataset(sentences), stc.twins_dataset(sentences, sentences[::-1])]
    loaders = [DataLoader(stc.input_examples(part), batch_size=4) for part in data]
    weight = model[0].model.encoder.layer[0].attention.self.query.weight
    before = weight.detach().clone()
    losses = [stc.SimCSELoss(model), stc.TwinsLoss(model)]
    model.fit(train_objectives=list(zip(loaders, losses, strict=True)), **FIT_OPTIONS)
    assert not torch.equal(weight, before)
    assert len(losses[1].queue) > 0
