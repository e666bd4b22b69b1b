"""Gradients that are scaled on their way."""

from __future__ import annotations

from torch import Tensor


def scale_gradient(tensor: Tensor, factor: float) -> Tensor:
    """``tensor`` itself, whose gradient arrives multiplied by ``factor``.

    Example:
        >>> import torch
        >>> vector = torch.ones(2, requires_grad=True)
        >>> scale_gradient(vector, 0.25).sum().backward()
        >>> vector.grad
        tensor([0.2500, 0.2500])
    """
    if factor == 1:
        return tensor
    # Multiplied in float32. On the way back to half precision it is rounded there, as every gradient is.
    wide = tensor.float() if tensor.dtype.itemsize < 4 else tensor
    still = wide.detach()
    return (still + factor * (wide - still)).to(tensor.dtype)
