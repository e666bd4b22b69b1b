"""Finds quantised layers, which can't be trained."""

from __future__ import annotations

import torch
from torch import nn

from st_contrastive.encoder.copies import has_adapters
from st_contrastive.encoder.model import get_encoder, unwrap

#: Packages whose layers, or the tensors in ordinary layers, are quantised, by the beginning of their modules' names.
_PACKAGES = (
    "torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torchao.", "optimum.", "gptqmodel.", "auto_gptq.",
    "awq.", "hqq.",
)  # fmt: skip
_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def quantised_layer(model: nn.Module) -> str | None:
    """The name of the first layer with quantised weights through which no gradient passes; None if there is none.

    The weights of bitsandbytes pass gradients to adapters, and count only without them.
    """
    with_adapters = has_adapters(get_encoder(model))
    for name, module in unwrap(model).named_modules():
        if _comes_from(module, _PACKAGES) or (not with_adapters and _has_integer_weights(module)):
            return f"{name}, a {type(module).__name__}"
    if not with_adapters and getattr(get_encoder(model).config, "quantization_config", None):
        return "its configuration has a quantization_config"
    return None


def _comes_from(module: nn.Module, packages: tuple[str, ...]) -> bool:
    parts = [module, *(weight.data for weight in module.parameters(recurse=False))]
    return any(type(part).__module__.startswith(packages) for part in parts)


def _has_integer_weights(module: nn.Module) -> bool:
    """Whether a layer's weights are integers, or packed in a buffer of integers in place of a weight."""
    weights = dict(module.named_parameters(recurse=False))
    packed = {name for name, buffer in module.named_buffers(recurse=False) if buffer.dtype in _INTEGERS}
    return any(weight.dtype in _INTEGERS for weight in weights.values()) or bool(packed & {"qweight", "weight"})
