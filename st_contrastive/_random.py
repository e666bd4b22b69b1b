"""Random numbers that do not depend on what was drawn before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def fixed_draws(device: torch.device) -> Iterator[None]:
    """While open, PyTorch draws the numbers of seed 0 on the CPU and on the device. Then both go on as before.

    Example:
        >>> import torch
        >>> with fixed_draws(torch.device("cpu")):
        ...     first = torch.rand(2)
        >>> with fixed_draws(torch.device("cpu")):
        ...     print(torch.equal(first, torch.rand(2)))
        True
    """
    devices = [device] if device.type != "cpu" and torch.accelerator.is_available() else []
    with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        torch.default_generator.manual_seed(0)
        for one in devices:  # torch.manual_seed would also seed the other devices, which are not put back
            torch.get_device_module(one).set_rng_state(torch.Generator(one).manual_seed(0).get_state(), one)
        yield
