"""A batch of texts as right-padded rows: reading it, masking it, and taking some of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class CorruptedTokens:
    """``input_ids`` (N, L) after corruption, and ``chosen`` (N, L), True where a token was drawn for it."""

    input_ids: Tensor
    chosen: Tensor

    def positions(self) -> Tensor:
        """(M,), the chosen positions as indices into the flattened (N x L)."""
        return self.chosen.flatten().nonzero()[:, 0]

    def take(self, rows: Tensor, width: int) -> CorruptedTokens:
        """Some rows, by index, cut to ``width`` columns."""
        return CorruptedTokens(self.input_ids[rows, :width], self.chosen[rows, :width])


@dataclass(frozen=True)
class TokenBatch:
    """Texts in right-padded rows.

    Args:
        token_tensors: tensors with an entry for each token, (N, L) or (N, L, d): ``input_ids`` or ``inputs_embeds``,
            ``attention_mask``, and whatever else the tokenizer gave.
        per_row: tensors and lists with an entry for each row.
        batch_info: what belongs to the whole batch, such as ``modality``.
    """

    token_tensors: dict[str, Tensor]
    per_row: dict[str, Any] = field(default_factory=dict)
    batch_info: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, features: Mapping[str, Any], *, aligned: bool = False) -> TokenBatch:
        """The rows of one text column, as ``model.preprocess`` or a collator prepared it.

        Texts that are ``aligned`` begin in the first column already; others are moved there.
        """
        column = features if isinstance(features, Mapping) else {}
        ids, mask = column.get("input_ids"), column.get("attention_mask")
        if not isinstance(ids, Tensor) or ids.ndim != 2 or not isinstance(mask, Tensor):
            raise ValueError(
                "A loss takes a list with one dict for each text column, with input_ids (N, L) and attention_mask, as "
                "the trainer's collator makes it: call loss([model.preprocess(sentences)]). Got "
                f"{sorted(column) or features!r:.80} for a column."
            )
        # Sentences are composed, fused and read from their first token on, whichever side they were padded on.
        order = None if aligned else _from_first_token(mask)
        rows = cls({})
        for key, value in features.items():
            if key == "prompt_length" or not isinstance(value, (Tensor, list)):
                rows.batch_info[key] = value
            elif isinstance(value, Tensor) and value.ndim >= 2 and value.shape[:2] == ids.shape:
                rows.token_tensors[key] = value if order is None else value[torch.arange(len(ids))[:, None], order]
            elif (isinstance(value, list) or value.ndim) and len(value) == len(ids):
                rows.per_row[key] = value
            else:
                shape = tuple(value.shape) if isinstance(value, Tensor) else f"list of {len(value)}"
                raise ValueError(
                    f"The batch holds {key!r} ({shape}), which has an entry neither for each of the {len(ids)} texts "
                    f"nor for each of their {ids.shape[1]} tokens. Leave it out of what the first module returns."
                )
        return rows

    def __len__(self) -> int:
        return self.mask.shape[0]

    @property
    def ids(self) -> Tensor:
        """``input_ids``, (N, L)."""
        return self.token_tensors["input_ids"]

    @property
    def mask(self) -> Tensor:
        """``attention_mask``, (N, L)."""
        return self.token_tensors["attention_mask"]

    @property
    def width(self) -> int:
        """L."""
        return self.mask.shape[1]

    @property
    def prompt_length(self) -> int:
        """The tokens of the prompt before each text, with the special tokens before it; 0 without a prompt."""
        length = self.batch_info.get("prompt_length", 0)
        if isinstance(length, Tensor):
            length = int(length.flatten()[0])
        # A space at a prompt's end is counted as a token. Where it becomes a part of the next word, rows differ there.
        prompt = self.ids[:, :length]
        return int((prompt == prompt[:1]).all(dim=0).cumprod(0).sum()) if length else 0

    def features(self) -> dict[str, Any]:
        """A new dict for a SentenceTransformer, which writes into the one that it is given."""
        return {**self.batch_info, **self.per_row, **self.token_tensors}

    @property
    def mask_without_prompt(self) -> Tensor:
        """``attention_mask`` (N, L) without a prompt."""
        prompt = self.prompt_length
        return self.mask * (torch.arange(self.width, device=self.mask.device) >= prompt) if prompt else self.mask

    def corrupt(self, corruption: Callable[[Tensor, Tensor], CorruptedTokens]) -> CorruptedTokens:
        """The tokens after a corruption, which leaves a prompt whole."""
        return corruption(self.ids, self.mask_without_prompt)

    def with_ids(self, input_ids: Tensor) -> TokenBatch:
        """The rows with other tokens in the same positions."""
        return replace(self, token_tensors={**self.token_tensors, "input_ids": input_ids})

    def followed_by(self, other: TokenBatch) -> TokenBatch:
        """The rows of both, one after the other; the shorter ones are padded. A prompt is that of the first."""
        width = max(self.width, other.width)
        texts = {
            key: torch.cat([pad_to_width(value, width), pad_to_width(other.token_tensors[key], width)])
            for key, value in self.token_tensors.items()
        }
        per_row = {
            key: value + other.per_row[key] if isinstance(value, list) else torch.cat([value, other.per_row[key]])
            for key, value in self.per_row.items()
        }
        return TokenBatch(texts, per_row, self.batch_info)

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each row, up to the last that is attended to; 1 of a row without any."""
        mask = self.mask
        positions = torch.arange(1, mask.shape[1] + 1, device=mask.device)
        return cast(list[int], ((mask != 0) * positions).amax(dim=1).clamp(min=1).tolist())

    def take(self, rows: Tensor, width: int) -> TokenBatch:
        """Some rows, by index, cut to ``width`` columns."""
        texts = {key: value.index_select(0, rows)[:, :width] for key, value in self.token_tensors.items()}
        per_row = {
            key: [value[row] for row in rows.tolist()] if isinstance(value, list) else value.index_select(0, rows)
            for key, value in self.per_row.items()
        }
        return TokenBatch(texts, per_row, self.batch_info)


def pad_to_width(tensor: Tensor, width: int) -> Tensor:
    """A tensor with an entry for each token, (N, L) or (N, L, d), with zeros up to ``width`` columns."""
    missing = width - tensor.shape[1]
    return F.pad(tensor, (0, 0) * (tensor.ndim - 2) + (0, missing)) if missing else tensor


def _from_first_token(mask: Tensor) -> Tensor:
    """The order of the columns, (N, L), in which each text begins in the first."""
    positions = torch.arange(mask.shape[1], device=mask.device) + (mask != 0).to(torch.uint8).argmax(dim=1)[:, None]
    return positions % mask.shape[1]
