"""Random numbers that do not depend on earlier draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def fixed_seed() -> Iterator[None]:
    """While open, PyTorch draws from seed 0 on every device. Afterwards the generators continue as before."""
    # torch 2.6 raises an error if there is no accelerator.
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device_type = "cuda" if accelerator is None else accelerator.type
    with torch.random.fork_rng(range(torch.accelerator.device_count()), device_type=device_type):
        torch.manual_seed(0)
        yield
