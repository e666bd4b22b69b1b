"""The features of a batch of texts: which the losses read, right-padded, and masked copies of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from st_contrastive.distributed import HostValue
from st_contrastive.encoder import unpadded
from st_contrastive.encoder.model import text_module, tokenizer_of

Features = dict[str, Any]

#: What the losses read of a batch of texts. A column's dict also holds strings and whatever a model writes into it.
TEXT_KEYS = ("input_ids", "attention_mask", "token_type_ids")


def text_features(features: Features, model: nn.Module) -> Features:
    """The text tensors of one column, right-padded, beside what is not a tensor.

    The model writes into the dict that it is given, so every view takes a copy of this one.

    Raises:
        ValueError: the batch is not text.
    """
    if unpadded.is_flat(features):
        # A name of sentence-transformers' own, which its preprocessing reads.
        first_position = int(getattr(text_module(model), "_flatten_position_offset", 0))
        features = unpadded.in_rows(features, tokenizer_of(model).pad_token_id or 0, first_position)
    ids, mask = features.get("input_ids"), features.get("attention_mask")
    if not isinstance(ids, Tensor) or ids.ndim != 2 or not isinstance(mask, Tensor):
        raise ValueError(
            f"Each column must be a batch of tokenised texts, with input_ids (N, L) and attention_mask; got the keys "
            f"{sorted(features)}. Give text, and let model.preprocess or the trainer's collator tokenise it."
        )
    tensors = {key: features[key] for key in TEXT_KEYS if key in features}
    # Sentences are composed, fused and read from their first token on, whichever side they were padded on.
    places = torch.arange(mask.shape[1], device=mask.device) + (mask != 0).to(torch.uint8).argmax(dim=1)[:, None]
    order = places % max(mask.shape[1], 1)
    tensors = {key: value.gather(1, order) for key, value in tensors.items()}
    carried = {key: value for key, value in features.items() if not isinstance(value, Tensor) or key == "prompt_length"}
    return {**carried, **tensors}


def is_unpadded(rows: Features) -> bool:
    """Whether these rows go through the encoder end to end, without padding."""
    return unpadded.FORM in rows


def with_texts(features: Features, texts: Features) -> Features:
    """``texts`` in place of the text tensors of ``features``; what is not a text tensor is carried along."""
    return {**{key: value for key, value in features.items() if key not in TEXT_KEYS}, **texts}


def token_arguments(features: Features) -> Features:
    """What of a column a transformers model takes itself."""
    return {key: features[key] for key in TEXT_KEYS if key in features}


class CorruptedTokens:
    """``input_ids`` (N, L) after corruption, and ``chosen`` (N, L), True where a token was drawn for it.

    Example:
        >>> import torch
        >>> tokens = CorruptedTokens(torch.tensor([[7, 8], [9, 9]]), torch.tensor([[False, True], [True, False]]))
        >>> tokens.places()
        tensor([1, 2])
    """

    def __init__(self, input_ids: Tensor, chosen: Tensor) -> None:
        self.input_ids, self.chosen = input_ids, chosen
        self._count = HostValue(chosen.sum())

    def places(self) -> Tensor:
        """(M,), the chosen positions as indices into the flattened (N x L), in their order."""
        # Sorted, not searched for: how many will be found need not be waited for again.
        order = self.chosen.flatten().to(torch.uint8).argsort(descending=True, stable=True)
        return order[: int(self._count.read())]

    def of(self, rows: Tensor, width: int) -> CorruptedTokens:
        """Those of some rows, by index, without the columns behind ``width``."""
        return CorruptedTokens(self.input_ids[rows, :width], self.chosen[rows, :width])
