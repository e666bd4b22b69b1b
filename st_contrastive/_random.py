"""Random numbers that do not depend on what was drawn before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def fixed_draws(device: torch.device) -> Iterator[None]:
    """While open, PyTorch draws the numbers of seed 0 on the CPU and on the device. Then both go on as before."""
    devices = [device] if device.type != "cpu" and torch.accelerator.is_available() else []
    with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        torch.manual_seed(0)
        yield
