"""What every objective does before its equation: full precision, and a message for a wrong shape."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor


def full_precision(tensor: Tensor) -> Tensor:
    """Half-precision input becomes float32; float32 and float64 stay.

    At a temperature of 0.05 a cosine is multiplied by 20, so that bfloat16's eight bits would round every logit to
    steps of about 0.1.
    """
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def without_autocast(tensor: Tensor) -> AbstractContextManager[None]:
    """Autocast would turn the matrix products below back into half precision; this switches it off."""
    return torch.autocast(tensor.device.type, enabled=False)


def cosine_matrix(rows: Tensor, columns: Tensor) -> Tensor:
    """Cosine of each row vector of ``rows`` (N, d) with each of ``columns`` (M, d): (N, M)."""
    with without_autocast(rows):
        left = F.normalize(full_precision(rows), dim=-1)
        right = F.normalize(full_precision(columns), dim=-1)
        return left @ right.to(left.dtype).T


def cosine_pairs(left: Tensor, right: Tensor) -> Tensor:
    """Cosine of the i-th row of ``left`` with the i-th row of ``right``, both (N, d): (N,)."""
    with without_autocast(left):
        return (F.normalize(full_precision(left), dim=-1) * F.normalize(full_precision(right), dim=-1)).sum(dim=-1)


def require_matrix(name: str, tensor: Tensor, width: int | None = None) -> None:
    """Refuse anything but a 2-d tensor, of ``width`` columns where one is given."""
    if tensor.ndim != 2:
        raise ValueError(f"{name} must have shape (rows, width), got {tuple(tensor.shape)}.")
    if width is not None and tensor.shape[1] != width:
        raise ValueError(f"{name} must be {width} wide, as the anchors are, got {tensor.shape[1]}.")


def require_same_shape(**tensors: Tensor) -> None:
    """Refuse tensors of different shapes, naming each."""
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(f"These must have one shape: {shapes}.")


def require_temperature(temperature: float) -> None:
    """Refuse a temperature that is not a positive number."""
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature!r}; the papers use 0.05.")
