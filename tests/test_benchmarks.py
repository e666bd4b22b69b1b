"""The benchmarks' tables are those of the raw results, and their forms compute what the losses do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import _replicated, tables
from benchmarks._forms import form, translations
from benchmarks.expected import Held
from tests.conftest import switch_off_dropout

ROOT = Path(tables.__file__).parent.parent


@pytest.mark.parametrize("name", list(tables.TABLES))
def test_tables_are_those_of_the_results(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for mark, make in tables.TABLES[name].items():
        made = make()
        assert made.count("\n") >= 2  # head, line, and a row
        assert tables.rendered(text, mark, made) == text, f"{mark}: run python -m benchmarks.tables"


def test_translations_are_as_long_as_the_sentences():
    texts = ["a cat sleeps on the mat", "it rains"]
    assert [sorted(text.split()) for text in translations(texts)] == [sorted(text.split()) for text in texts]


@pytest.mark.parametrize("method", ["SimCSE", "Twins"])
def test_the_naive_form_is_the_loss(method):
    """Where nothing is drawn but dropout: the same value and gradient, on real text."""
    texts = ["A cat sleeps on the mat.", "It rains in Oslo.", "The cost of a step is what it multiplies."]
    found = []
    for kind in ("ours", "naive"):
        made = form(method, kind, "minilm", 16)
        loss = made.loss
        switch_off_dropout(loss)
        for _ in range(2):  # so that a queue is in use
            loss.zero_grad()
            value = made.forward(texts)
        value.backward()
        found.append((value.detach(), loss.model[0].model.encoder.layer[0].attention.self.query.weight.grad))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-3, atol=1e-5)
    assert found[0][1].abs().sum() > 0


def _cell(recipe, seed, dev, test, **more):
    scores = {"stsb dev spearman": dev / 100, "stsb test spearman": test / 100}
    return {"recipe": recipe, "seed": seed, "label": "", "base": "", "data": "a", "set": [], "options": "", **more} | {
        "scores": scores
    }


def test_methods_are_compared_with_simcse_under_their_own_pooling():
    mean = {"label": "mean", "options": "--pooling mean"}
    cells = [
        *(_cell("mini-simcse", seed, 80 + seed, 70 + seed) for seed in range(3)),
        *(_cell("mini-simcse", seed, 85, 75, **mean) for seed in range(3)),
        *(_cell("mini-conisi-s", seed, 81 + seed, 71 + seed + (seed - 1) / 2) for seed in range(3)),
        *(_cell("mini-twins-one-column", seed, 86, 74) for seed in range(2)),
        _cell("mini-conisi-s", 0, 90, 90, label="half", set=["interaction_weight=0.5"]),
        _cell("mini-simcse", 0, 10, 10, base="weak"),
    ]
    result = {"cells": cells, "untrained": {"": {name: _cell("", 0, 60, 50)["scores"] for name in ("cls", "mean")}}}
    lines = {(line[0], line[1]): line[2:] for line in _replicated.rows(result, "")[1]}
    assert list(lines) == [
        ("untrained", "[CLS]"),
        ("SimCSE", "[CLS]"),
        ("ConIsI-s", "[CLS]"),
        ("untrained", "mean"),
        ("SimCSE", "mean"),
        ("Twins without fraternal twins (w/o FI, TL)", "mean"),
    ]
    assert lines["SimCSE", "[CLS]"] == ["3", "81.00 ± 1.00", "71.00 ± 1.00", "71.00 ± 1.00", ""]
    # 0.5, 1 and 1.5 over SimCSE: Student's t for two degrees of freedom is 4.303
    half = 4.303 * 0.5 / 3**0.5
    assert lines["ConIsI-s", "[CLS]"][-1] == f"+1.00 ({1 - half:+.2f} to {1 + half:+.2f})"
    assert lines["Twins without fraternal twins (w/o FI, TL)", "mean"][-1] == "-1.00 (-1.00 to -1.00)"
    ((recipe, base, what, seeds, *values),) = _replicated.changed(result)[1]
    assert (recipe, base, what, seeds) == ("ConIsI-s", "", "interaction_weight=0.5", "1")
    assert values == ["90.00", "90.00", "+9.00", "+19.50"]


def test_no_baseline_of_other_data():
    cells = [_cell("mini-simcse", 0, 80, 70), _cell("mini-infocse", 0, 81, 71, data="b")]
    found = _replicated.groups(cells, "")
    assert _replicated.baseline(found["mini-infocse", ""], found) == {}
    cells[1]["data"] = "a"
    found = _replicated.groups(cells, "")
    assert _replicated.baseline(found["mini-infocse", ""], found)[0]["scores"]["stsb dev spearman"] == 0.8


def test_what_autograd_holds_is_counted_once():
    layer = torch.nn.Linear(4, 4)
    rows = torch.ones(3, 4, requires_grad=True)
    with Held(layer) as held:
        hidden = layer(rows)
        (hidden.sigmoid() * hidden.sigmoid()).sum().backward()
    # The input, and both sigmoids, each of 3 x 4 numbers; not the weight.
    assert held.bytes == 3 * 3 * 4 * 4
