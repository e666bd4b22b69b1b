"""What an encoder is tried for, so that no family has to be known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from st_contrastive import _host
from st_contrastive.components.narrowing import gives_first_states
from st_contrastive.components.trial import agree, in_trial


class Trial:
    """A question to an encoder, asked once for each encoder and kind of attention."""

    def __init__(self, ask: Callable[[nn.Module], bool]) -> None:
        self._ask = ask
        self._asked: tuple[nn.Module, Any] | None = None
        self._answer = False

    def __call__(self, model: nn.Module) -> bool:
        """The answer."""
        encoder = _host.encoder_of(model)
        asked = encoder, getattr(encoder.config, "_attn_implementation", None)
        if self._asked is None or self._asked[0] is not encoder or self._asked[1] != asked[1]:
            self._asked, self._answer = asked, self._ask(model)
        return self._answer


def narrows(model: nn.Module) -> bool:
    """Whether the last layer may be computed for the first tokens alone."""
    return gives_first_states(_host.encoder_of(model))


def ignores_padding(model: nn.Module) -> bool:
    """Whether the model makes the same of a text, its tokens and its sentence, with more padding behind it."""
    model = _host.unwrap(model)
    encoder = _host.encoder_of(model)

    def made(width: int) -> list[Tensor]:
        ids = torch.full((1, 12), int(_host.tokenizer_of(model).pad_token_id or 0), device=encoder.device)
        vocabulary = cast(Tensor, encoder.get_input_embeddings().weight).shape[0]
        ids[0, :4] = (torch.arange(4, device=encoder.device) * 7 + 5) % vocabulary
        mask = (torch.arange(12, device=encoder.device) < 4).long()[None]
        output = model({"input_ids": ids[:, :width], "attention_mask": mask[:, :width], "modality": "text"})
        return [output["sentence_embedding"].float(), output["token_embeddings"][:, :4].float()]

    with in_trial(model, encoder.device):
        try:
            short, long = made(4), made(12)
        except Exception:  # whatever a family's code raises
            return False
    return all(agree(one, other) for one, other in zip(short, long, strict=True))
