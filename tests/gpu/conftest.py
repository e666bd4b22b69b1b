"""Fixtures for the device of these tests and its precision."""

from __future__ import annotations

import os

import pytest
import torch

from tests.gpu.cases import DEVICE

# Without this variable, the results of cuBLAS differ between runs. cuBLAS reads it at its first use.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture
def device():
    """The GPU, or the CPU if there is none. Products of float32 have full precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield DEVICE
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def deterministic_algorithms():
    """Operations without a deterministic algorithm raise an error."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
