from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from st_contrastive.evaluation import Report, Score, compare, write


def report(name, *values, notes=()):
    scores = zip(("a", "b"), values, strict=True)
    return Report(name, tuple(Score(task, "test", "spearman", value, 1000) for task, value in scores), {}, notes)


def test_a_table_of_one_model():
    one = report("m", 0.5, 0.25)
    assert compare([one]).splitlines()[2:] == [
        "a      test  spearman  1,000  50.00",
        "b      test  spearman  1,000  25.00",
        "mean   test  spearman         37.50",
    ]
    assert one.value("b", "test") == 0.25
    assert one.mean("test", "spearman") == 0.375
    assert math.isnan(one.mean("dev", "spearman"))
    with pytest.raises(KeyError, match="c"):
        one.value("c", "test")


def test_a_table_of_several_models():
    before, after = report("runs/x/model", 0.5, 0.25), report("runs/y/model", 0.6, math.nan, notes=("b: why",))
    lines = compare([before, after]).splitlines()
    assert lines[0].split()[-5:] == ["x/model", "y/model", "y/model", "-", "x/model"]
    assert lines[2].split()[-3:] == ["50.00", "60.00", "+10.00"]
    assert lines[3].split()[-3:] == ["25.00", "nan", "+nan"]
    assert lines[-1] == "y/model: b: why"
    assert lines[4].split()[-3:] == ["37.50", "nan", "+nan"]
    one_task = Report("runs/z", (Score("a", "test", "spearman", 0.7, 1000),))
    assert not any(line.startswith("mean") for line in compare([before, one_task]).splitlines())  # of different tasks
    third = Report("z", (Score("a", "test", "uniformity", -2.0, 5),))
    rows = compare([before, third]).splitlines()
    assert rows[-2].split()[-3:] == ["nan", "-2.000", "+nan"]  # the first model has no such score


def test_a_report_is_written_whole(tmp_path):
    write([report("m", math.nan, 0.5)], tmp_path / "r.json")
    (written,) = json.loads((tmp_path / "r.json").read_text())
    assert [score["value"] for score in written["scores"]] == [None, 0.5]
    assert written["model"] == "m"
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write([report("m", 0.1, 0.2)], tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "r.json"]


def test_parsers_accept_the_json(tmp_path):
    """JSON has no NaN and no infinity, wherever they are."""

    def refuse(constant):
        raise AssertionError(constant)

    settings = {
        "max_length": math.inf, "nested": {"low": -math.inf, "pair": (math.nan, 1)}, 3: np.float32("nan"),
        "rows": np.array([1.5, np.inf]), "count": np.int64(2), "path": tmp_path, "is_true": True,
        "tensor": torch.ones(1),
    }  # fmt: skip
    write([Report("m", (Score("a", "test", "spearman", -math.inf, 3),), settings)], tmp_path / "r.json")
    (read,) = json.loads((tmp_path / "r.json").read_text(), parse_constant=refuse)
    assert read["scores"][0]["value"] is None
    assert read["settings"] == {
        "max_length": None, "nested": {"low": None, "pair": [None, 1]}, "3": None, "rows": [1.5, None], "count": 2,
        "path": str(tmp_path), "is_true": True, "tensor": [1.0],
    }  # fmt: skip
