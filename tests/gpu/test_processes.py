"""Training on several ranks: with NCCL on GPUs, as many as there are, or with gloo on the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.gpu import rank
from tests.gpu.cases import CUDA
from tests.processes import TORCHRUN, run_python


@pytest.mark.parametrize("ranks", [1, 2] if CUDA else [pytest.param(2, marks=pytest.mark.long)])
def test_ranks_have_the_gradient_of_one_process_and_do_not_drift(checkpoint, tmp_path, ranks):
    if CUDA and torch.cuda.device_count() < ranks:
        pytest.skip("there is one GPU")
    printed = run_python(*TORCHRUN, ranks, rank.__file__, checkpoint("bert"), tmp_path / "runs")
    assert printed.count("the gradient of one process") == len(rank.CASES)
    assert printed.count("no drift") == 2
    assert f"all done with {'nccl' if CUDA else 'gloo'}" in printed
