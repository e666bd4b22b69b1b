"""Probes: passes on a few tokens that show what an encoder can do, instead of a list of families."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from st_contrastive.encoder.model import encoder_of, text_module, tokenizer_of, unwrap, vocabulary_size


@contextmanager
def modes_kept(module: nn.Module) -> Iterator[None]:
    """Afterwards, each part of the module is again in the training or evaluation mode that it had."""
    modes = {part: part.training for part in module.modules()}
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


@contextmanager
def in_evaluation(encoder: nn.Module) -> Iterator[None]:
    """While open, the module is in evaluation mode. Then each of its parts returns to the mode that it had."""
    with modes_kept(encoder):
        encoder.train(False)
        yield


@contextmanager
def probing(network: nn.Module, device: torch.device) -> Iterator[None]:
    """While open, passes draw no random numbers and keep nothing for a backward pass.

    Autocast is off, because it would cache casts made without a gradient.
    """
    # A short text switches BigBird's attention, which would stay switched.
    switching = [(part, part.attention_type) for part in network.modules() if hasattr(part, "set_attention_type")]
    with in_evaluation(network), torch.no_grad(), torch.autocast(device.type, enabled=False):
        try:
            yield
        finally:
            for part, kind in switching:
                if part.attention_type != kind:
                    cast(Any, part).set_attention_type(kind)


def agree(one: Tensor, other: Tensor) -> bool:
    """Whether two results are finite and equal up to rounding in bfloat16."""
    near = torch.allclose(one, other, rtol=1e-2, atol=1e-2 * float(one.std()))
    return near and bool(torch.isfinite(one).all())


def is_causal(model: nn.Module) -> bool:
    """Whether a token sees only itself and the tokens before it: another last token leaves the first one's state."""
    model = unwrap(model)
    encoder = encoder_of(model)
    ids = (torch.arange(8, device=encoder.device) * 7 + 5).repeat(2, 1)  # Funnel fails on shorter rows
    ids[1, -1] += 1
    ids %= vocabulary_size(model)
    with probing(model, encoder.device):
        try:
            states = text_module(model)({"input_ids": ids, "attention_mask": torch.ones_like(ids), "modality": "text"})
        except Exception:  # whatever a family's code raises
            return False
    one, other = states["token_embeddings"]
    return torch.equal(one[0], other[0]) and not torch.equal(one[-1], other[-1])


def ignores_padding(model: nn.Module) -> bool:
    """Whether more padding behind a text leaves its token vectors and sentence vector as they are."""
    model = unwrap(model)
    encoder = encoder_of(model)

    def vectors(width: int) -> list[Tensor]:
        ids = torch.full((1, 12), int(tokenizer_of(model).pad_token_id or 0), device=encoder.device)
        ids[0, :4] = (torch.arange(4, device=encoder.device) * 7 + 5) % vocabulary_size(model)
        mask = (torch.arange(12, device=encoder.device) < 4).long()[None]
        output = model({"input_ids": ids[:, :width], "attention_mask": mask[:, :width], "modality": "text"})
        return [output["sentence_embedding"].float(), output["token_embeddings"][:, :4].float()]

    with probing(model, encoder.device):
        try:
            short, long = vectors(4), vectors(12)
        except Exception:  # whatever a family's code raises
            return False
    return all(agree(one, other) for one, other in zip(short, long, strict=True))
