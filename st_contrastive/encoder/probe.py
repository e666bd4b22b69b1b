"""Probes: what an encoder can do is tried on a few tokens, so that no family has to be known by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from st_contrastive.encoder.model import encoder_of, tokenizer_of, unwrap


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
def probing(network: nn.Module, device: torch.device) -> Iterator[None]:
    """While open, passes draw no random number and keep nothing for a backward pass.

    Autocast is off: it would keep weights cast without their gradient.
    """
    with in_evaluation(network), torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def agree(one: Tensor, other: Tensor) -> bool:
    """Whether two results are finite and the same but for rounding, be it bfloat16's."""
    near = torch.allclose(one, other, rtol=1e-2, atol=1e-2 * float(one.std()))
    return near and bool(torch.isfinite(one).all())


class Probe:
    """A question to an encoder, asked once for each encoder and kind of attention."""

    def __init__(self, ask: Callable[[nn.Module], bool]) -> None:
        self._ask = ask
        self._asked: tuple[nn.Module, Any] | None = None
        self._answer = False

    def __call__(self, model: nn.Module) -> bool:
        """The answer."""
        encoder = encoder_of(model)
        asked = encoder, getattr(encoder.config, "_attn_implementation", None)
        if self._asked is None or self._asked[0] is not encoder or self._asked[1] != asked[1]:
            self._asked, self._answer = asked, self._ask(model)
        return self._answer


def ignores_padding(model: nn.Module) -> bool:
    """Whether the model makes the same of a text, its tokens and its sentence, with more padding behind it."""
    model = unwrap(model)
    encoder = encoder_of(model)

    def made(width: int) -> list[Tensor]:
        ids = torch.full((1, 12), int(tokenizer_of(model).pad_token_id or 0), device=encoder.device)
        vocabulary = cast(Tensor, encoder.get_input_embeddings().weight).shape[0]
        ids[0, :4] = (torch.arange(4, device=encoder.device) * 7 + 5) % vocabulary
        mask = (torch.arange(12, device=encoder.device) < 4).long()[None]
        output = model({"input_ids": ids[:, :width], "attention_mask": mask[:, :width], "modality": "text"})
        return [output["sentence_embedding"].float(), output["token_embeddings"][:, :4].float()]

    with probing(model, encoder.device):
        try:
            short, long = made(4), made(12)
        except Exception:  # whatever a family's code raises
            return False
    return all(agree(one, other) for one, other in zip(short, long, strict=True))
