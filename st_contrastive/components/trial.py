"""How an encoder is tried: what is found out without knowing its family must leave no trace in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def in_evaluation(encoder: nn.Module) -> Iterator[None]:
    """While open, the module is in evaluation mode; each of its parts then has the mode that it had."""
    modes = {module: module.training for module in encoder.modules()}
    try:
        encoder.train(False)
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def in_trial(network: nn.Module, device: torch.device) -> Iterator[None]:
    """While open, passes draw no random number and keep nothing for a backward pass.

    Autocast is off: it would keep weights cast without their gradient.
    """
    with in_evaluation(network), torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def agree(one: Tensor, other: Tensor) -> bool:
    """Whether two results are finite and the same but for rounding, be it bfloat16's."""
    near = torch.allclose(one, other, rtol=1e-2, atol=1e-2 * float(one.std()))
    return near and bool(torch.isfinite(one).all())
