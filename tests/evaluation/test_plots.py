from __future__ import annotations

import json
import sys

import pytest

from st_contrastive.evaluation import EvaluationDataError, STSPairs, plot, read_curves
from tests.evaluation.encoders import Letters

PAIRS = STSPairs(("a", "ab", "a", "c"), ("aab", "ab", "c", "b"), (5.0, 4.5, 4.0, 0.0))


def state(folder, *entries):
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": entries}))


def test_curves_are_of_the_newest_checkpoint(tmp_path):
    assert read_curves(tmp_path) == {}
    first = {"step": 2, "loss": 0.5, "contrastive": 0.4, "learning_rate": 1e-5, "grad_norm": 1.0, "epoch": 0.1}
    state(tmp_path / "checkpoint-2", first)
    last = {"step": 4, "eval_dev_spearman": 0.8, "eval_runtime": 3.0, "train_loss": 1.0, "epoch": 0.2}
    state(tmp_path / "checkpoint-10", first, last)
    curves = read_curves(tmp_path)
    assert curves == {"loss": [(2, 0.5)], "contrastive": [(2, 0.4)], "eval_dev_spearman": [(4, 0.8)]}
    assert read_curves(tmp_path / "checkpoint-10") == curves
    (tmp_path / "trainer_state.json").write_text("{}")
    with pytest.raises(EvaluationDataError, match=r"trainer_state\.json"):
        read_curves(tmp_path)


def test_a_picture(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    drawn, saved = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: drawn.append(self) or saved(self, *a, **k))
    curves = {"run": {"loss": [(1, 0.5), (2, 0.4)], "eval_dev_spearman": [(2, 0.8)]}}
    plot(tmp_path / "p.png", {"before": Letters(), "after": Letters("ab")}, PAIRS, curves)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    axes = drawn[0].axes
    assert [axis.get_title() for axis in axes] == ["before", "after", "run: loss", "run: evaluation"]
    gold, medians = axes[0].lines
    assert gold.get_xydata().tolist() == [[0, 0], [5, 1]]
    # Bands of width 1: the lowest holds a cosine of 0; the highest 2 / sqrt(5), 1 and 0.
    assert medians.get_xydata().flatten().tolist() == pytest.approx([0.5, 0.0, 4.5, 2 / 5**0.5])
    assert axes[2].lines[0].get_xydata().tolist() == [[1, 0.5], [2, 0.4]]
    with pytest.raises(EvaluationDataError, match="nothing to draw"):
        plot(tmp_path / "q.png", {"letters": Letters()}, None, {"run": {}})


def test_matplotlib_is_optional(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="plots"):
        plot(tmp_path / "p.png", {"letters": Letters()}, PAIRS, {})
