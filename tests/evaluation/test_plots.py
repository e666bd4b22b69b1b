from __future__ import annotations

import sys

import pytest

from st_contrastive.evaluation import STSPairs, plot
from tests.evaluation.encoders import Letters

PAIRS = STSPairs(("a", "ab", "a", "c"), ("aab", "ab", "c", "b"), (5.0, 4.5, 4.0, 0.0))


def test_a_picture(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    drawn, saved = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: drawn.append(self) or saved(self, *a, **k))
    plot(tmp_path / "p.png", {"before": Letters(), "after": Letters("ab")}, PAIRS)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    axes = drawn[0].axes
    assert [axis.get_title() for axis in axes] == ["before", "after"]
    gold, medians = axes[0].lines
    assert gold.get_xydata().tolist() == [[0, 0], [5, 1]]
    # Bands of width 1: the lowest holds a cosine of 0; the highest 2 / sqrt(5), 1 and 0.
    assert medians.get_xydata().flatten().tolist() == pytest.approx([0.5, 0.0, 4.5, 2 / 5**0.5])


def test_matplotlib_is_optional(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="plots"):
        plot(tmp_path / "p.png", {"letters": Letters()}, PAIRS)
