"""The benchmarks' tables are those of the raw results, and their forms compute what the losses do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import tables
from benchmarks._forms import form, translations
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
