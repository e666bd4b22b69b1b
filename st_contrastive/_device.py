"""Numbers that the device computes and the host must know, fetched without holding the device up."""

from __future__ import annotations

import torch
from torch import Tensor


class HostValue:
    """A small tensor on its way to the host.

    A CUDA device works behind the host, and reading one number waits for all that it was given before. Here the copy is
    ordered when the value is made, so that reading it later waits for no work that was given since: a step that draws
    first, gives the encoder its pass and reads then leaves the device busy all along.

    Example:
        >>> import torch
        >>> HostValue(torch.arange(3).sum()).read().item()
        3
    """

    def __init__(self, value: Tensor) -> None:
        self._value = value.detach()
        self._copied: torch.cuda.Event | None = None
        if value.is_cuda:
            self._value = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
            self._value.copy_(value.detach(), non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(value.device))

    def read(self) -> Tensor:
        """The value, on the host."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._value.cpu()
