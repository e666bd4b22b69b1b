"""A masked-LM head of the encoder's own family, from its checkpoint where that has one."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast, final

from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging as transformers_logging

logger = logging.getLogger(__name__)


class _PassThrough(nn.Module):
    """Stands where the masked-LM model had its encoder: what comes in is taken as the last hidden states."""

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=inputs_embeds)


@final
class MaskedLMHead(nn.Module):
    """Vocabulary logits from hidden states, by transformers' own masked-LM class of the encoder's family.

    Use :meth:`for_encoder`. The encoder inside the masked-LM model is taken out, so that only the head remains.

    Args:
        model: a masked-LM model; its encoder is replaced by a stand-in.
        source: "checkpoint" where the head's weights were loaded, "tied" where they are new and the decoder is tied to
            an embedding matrix.
    """

    def __init__(self, model: PreTrainedModel, source: Literal["checkpoint", "tied"]) -> None:
        super().__init__()
        setattr(model, model.base_model_prefix, _PassThrough())
        self.network = model
        self.source: Literal["checkpoint", "tied"] = source

    @classmethod
    def for_encoder(cls, encoder: PreTrainedModel, embeddings: nn.Module) -> MaskedLMHead:
        """The checkpoint's head where it has one; otherwise a new one, its decoder tied to ``embeddings.weight``.

        Args:
            encoder: its config names the family and the checkpoint (a folder or a hub name).
            embeddings: an input-embedding layer of the same vocabulary and width as the encoder's.

        Raises:
            ValueError: transformers has no masked-LM class for this family.
        """
        config = copy.deepcopy(encoder.config)
        config.num_hidden_layers = 1  # the head alone is wanted, but some families divide by the depth
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:1]
        name = encoder.config._name_or_path
        if name:
            try:
                with _quiet_transformers():
                    model, report = AutoModelForMaskedLM.from_pretrained(
                        name, config=config, output_loading_info=True, use_safetensors=True
                    )
            except ValueError as error:
                raise _no_head(encoder) from error
            except (OSError, RuntimeError) as error:
                logger.warning("No masked-LM head could be loaded from %s (%s).", name, str(error).splitlines()[0])
            else:
                prefix = f"{model.base_model_prefix}."
                if not any(not key.startswith(prefix) for key in report["missing_keys"]):
                    return cls(model.to(encoder.dtype), "checkpoint")
        try:
            model = AutoModelForMaskedLM.from_config(config)  # type: ignore[no-untyped-call]
        except ValueError as error:
            raise _no_head(encoder) from error
        model.to(encoder.dtype)
        decoder, matrix = model.get_output_embeddings(), cast(nn.Parameter, embeddings.weight)
        if decoder.weight.shape != matrix.shape:
            raise ValueError(
                f"The masked-LM head of {type(model).__name__} has a decoder of shape {tuple(decoder.weight.shape)}, "
                f"the encoder's embeddings {tuple(matrix.shape)}: they cannot be tied."
            )
        decoder.weight = matrix
        logger.info("%s holds no masked-LM head: a new one, tied to the embeddings, is trained.", name or "The encoder")
        return cls(model, "tied")

    def forward(self, hidden: Tensor) -> Tensor:
        """(M, d) hidden states, the masked positions alone, to (M, V) logits."""
        return cast(Tensor, self.network(inputs_embeds=hidden[None]).logits[0])


def _no_head(encoder: PreTrainedModel) -> ValueError:
    return ValueError(
        f"transformers has no masked-LM model for {type(encoder).__name__} (model type {encoder.config.model_type!r}). "
        "Take an encoder of a family that is trained by masked-LM, such as BERT, RoBERTa, MPNet or DistilBERT."
    )


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Loading a head alone leaves every layer of the checkpoint unused, which transformers reports at length."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
