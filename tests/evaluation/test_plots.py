"""Pictures, read back from the figure."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from st_contrastive.evaluation import STSPairs, plot_similarities, plot_training
from tests.evaluation.encoders import Letters

PAIRS = STSPairs(("a", "ab", "a", "c"), ("aab", "ab", "c", "b"), (5.0, 4.5, 4.0, 0.0))
COSINES = [2 / 5**0.5, 1, 0, 0]


def test_a_panel_for_each_model(tmp_path):
    models = {"before": Letters(), "after": np.array([0.9, 0.8, 0.5, 0.1])}
    figure = plot_similarities(tmp_path / "p.png", models, PAIRS)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    before, after = figure.axes
    assert before.get_title() == "before: Spearman 73.79"  # ranks 3, 4, 1.5, 1.5 against 4, 3, 2, 1
    assert after.get_title() == "after: Spearman 100.00"
    np.testing.assert_allclose(before.collections[0].get_offsets(), np.column_stack([PAIRS.scores, COSINES]))
    np.testing.assert_allclose(after.collections[0].get_offsets()[:, 1], models["after"])
    for panel in (before, after):
        ideal, medians = panel.lines
        assert ideal.get_xydata().tolist() == [[0, 0], [5, 1]]
        # Two bands of width 1 hold a pair. The median of the highest is that of three.
        assert medians.get_xdata().tolist() == [0.5, 4.5]
    assert before.lines[1].get_ydata().tolist() == pytest.approx([0, 2 / 5**0.5])
    assert after.lines[1].get_ydata().tolist() == pytest.approx([0.1, 0.8])


@pytest.mark.parametrize("scale", [0.2, 20])
def test_any_scale_of_gold_scores(tmp_path, scale):
    scaled = STSPairs(PAIRS.first, PAIRS.second, tuple(scale * score for score in PAIRS.scores))
    (panel,) = plot_similarities(tmp_path / "p.svg", {"m": Letters()}, scaled).axes
    assert panel.lines[0].get_xydata().flatten().tolist() == pytest.approx([0, 0, 5 * scale, 1])
    assert (tmp_path / "p.svg").read_text().startswith("<?xml")


def write_state(folder, *history):
    folder.mkdir(parents=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))


def test_the_curves_of_two_runs(tmp_path):
    write_state(
        tmp_path / "one", {"step": 0, "eval_dev_spearman": 0.5}, {"step": 10, "loss": 2.0, "learning_rate": 0.1},
        {"step": 10, "eval_dev_spearman": 0.6, "eval_runtime": 3.0, "eval_samples_per_second": 9.0},
        {"step": 20, "eval_dev_spearman": 0.7, "eval_loss": 1.5},
    )  # fmt: skip
    write_state(tmp_path / "two" / "checkpoint-9", {"step": 9, "loss": 7.0})
    write_state(tmp_path / "two" / "checkpoint-10", {"step": 5, "loss": 1.0}, {"step": 10, "loss": float("nan")})
    figure = plot_training(tmp_path / "c.pdf", {"one": tmp_path / "one", "two": tmp_path / "two"})
    curves = {
        panel.get_ylabel(): {line.get_label(): line.get_xydata().tolist() for line in panel.lines}
        for panel in figure.axes
    }
    assert [*curves] == ["dev_spearman", "eval_loss", "loss"]
    assert curves["dev_spearman"] == {"one": [[0, 0.5], [10, 0.6], [20, 0.7]]}
    assert curves["eval_loss"] == {"one": [[20, 1.5]]}
    assert curves["loss"]["one"] == [[10, 2.0]]
    assert curves["loss"]["two"][0] == [5, 1.0]
    assert len(curves["loss"]["two"]) == 2
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")


def test_what_cannot_be_drawn(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="holds no trainer_state"):
        plot_training(tmp_path / "c.png", {"run": tmp_path})
    write_state(tmp_path / "run", {"step": 1, "epoch": 1.0})
    with pytest.raises(ValueError, match="no score or loss"):
        plot_training(tmp_path / "c.png", {"run": tmp_path / "run"})
    with pytest.raises(ValueError, match=r"must end in \.png, \.pdf or \.svg"):
        plot_similarities(tmp_path / "p.jpeg", {"m": Letters()}, PAIRS)
    with pytest.raises(ValueError, match="models is empty"):
        plot_similarities(tmp_path / "p.png", {}, PAIRS)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"\.\[plots\]"):
        plot_similarities(tmp_path / "p.png", {"m": Letters()}, PAIRS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
