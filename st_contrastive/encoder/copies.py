"""Copies of an encoder that belong to a loss."""

from __future__ import annotations

import copy
from typing import Any, TypeVar, cast

from torch import nn
from transformers import PreTrainedModel

from st_contrastive.encoder.quantised_weights import find_quantised_weight

Module = TypeVar("Module", bound=nn.Module)


def copy_encoder(encoder: PreTrainedModel) -> PreTrainedModel:
    """Copy an encoder without its pooler. Adapters such as LoRA are merged, and all weights are trainable."""
    network = copy_module(encoder)
    network = _merged(network) if has_adapters(network) else network
    if getattr(network, "pooler", None) is not None:
        network.pooler = None  # type: ignore[assignment]
    return network


def copy_sharing_weights(module: Module) -> Module:
    """Copy a module without its hooks, but share weights and buffers. A pass through the copy has no side effects."""
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return _without_hooks(copy.deepcopy(module, shared))


def copy_module(module: Module) -> Module:
    """Copy a module without gradients, hooks and gradient checkpointing.

    Gradient checkpointing would run a layer again without the states that a loss had put into it.
    """
    if weight := find_quantised_weight(module):
        raise ValueError(
            "This loss trains or averages a copy of the encoder, which is impossible with quantised weights "
            f"({weight}). Load the model unquantised, or use SimCSELoss, ConIsILoss or TwinsLoss, which copy nothing."
        )
    clone = copy.deepcopy(module)
    clone.zero_grad(set_to_none=True)
    return _without_hooks(clone)


def _without_hooks(clone: Module) -> Module:
    for part in clone.modules():
        for name, value in vars(part).items():
            if "_hooks" in name and isinstance(value, dict):
                value.clear()
        # transformers installs its hooks that record layer states again when it needs them.
        vars(part).pop("_output_capturing_hooks_installed", None)
        if getattr(part, "gradient_checkpointing", False):
            part.gradient_checkpointing = False  # type: ignore[assignment]
    return clone


def has_adapters(encoder: PreTrainedModel) -> bool:
    """Whether the encoder contains adapters of PEFT, or is wrapped by PEFT."""
    return bool(getattr(encoder, "peft_config", None))


def adapter_names(model: nn.Module) -> list[str]:
    """Names of the parameters that belong to adapters of PEFT or of the adapters library."""
    parts = {name for module in model.modules() for name in getattr(module, "adapter_layer_names", ())}
    return [name for name, _ in model.named_parameters() if ".adapter" in name or parts & {*name.split(".")}]


def _merged(network: Any) -> PreTrainedModel:
    """Merge the active adapters into the network's weights.

    Neither PEFT nor transformers can merge adapters that ``add_adapter`` has inserted. This function calls the merge
    methods of PEFT's layers. It recognises the layers by these methods, because PEFT may not be installed.
    """
    try:
        if hasattr(network, "merge_and_unload"):  # a PeftModel around the encoder
            network = network.merge_and_unload()
        replaced: list[str] = []
        for path, module in list(network.named_modules()):
            if any(path.startswith(f"{above}.") for above in replaced):
                continue
            if hasattr(module, "unload_and_optionally_merge_module"):
                plain = module.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
            elif hasattr(module, "base_layer") and hasattr(module, "merge"):
                if not module.disable_adapters and not module.merged:
                    module.merge()
                plain = module.get_base_layer()
            else:
                continue
            network.set_submodule(path, plain)
            replaced.append(path)
    except (NotImplementedError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"The encoder's adapters can't be merged into the copy that this loss trains ({error}). Merge them into "
            "the encoder first, use LoRA, or use SimCSELoss, ConIsILoss or TwinsLoss, which copy nothing."
        ) from error
    vars(network).pop("peft_config", None)
    network._hf_peft_config_loaded = False
    cast(nn.Module, network).requires_grad_(True)
    return cast(PreTrainedModel, network)
