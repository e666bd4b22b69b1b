"""Detects quantised weights, which training does not change."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn


def find_packed_weights(model: nn.Module) -> str | None:
    """The name of a module with weights packed by torch.ao, or None. Its output has no gradient for its input."""
    for name, module in model.named_modules():
        # torch.ao keeps packed weights in TorchScript objects. Scripted modules also contain such objects, but can be
        # trained.
        has_objects = any(isinstance(value, torch.ScriptObject) for value in vars(module).values())
        if has_objects and not isinstance(module, torch.jit.ScriptModule):
            return str(name)
    return None


def find_quantised_weight(model: nn.Module) -> str | None:
    """The name and type of a weight in integers or 8-bit floats, such as "0.weight is torch.int8", or None."""
    for path, module in model.named_modules():
        tensors: list[tuple[str, Tensor]] = list(module.named_parameters(recurse=False))
        if next(module.children(), None) is None:  # buffers of other modules may be masks
            others = chain(module.named_buffers(recurse=False), vars(module).items())
            tensors += [(name, value) for name, value in others if isinstance(value, Tensor) and value.ndim > 1]
        for name, tensor in tensors:
            if dtype := _quantised_dtype(tensor):
                return f"{path}.{name} is {dtype}".lstrip(".")
    return None


def _quantised_dtype(tensor: Tensor) -> torch.dtype | None:
    if hasattr(tensor, "__tensor_flatten__"):  # a wrapper such as torchao's, which states the dtype that it replaces
        names, _ = tensor.__tensor_flatten__()
        return next(filter(None, (_quantised_dtype(getattr(tensor, name)) for name in names)), None)
    dtype = tensor.dtype
    is_float = dtype.is_floating_point and dtype.itemsize > 1
    return None if is_float or dtype.is_complex or dtype in (torch.bool, torch.int64) else dtype
