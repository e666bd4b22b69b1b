"""Mixing a trained encoder's weights with those before training. ``recipes/_run.py`` decides what is saved."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn

from st_contrastive._arguments import Share, checked
from st_contrastive.encoder.model_facts import get_tokenizer


@torch.no_grad()
@checked
def interpolate_weights(model: nn.Module, start: SentenceTransformer | Mapping[str, Tensor], alpha: Share) -> None:
    """Set the weights of ``model`` to ``(1 - alpha) * start + alpha * model``, in place.

    Training can improve some abilities of an encoder and harm others; a mixture may keep part of both: WiSE-FT
    (Wortsman et al., 2022, section 3). Buffers are mixed too, but not integers.

    Args:
        model: the trained model.
        start: the model before training, such as the same checkpoint loaded again, or a copy of its ``state_dict()``;
            it is not changed.
        alpha: share of the trained weights, 0 (``start``'s) to 1.

    Raises:
        ValueError: ``alpha`` is not from 0 to 1; the models share weights, differ in their names or shapes or in their
            vocabularies, or have adapters.
    """
    # The mean of two products is not the product of their means.
    if adapters := [name for name, _ in model.named_parameters() if "lora_" in name or ".adapter" in name]:
        raise ValueError(
            f"model has adapters, such as {adapters[0]}, whose factors can't be mixed. Merge them into the encoder "
            "first, or train without mixing."
        )
    if isinstance(start, SentenceTransformer) and get_tokenizer(model).get_vocab() != get_tokenizer(start).get_vocab():
        raise ValueError("model and start have tokenizers of other vocabularies: give one encoder, before and after.")
    trained, first = model.state_dict(), start if isinstance(start, Mapping) else start.state_dict()
    for name in sorted(trained.keys() | first.keys()):
        shapes = [tuple(state[name].shape) if name in state else "missing" for state in (trained, first)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"The weight {name} is {shapes[0]} in model and {shapes[1]} in start: give one encoder.")
        if trained[name].data_ptr() == first[name].data_ptr() and trained[name].numel():
            raise ValueError("start shares its weights with model: load it again, or copy the model before training.")
    once = {(weight.data_ptr(), weight.shape): (name, weight) for name, weight in trained.items()}  # tied weights
    for name, weight in once.values():
        # Equal values are not computed, which would make NaN of a buffer's infinities.
        if weight.is_floating_point() and not torch.equal(weight, old := first[name].to(weight)):
            wide = torch.promote_types(weight.dtype, torch.float32)
            mixed = (1 - alpha) * old.to(wide) + alpha * weight.to(wide)
            weight.copy_(torch.where(weight == old, weight, mixed.to(weight.dtype)))
