"""SIGKILL at random points, between checkpoints and in them: ``killed.py`` compares bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.killed import CASES

pytestmark = pytest.mark.long


def run(case, kills, bert, folder):
    (folder / "runs").mkdir()
    script = Path(__file__).with_name("killed.py")
    command = [sys.executable, str(script), case, str(kills), "3", str(bert), str(folder / "runs")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"{case}: {kills} kills" in done.stdout
    assert "logs are equal" in done.stdout


def test_a_run_killed_five_times_ends_as_one_that_was_not(checkpoint, tmp_path):
    run("twins", 5, checkpoint("bert-mlm"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_killed_ten_times(checkpoint, tmp_path, case):
    run(case, 10, checkpoint("bert-mlm"), tmp_path)
