"""The device of these tests, and what they need of the environment."""

from __future__ import annotations

import os

import pytest
import torch

from tests.gpu.cases import DEVICE

# Read when cuBLAS is first used: without it, its results differ from run to run.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture
def device():
    """The GPU where there is one, else the CPU; float32 products at full precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield DEVICE
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def deterministic():
    """An operation without a deterministic form is an error."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
