"""Every loss under fit, the Trainer, old_fit and a plain loop; saved, and loaded without this package."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from torch.utils.data import DataLoader

import st_contrastive as stc
from tests.cases import CASES, ONE_OF_EACH, method_of
from tests.processes import run_python

#: What `fit` and `old_fit` are called with alike.
FIT_OPTIONS = {"epochs": 2, "warmup_steps": 0, "optimizer_params": {"lr": 1e-3}, "show_progress_bar": False}
NAMES = (*ONE_OF_EACH, "conisi-given", "twins-momentum")


class Run:
    """A loss before its training, and what must have moved after it. 9 rows in batches of 4: the last is one row."""

    def __init__(self, name, model, sentences, **options):
        loss_class, own, count, self.terms = CASES[name]
        self.method, self.model = method_of(name), model
        self.texts = [sentences[:9], sentences[:0:-1]][:count]
        self.loss = loss_class(model, **own, **options)
        self.before = [p.detach().clone() for p in self._followed()]
        assert len(self.before) > (20 if name != "twins" else 10)

    def _followed(self):
        unused = ("pooler", "position_embeddings", "word_embeddings", "classifier.bias", "key.bias")
        return [
            p
            for name, p in self.loss.named_parameters()
            if p.requires_grad and not any(part in name for part in unused)
        ]

    def assert_trained(self):
        after = self._followed()
        assert all(parameter.isfinite().all() for parameter in after)
        assert not any(torch.equal(new, old) for new, old in zip(after, self.before, strict=True))


@pytest.fixture
def start(build, sentences, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda name, **options: Run(name, build(), sentences, **options)


@pytest.mark.parametrize("name", NAMES)
def test_fit(start, tmp_path, name):
    run = start(name)
    loader = DataLoader(stc.input_examples(run.method.dataset(*run.texts)), batch_size=4, shuffle=True)
    run.model.fit(train_objectives=[(loader, run.loss)], output_path=str(tmp_path / "out"), **FIT_OPTIONS)
    run.assert_trained()
    found = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(run.texts[0])
    np.testing.assert_allclose(found, run.model.eval().encode(run.texts[0]), atol=1e-6)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"loss:{type(run.loss).__name__}" in card
    assert run.loss.citation.strip().splitlines()[0] in card
    assert all(f'"{argument}": ' in card for argument in run.loss.get_config_dict())


@pytest.mark.parametrize("name", NAMES)
def test_trainer_with_evaluation_between(start, tmp_path, name):
    run = start(name)
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path), per_device_train_batch_size=4, num_train_epochs=2, learning_rate=1e-3, logging_steps=1,
        eval_strategy="steps", eval_steps=1, report_to="none", disable_tqdm=True, save_strategy="no", use_cpu=True,
    )  # fmt: skip
    data = run.method.dataset(*run.texts)
    evaluated = run.method.dataset(*(column[:3] for column in run.texts))
    # Lazily, as sentence-transformers allows.
    trainer = SentenceTransformerTrainer(run.model, arguments, data, evaluated, loss=lambda model: run.loss)
    trainer.train()
    run.assert_trained()
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == 6
    assert all(math.isfinite(entry["loss"]) for entry in logged)
    for term in run.terms:
        assert all(term in entry for entry in logged)
        assert any(f"eval_{term}" in entry for entry in trainer.state.log_history)
    if name == "twins":  # training's batches of 1, 4 and 4 rows, and none of the evaluation's
        assert len(run.loss.queue) == 4 + 4 + 1


@pytest.mark.parametrize("name", ["infocse", "simcse"])
def test_old_fit(start, tmp_path, name):
    run = start(name)
    loader = DataLoader(stc.input_examples(run.method.dataset(*run.texts)), batch_size=4)
    run.model.old_fit(train_objectives=[(loader, run.loss)], output_path=str(tmp_path / "out"), **FIT_OPTIONS)
    run.assert_trained()


@pytest.mark.parametrize("name", NAMES)
def test_plain_loop_with_accumulation(start, sentences, name):
    """Twice half of the loss, of the same batch and draws, is the loss."""
    run = start(name)
    optimizer = torch.optim.AdamW([p for p in run.loss.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(3):
        for _ in range(2):
            value = run.loss([run.model.preprocess(column) for column in run.texts])
            (value / 2).backward()
        assert math.isfinite(value.item())
        optimizer.step()
        optimizer.zero_grad()
    run.assert_trained()


@pytest.mark.parametrize("own_process", [False, pytest.param(True, marks=pytest.mark.long)])
def test_saved_models_load_where_the_package_is_not(start, sentences, tmp_path, own_process):
    """After a step with each loss: the same embeddings, and nothing of the loss."""
    expected, modules = {}, set()
    for name in NAMES:
        run = start(name)
        names = set(run.model.state_dict())
        optimizer = torch.optim.SGD(run.model.parameters(), lr=0.01)
        run.loss([run.model.preprocess(column) for column in run.texts]).backward()
        optimizer.step()
        assert set(run.model.state_dict()) == names
        hooks = [h for part in run.model.modules() for h in (*part._forward_pre_hooks, *part._forward_hooks)]
        assert not hooks
        run.model.save_pretrained(str(tmp_path / name))
        modules |= {path.name for path in (tmp_path / name).rglob("*")}
        expected[name] = run.model.eval().encode(sentences)
    assert not any("queue" in name or "head" in name or "loss" in name for name in modules)
    script = (
        "import sys; sys.modules['st_contrastive'] = None\n"
        "import numpy as np\n"
        "from sentence_transformers import SentenceTransformer\n"
        f"for name in {list(expected)!r}:\n"
        f"    model = SentenceTransformer({str(tmp_path)!r} + '/' + name, device='cpu')\n"
        f"    np.save({str(tmp_path)!r} + '/' + name + '.npy', model.encode({sentences!r}))"
    )
    if own_process:
        run_python("-c", script)
    for name, vectors in expected.items():
        found = (
            np.load(tmp_path / f"{name}.npy")
            if own_process
            else SentenceTransformer(str(tmp_path / name), device="cpu").encode(sentences)
        )
        np.testing.assert_allclose(found, vectors, atol=1e-6)


def test_several_losses_in_one_fit(build, sentences, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = build()
    objectives = [
        (DataLoader(stc.input_examples(data), batch_size=4), loss)
        for data, loss in (
            (stc.text_dataset(sentences), stc.SimCSELoss(model)),
            (stc.twins_dataset(sentences, sentences[::-1]), stc.TwinsLoss(model)),
        )
    ]
    before = model[0].model.encoder.layer[0].attention.self.query.weight.detach().clone()
    model.fit(train_objectives=objectives, epochs=1, warmup_steps=0, show_progress_bar=False)
    assert not torch.equal(model[0].model.encoder.layer[0].attention.self.query.weight, before)
