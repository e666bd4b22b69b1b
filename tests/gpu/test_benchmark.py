"""The GPU benchmark runs on a CPU with a tiny encoder, and goes on where it stopped."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import _gpu_model, gpu
from st_contrastive.distributed import HostValue
from tests.filters import TRAINING

pytestmark = [*TRAINING, pytest.mark.filterwarnings("default")]
ONE_OF_EACH = (
    "steps: SimCSE 4 tf32",
    "options: InfoCSE 4 bf16",
    "large: MultipleNegativesRankingLoss 12 bf16",
    "end to end: Twins 4 bf16",
    "other losses: Momentum 4 bf16",
    "compiled: ConIsI 4 bf16",
)


def smoke(path, chosen, monkeypatch):
    cells = gpu.Bench.cells
    monkeypatch.setattr(
        gpu.Bench, "cells", lambda self: [cell for cell in cells(self) if chosen(f"{cell[0]}: {cell[1]}")]
    )
    assert gpu.main(["--device", "cpu", "--smoke", "--minutes", "600", "--json", str(path)]) == 0
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


@pytest.mark.long
def test_each_kind_of_cell_is_measured(tmp_path, monkeypatch):
    found = smoke(tmp_path / "gpu.json", ONE_OF_EACH.__contains__, monkeypatch)
    assert list(found) == list(ONE_OF_EACH)
    assert not [cell["where"] for cell in found.values() if "failed" in cell]
    steps = found["steps: SimCSE 4 tf32"]
    assert set(steps["ms"]) == set(steps["tflop"]) == {"ours", "passes", "straightforward", "library"}
    assert all(value > 0 for value in steps["ms"].values())
    assert steps["tflop"]["ours"] > 0
    assert set(found["options: InfoCSE 4 bf16"]["over_as_it_is"]) == {
        "last layer whole", "rows grouped by length", "numbers read at once",
    }  # fmt: skip
    assert found["end to end: Twins 4 bf16"]["0 workers"]["measured_steps"] == 2


def test_a_cell_is_measured(tmp_path, monkeypatch):
    (found,) = smoke(tmp_path / "gpu.json", ONE_OF_EACH[0].__eq__, monkeypatch).values()
    assert "failed" not in found, found["where"]
    assert all(value > 0 for value in found["ms"].values())


@pytest.mark.slow
def test_every_cell_is_measured(tmp_path, monkeypatch):
    found = smoke(tmp_path / "gpu.json", lambda name: True, monkeypatch)
    assert not {name: cell["where"] for name, cell in found.items() if "failed" in cell}
    assert len(found) == 4 * 3 + 5 + 5 + len(gpu.OTHERS) + 4


def test_it_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    measured = []

    class Bench:
        def __init__(self, *_):
            pass

        def cells(self):
            def measure(name):
                measured.append(name)
                if name == "b" and measured.count("b") < 2:
                    raise ValueError("out of something")
                return {"ms": {"ours": 1.0}}

            return [("steps", name, lambda name=name: measure(name)) for name in "abc"]

    monkeypatch.setattr(gpu, "Bench", Bench)
    words = ["--device", "cpu", "--smoke", "--json", str(tmp_path / "gpu.json")]
    gpu.main([*words, "--minutes", "0"])
    assert measured == []
    assert "0 of 3 cells" in capsys.readouterr().out
    gpu.main(words)
    assert measured == ["a", "b", "c"]
    assert "2 of 3 cells" in capsys.readouterr().out
    found = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["cells"]
    assert found["steps: b"]["failed"] == "ValueError: out of something"
    gpu.main(words)
    gpu.main(words)
    assert measured == ["a", "b", "c", "b"]
    monkeypatch.setattr(gpu, "about", lambda args: {"device": "another"})
    with pytest.raises(SystemExit, match="name another --json"):
        gpu.main(words)


def test_what_is_wrong_is_said(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="name a file of its own"):
        gpu.main(["--device", "cpu", "--smoke"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="No CUDA device was found"):
        gpu.main(["--json", str(tmp_path / "gpu.json")])


def test_texts_are_words_of_the_vocabulary(tmp_path):
    texts = _gpu_model.sentences(50, 600)
    assert texts == _gpu_model.sentences(50, 600)
    assert {5 <= len(text.split()) <= 60 for text in texts} == {True}
    _gpu_model.save(tmp_path, _gpu_model.TINY)
    tokenizer = _gpu_model.load(tmp_path, 16).tokenizer
    assert len(tokenizer) == 600
    assert tokenizer.unk_token_id not in {token for text in texts for token in tokenizer(text)["input_ids"]}


def test_numbers_can_be_read_at_once():
    with gpu.read_at_once():
        assert HostValue(torch.tensor(3)).read().item() == 3


def test_a_tokenizer_gives_what_it_gave_before():
    calls = []

    def tokenizer(*columns, **options):
        calls.append(columns)
        return {"input_ids": torch.ones(len(columns[0]), 2)}

    once = gpu.TokenisedOnce(tokenizer, torch.device("cpu"))
    for texts in (["a", "b"], ["a", "b"], ["c"]):
        assert once(texts, padding="max_length")["input_ids"].shape == (len(texts), 2)
    assert len(calls) == 2
