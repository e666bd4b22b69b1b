"""What is asked of a method that does not beat SimCSE: every question's cells, once each."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from benchmarks import _why, why
from benchmarks.choose import METHODS
from st_contrastive import ConIsILoss, InfoCSELoss, TwinsLoss
from tests.filters import TRAINING

pytestmark = [*TRAINING, pytest.mark.filterwarnings("ignore:TwinsLoss was given one column")]
SETTINGS = {name: method.candidates()[0] for name, method in METHODS.items()}


@pytest.fixture
def words(checkpoint, sentences, tmp_path):
    (tmp_path / "corpus.txt").write_text("".join(f"{sentence}\n" for sentence in sentences))
    pairs = itertools.pairwise(sentences)
    rows = [{"sentence1": a, "sentence2": b, "score": score} for score, (a, b) in enumerate(pairs)]
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{a}\n" for a in sentences))
    (tmp_path / "choose.json").write_text(json.dumps({"chosen": SETTINGS}))
    return [
        "--chosen", f"{tmp_path}/choose.json", "--base", str(checkpoint("bert-mlm")), "--runs", f"{tmp_path}/runs",
        "--data", f"{tmp_path}/corpus.txt", "--pairs", f"{tmp_path}/pairs.tsv", "--dev", f"{tmp_path}/dev.jsonl",
        "--json", f"{tmp_path}/why.json", "--steps", "2", "--every", "1", "--batch-size", "4", "--stage1-steps", "1",
    ]  # fmt: skip


@pytest.mark.long
def test_every_question(words, tmp_path, capsys):
    words += ["--questions", "share", "norm", "weight", "--seeds", "3", "4"]
    why.main(words)
    cells = json.loads((tmp_path / "why.json").read_text())["cells"]
    assert [(cell["question"], cell["title"], cell["seed"]) for cell in cells] == [
        ("share", "simcse", 3), ("share", "twins-german", 3), ("norm", "with BatchNorm", 3),
        ("norm", "without BatchNorm, 0.05", 3), ("weight", "0.02", 3), ("weight", "0.6", 3), ("weight", "20", 3),
        ("norm", "with BatchNorm", 4), ("norm", "without BatchNorm, 0.05", 4),
        ("weight", "0.02", 4), ("weight", "0.6", 4), ("weight", "20", 4),
    ]  # fmt: skip
    for place, cell in enumerate(cells):
        assert [step for step, _ in cell["curve"]] == [1, 2]
        assert cell["dev"] == max(value for _, value in cell["curve"])
        assert [one["step"] for one in cell["gradients"]] == ([0, 1] if place < 7 and place != 3 else [])
    for measured in ("norms", "terms"):
        assert set(cells[1]["gradients"][0][measured]) == {"identical", "fraternal", "twins"}
    # Three powers of ten, of the same term before the first step.
    first, last = (cells[place]["gradients"][0]["norms"] for place in (4, 6))
    assert last["mlm"] == pytest.approx(1000 * first["mlm"], rel=1e-3)
    assert last["contrastive"] == pytest.approx(first["contrastive"], rel=1e-3)
    capsys.readouterr()
    why.main(words)
    assert capsys.readouterr().out == ""


def test_the_temperatures_are_those_beside_the_chosen_one():
    own = {**SETTINGS, "conisi-s": {**SETTINGS["conisi-s"], "temperature": 0.1}}
    assert [run.setting for run in why.runs(own, ("temperature",))] == [
        {**own["conisi-s"], "temperature": value} for value in (0.05, 0.15)
    ]


def test_heads_and_queues_are_changed_alone():
    runs = why.runs(SETTINGS, ("head", "queue"))
    assert [run.title for run in runs[:4]] == ["projector, 0.05", "projector, 0.1", "tanh, 0.05", "tanh, 0.1"]
    assert runs[2].setting == {**runs[0].setting, "head": "tanh"}
    assert runs[1].setting == {**runs[0].setting, "temperature": 0.1}
    assert [run.measured for run in runs[:4]] == [True, False, False, False]
    high = why.runs({**SETTINGS, "infocse": {**SETTINGS["infocse"], "temperature": 0.15}}, ("head",))
    assert [(run.title, run.measured) for run in high[:2]] == [("projector, 0.05", False), ("projector, 0.15", True)]
    for run in runs[5:]:  # the oldest batch has a quarter of the weight
        length = run.setting["queue_batches"]
        assert 1 - length * run.setting["forgetting_rate"] == pytest.approx(0.25)


def test_a_head_without_norm_is_another(build, sentences):
    model = build()
    loss = ConIsILoss(model)
    before, _ = why.term_gradients(loss, [model.preprocess(sentences)])
    why.without_norm(loss)
    after, _ = why.term_gradients(loss, [model.preprocess(sentences)])
    assert before.keys() == after.keys()
    assert all(before[name] != after[name] for name in before)


def test_gradients_are_of_the_weighted_terms_and_leave_no_trace(build, sentences):
    model = build()
    batch = model.preprocess(sentences[:4])
    norms = []
    for weight in (1e-3, 1e-2):
        torch.manual_seed(0)  # of the auxiliary network's head
        norms.append(why.term_gradients(InfoCSELoss(model, mlm_weight=weight), [batch])[0]["mlm"])
    once, ten = norms
    assert once > 0
    loss = TwinsLoss(model)
    before = loss.queue.keys.shape
    found, terms = why.term_gradients(loss, [batch])
    assert list(found) == ["identical"]
    assert loss.queue.keys.shape == before
    torch.manual_seed(0)
    identical = loss([dict(batch)])["identical"]
    assert terms == {"identical": pytest.approx(float(identical.detach()), rel=1e-5)}
    identical.backward()
    norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
    assert found["identical"] == pytest.approx(float(torch.stack(norms).norm()), rel=1e-5)
    assert ten == pytest.approx(10 * once, rel=1e-3)


def _cell(question, title, seed, dev, gradients=(), **changed):
    return {"question": question, "title": title, "seed": seed, "dev": dev, "gradients": list(gradients), **changed}


def _measured(step, **norms):
    return {"step": step, "norms": norms, "terms": {name: norm / 2 for name, norm in norms.items()}}


RESULT = {
    "cells": [
        _cell("queue", "12", 0, 0.83, queue_batches=12),
        _cell("queue", "3", 0, 0.82, queue_batches=3),
        _cell("queue", "0", 0, 0.80, queue_batches=0),
        _cell("share", "simcse", 0, 0.80, [_measured(0, contrastive=2.0)]),
        *(_cell("weight", "20", seed, 0.79 + seed / 100, mlm_weight=20.0) for seed in (0, 1)),
        _cell("weight", "0.6", 0, 0.80, [
            _measured(0, contrastive=9, mlm=1), _measured(50, contrastive=3, mlm=1),
        ], mlm_weight=0.6),
        _cell("weight", "0.6", 1, 0.80, mlm_weight=0.6),
        _cell("norm", "with BatchNorm", 0, 0.80, [_measured(0, contrastive=1, interactive=1)], temperature=0.1),
        _cell("norm", "without BatchNorm", 0, 0.76, temperature=0.1),
        _cell("temperature", "0.15", 0, 0.79, temperature=0.15),
        _cell("temperature", "0.05", 0, 0.77, temperature=0.05),
        _cell("head", "tanh, 0.1", 0, 0.78),
        _cell("head", "projector, 0.1", 1, 0.78),
        _cell("head", "projector, 0.1", 0, 0.77, [
            _measured(0, contrastive=1, mlm=3), _measured(50, contrastive=0, mlm=0),
        ]),
    ]
}  # fmt: skip


def test_each_change_is_held_to_the_chosen_setting():
    _, lines = _why.changed(RESULT)
    assert [line[2:] for line in lines] == [
        ["with BatchNorm", "1", "80.00", ""],
        ["without BatchNorm", "1", "76.00", "-4.00"],
        ["0.05", "1", "77.00", "-3.00"],
        ["0.15", "1", "79.00", "-1.00"],
        ["projector, 0.1", "2", "77.50 ± 0.71", ""],
        ["tanh, 0.1", "1", "78.00", "+1.00"],
        ["0.6 (25.0 % of the gradient at step 50)", "2", "80.00 ± 0.00", "+2.50 (-3.85 to +8.85)"],
        ["20", "2", "79.50 ± 0.71", "+2.00 (+2.00 to +2.00)"],
        ["0", "1", "80.00", ""],
        ["3", "1", "82.00", "+2.00"],
        ["12", "1", "83.00", "+3.00"],
    ]


def test_two_settings_under_one_title_are_not_mixed():
    again = {"cells": [*RESULT["cells"], _cell("queue", "3", 0, 0.9, queue_batches=3)]}
    with pytest.raises(ValueError, match="queue, 3 was run with two settings"):
        _why.changed(again)


def test_the_terms_have_shares_of_the_gradient():
    head, lines = _why.gradients(RESULT)
    assert head[2:] == ["step 0", "step 50"]
    assert lines == [
        ["SimCSE", "contrastive", "1.000, 100 %", ""],
        ["ConIsI-s", "contrastive", "0.500, 50 %", ""],
        ["ConIsI-s", "interactive", "0.500, 50 %", ""],
        ["InfoCSE", "contrastive", "0.500, 25 %", "0.000, 0 %"],
        ["InfoCSE", "mlm", "1.500, 75 %", "0.000, 0 %"],
    ]


def test_the_answers_have_a_picture(tmp_path):
    _why.picture(RESULT, tmp_path / "why.png")
    assert (tmp_path / "why.png").stat().st_size > 5000
