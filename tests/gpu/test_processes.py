"""Ranks under NCCL: one where there is one GPU, two where there are two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu import rank
from tests.gpu.cases import CUDA

SCRIPT = Path(__file__).with_name("rank.py")
ROOT = SCRIPT.parents[2]


@pytest.mark.parametrize("ranks", [1, 2] if CUDA else [pytest.param(2, marks=pytest.mark.long)])
def test_ranks_give_the_gradient_of_one_and_do_not_drift(checkpoint, tmp_path, ranks):
    if CUDA and torch.cuda.device_count() < ranks:
        pytest.skip("there is one GPU")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [str(SCRIPT), str(checkpoint("bert")), str(tmp_path / "runs")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("the gradient of one process") == len(rank.CASES)
    assert done.stdout.count("no drift") == 2
    assert f"all done with {'nccl' if CUDA else 'gloo'}" in done.stdout
