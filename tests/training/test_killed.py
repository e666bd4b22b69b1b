"""SIGKILL at random points, between checkpoints and in them: ``killed.py`` compares bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.killed import CASES

pytestmark = pytest.mark.long


@pytest.mark.parametrize("case", CASES)
def test_killed_ten_times(checkpoint, tmp_path, case):
    (tmp_path / "runs").mkdir()
    script = Path(__file__).with_name("killed.py")
    command = [sys.executable, str(script), case, "10", "3", str(checkpoint("bert-mlm")), str(tmp_path / "runs")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{case}: 10 kills" in done.stdout
    assert "logs are equal" in done.stdout
