"""Mixes the weights of an encoder before and after training."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_contrastive._arguments import Share, checked
from st_contrastive.encoder.copies import adapter_names
from st_contrastive.encoder.model_facts import get_tokenizer


@torch.no_grad()
@checked
def interpolate_weights(model: nn.Module, start: SentenceTransformer | Mapping[str, Tensor], alpha: Share) -> None:
    """Set the weights of ``model`` to ``(1 - alpha) * start + alpha * model``, in place.

    Training can improve some abilities of an encoder and harm others. A mixture may keep part of the old and of the new
    abilities (WiSE-FT, Wortsman et al., 2022, section 3). Floating-point buffers are mixed too.

    Args:
        model: the trained model.
        start: the model before training, such as the same checkpoint loaded again, or a copy of its ``state_dict()``.
            It is not changed.
        alpha: share of the trained weights, from 0 (only ``start``) to 1.

    Raises:
        ValueError: ``alpha`` is not between 0 and 1, or the models share weights, have adapters, or differ in the names
            or shapes of their weights or in their vocabularies.
    """
    # An adapter is a product of two matrices, and a mean of products is not the product of the means.
    if adapters := adapter_names(model):
        raise ValueError(
            f"model has adapters, such as {adapters[0]}, which can't be mixed. Merge them into the encoder first, or "
            "train without mixing."
        )
    if isinstance(start, SentenceTransformer) and get_tokenizer(model).get_vocab() != get_tokenizer(start).get_vocab():
        raise ValueError("model and start have different vocabularies. Use the same encoder before and after training.")
    trained, first = model.state_dict(), start if isinstance(start, Mapping) else start.state_dict()
    for name in sorted(trained.keys() | first.keys()):
        shapes = [tuple(state[name].shape) if name in state else "missing" for state in (trained, first)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"The weight {name} is {shapes[0]} in model and {shapes[1]} in start. Use the same encoder before and "
                "after training."
            )
        if trained[name].data_ptr() == first[name].data_ptr() and trained[name].numel():
            raise ValueError("start shares its weights with model. Load it again, or copy the model before training.")
    once = {(weight.data_ptr(), weight.shape): (name, weight) for name, weight in trained.items()}  # tied weights
    for name, weight in once.values():
        # Mixing equal infinities of a buffer would give NaN, so equal values are kept.
        if weight.is_floating_point() and not torch.equal(weight, old := first[name].to(weight)):
            wide = torch.promote_types(weight.dtype, torch.float32)
            mixed = (1 - alpha) * old.to(wide) + alpha * weight.to(wide)
            weight.copy_(torch.where(weight == old, weight, mixed.to(weight.dtype)))
