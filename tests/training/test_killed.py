"""SIGKILL at random points, between checkpoints and in them: ``killed.py`` compares bit for bit."""

from __future__ import annotations

import pytest

from tests.processes import run_python
from tests.training import killed

pytestmark = pytest.mark.long


@pytest.mark.parametrize("case", killed.CASES)
def test_killed_ten_times(checkpoint, tmp_path, case):
    (tmp_path / "runs").mkdir()
    printed = run_python(killed.__file__, case, 10, 3, checkpoint("bert-mlm"), tmp_path / "runs")
    assert f"{case}: 10 kills" in printed
    assert "tensors are equal" in printed
