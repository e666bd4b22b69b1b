"""A batch of tokenized texts in right-padded rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

#: Keys that only describe a flat batch.
_ONLY_FLAT = frozenset({"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "position_ids", "seq_idx"})


@dataclass(frozen=True)
class CorruptedTokens:
    """Token ids (N, L) after corruption, and ``chosen`` (N, L), which is True for tokens that were drawn for it."""

    input_ids: Tensor
    chosen: Tensor

    def positions(self) -> Tensor:
        """Indices (M,) of the chosen tokens in the flattened batch of N * L tokens."""
        return self.chosen.flatten().nonzero()[:, 0]

    def take(self, rows: Tensor, width: int) -> CorruptedTokens:
        """The rows with these indices, cut to ``width`` columns."""
        return CorruptedTokens(self.input_ids[rows, :width], self.chosen[rows, :width])


@dataclass(frozen=True)
class TokenBatch:
    """Tokenized texts in right-padded rows.

    Args:
        token_tensors: tensors with an entry for each token, (N, L) or (N, L, d): ``input_ids`` or ``inputs_embeds``,
            ``attention_mask``, and others that the tokenizer returns.
        per_row: tensors and lists with an entry for each row.
        batch_info: values for the whole batch, such as ``modality``.
    """

    token_tensors: dict[str, Tensor]
    per_row: dict[str, Any] = field(default_factory=dict)
    batch_info: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, features: Mapping[str, Any], *, aligned: bool = False, pad_token_id: int = 0) -> TokenBatch:
        """Read one text column from ``model.preprocess`` or from a collator.

        Rows are shifted to start in the first column, unless they are already ``aligned``. A flat batch for flash
        attention becomes right-padded rows.
        """
        column = features if isinstance(features, Mapping) else {}
        if "cu_seq_lens_q" in column:
            features = column = _unflatten(column, pad_token_id)
        ids, mask = column.get("input_ids"), column.get("attention_mask")
        if not isinstance(ids, Tensor) or ids.ndim != 2 or not isinstance(mask, Tensor):
            raise ValueError(
                "A loss takes a list with one dict per text column. Each dict holds input_ids (N, L) and "
                "attention_mask, as from the trainer's collator: call loss([model.preprocess(sentences)]). Got "
                f"{sorted(column) or features!r:.80} for a column."
            )
        # Pairs, fusion and pooling rely on rows that start in the first column.
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
                    f"nor for each of their {ids.shape[1]} tokens. Remove it from the first module's output."
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
        """Number of tokens of the prompt and of special tokens before it; 0 without a prompt."""
        length = self.batch_info.get("prompt_length", 0)
        if isinstance(length, Tensor):
            length = int(length.flatten()[0])
        # The length may include a space at the prompt's end, which can be part of the next token. Count only the first
        # tokens that all rows share.
        prompt = self.ids[:, :length]
        return int((prompt == prompt[:1]).all(dim=0).cumprod(0).sum()) if length else 0

    def features(self) -> dict[str, Any]:
        """The input for a SentenceTransformer. The dict is new, because the model writes into it."""
        return {**self.batch_info, **self.per_row, **self.token_tensors}

    @property
    def mask_without_prompt(self) -> Tensor:
        """``attention_mask`` (N, L) with 0 for the prompt."""
        prompt = self.prompt_length
        return self.mask * (torch.arange(self.width, device=self.mask.device) >= prompt) if prompt else self.mask

    def corrupt(self, corruption: Callable[[Tensor, Tensor], CorruptedTokens]) -> CorruptedTokens:
        """Corrupt the tokens behind the prompt."""
        return corruption(self.ids, self.mask_without_prompt)

    def with_ids(self, input_ids: Tensor) -> TokenBatch:
        """The batch with other token ids in the same positions."""
        return replace(self, token_tensors={**self.token_tensors, "input_ids": input_ids})

    def followed_by(self, other: TokenBatch) -> TokenBatch:
        """The rows of this batch, then those of ``other``, padded to one width. The prompt is that of this batch."""
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
        """The length of each row up to its last attended token, at least 1."""
        mask = self.mask
        positions = torch.arange(1, mask.shape[1] + 1, device=mask.device)
        return cast(list[int], ((mask != 0) * positions).amax(dim=1).clamp(min=1).tolist())

    def take(self, rows: Tensor, width: int) -> TokenBatch:
        """The rows with these indices, cut to ``width`` columns."""
        texts = {key: value.index_select(0, rows)[:, :width] for key, value in self.token_tensors.items()}
        per_row = {
            key: [value[row] for row in rows.tolist()] if isinstance(value, list) else value.index_select(0, rows)
            for key, value in self.per_row.items()
        }
        return TokenBatch(texts, per_row, self.batch_info)


def _unflatten(features: Mapping[str, Any], pad_token_id: int) -> dict[str, Any]:
    """Turn a flat batch into right-padded rows.

    sentence-transformers flattens batches for flash attention: one row (1, T) has the tokens of all texts, and
    ``cu_seq_lens_q`` has the position at which each text begins and, at its end, T.
    """
    flat, lengths = features["input_ids"], features["cu_seq_lens_q"].diff()
    mask = torch.arange(int(features["max_length_q"]), device=flat.device) < lengths[:, None]
    rows = {key: value for key, value in features.items() if key not in _ONLY_FLAT}
    for key, value in rows.items():
        if isinstance(value, Tensor) and value.shape == flat.shape:
            padding = pad_token_id if key == "input_ids" else 0
            rows[key] = torch.full_like(mask, padding, dtype=value.dtype).masked_scatter(mask, value)
    return {**rows, "attention_mask": mask.long()}


def pad_to_width(tensor: Tensor, width: int) -> Tensor:
    """Pad a tensor (N, L) or (N, L, d) with zeros to ``width`` columns."""
    missing = width - tensor.shape[1]
    return F.pad(tensor, (0, 0) * (tensor.ndim - 2) + (0, missing)) if missing else tensor


def _from_first_token(mask: Tensor) -> Tensor:
    """Column indices (N, L) that shift each row's first attended token to the first column."""
    positions = torch.arange(mask.shape[1], device=mask.device) + (mask != 0).to(torch.uint8).argmax(dim=1)[:, None]
    return positions % mask.shape[1]
