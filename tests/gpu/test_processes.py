"""Ranks under NCCL: one where there is one GPU, two where there are two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.gpu import rank
from tests.gpu.cases import CUDA

SCRIPT = Path(__file__).with_name("rank.py")
ROOT = SCRIPT.parents[2]

pytestmark = pytest.mark.filterwarnings("ignore:.*takes the encoder's dropout as its only")


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


def test_what_a_rank_does_is_right_in_one_process(checkpoint, capsys):
    try:
        rank.check_gradients(
            str(checkpoint("bert")),
            torch.device("cpu"),
            ["twins"],
            lambda: dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1),
        )
        assert capsys.readouterr().out.splitlines() == ["twins: the gradient of one process"]
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def test_shares_are_uneven_and_cover_all_rows():
    assert rank.shares_of(1) == [(0, 2)]
    assert rank.shares_of(2) == [(0, 3), (3, 5)]
