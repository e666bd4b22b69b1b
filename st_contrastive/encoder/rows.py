"""A batch of texts as right-padded rows: reading it, masking it, and taking groups of its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from st_contrastive.distributed import HostValue
from st_contrastive.encoder import flat_batches
from st_contrastive.encoder.flat_batches import FlatForm
from st_contrastive.encoder.model import text_module, tokenizer_of

#: The text tensors that a transformers model takes. A column's dict holds more: strings, and what a model writes there.
TEXT_KEYS = ("input_ids", "attention_mask", "token_type_ids")
#: What a pass through an encoder costs beside its tokens, as a number of tokens.
PASS_COST = 64
_CHUNK_COUNTS = (1, 2, 3, 4, 6, 8)


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
        # Sorting needs no wait for the device. Searching would wait to learn how many positions there are.
        order = self.chosen.flatten().to(torch.uint8).argsort(descending=True, stable=True)
        return order[: int(self._count.read())]

    def take(self, rows: Tensor, width: int) -> CorruptedTokens:
        """Some rows, by index, cut to ``width`` columns."""
        return CorruptedTokens(self.input_ids[rows, :width], self.chosen[rows, :width])


@dataclass(frozen=True)
class Rows:
    """Texts in right-padded rows.

    Args:
        texts: what a transformers model takes: ``input_ids`` (N, L) or ``inputs_embeds`` (N, L, d), ``attention_mask``
            (N, L), and ``token_type_ids`` (N, L) where the family has them.
        extras: what else sentence-transformers put into the batch and its modules read, such as ``prompt_length``.
        masked: a corrupted copy of the tokens.
        vectors: (N, d), a vector for each row, for the networks that are conditioned on one.
        flat: the form of the batch that the rows were made of, where it had no padding.
    """

    texts: dict[str, Tensor]
    extras: dict[str, Any] = field(default_factory=dict)
    masked: CorruptedTokens | None = None
    vectors: Tensor | None = None
    flat: FlatForm | None = None

    @classmethod
    def of(cls, features: dict[str, Any], model: nn.Module) -> Rows:
        """The rows of one text column, as ``model.preprocess`` or a collator made it.

        Raises:
            ValueError: the batch is not text.
        """
        flat = None
        if "cu_seq_lens_q" in features:  # all texts in one row, without padding
            # A name of sentence-transformers' own, which its preprocessing reads.
            first_position = int(getattr(text_module(model), "_flatten_position_offset", 0))
            features, flat = flat_batches.in_rows(features, tokenizer_of(model).pad_token_id or 0, first_position)
        ids, mask = features.get("input_ids"), features.get("attention_mask")
        if not isinstance(ids, Tensor) or ids.ndim != 2 or not isinstance(mask, Tensor):
            raise ValueError(
                f"Each column must be a batch of tokenised texts, with input_ids (N, L) and attention_mask; got the "
                f"keys {sorted(features)}. Give text, and let model.preprocess or the trainer's collator tokenise it."
            )
        if not mask.shape[1]:
            raise ValueError("No text of this batch has a token: leave empty texts out.")
        # Sentences are composed, fused and read from their first token on, whichever side they were padded on.
        places = torch.arange(mask.shape[1], device=mask.device) + (mask != 0).to(torch.uint8).argmax(dim=1)[:, None]
        order = places % mask.shape[1]
        texts = {key: features[key].gather(1, order) for key in TEXT_KEYS if key in features}
        extras = {k: v for k, v in features.items() if not isinstance(v, Tensor) or k == "prompt_length"}
        return cls(texts, extras, flat=flat)

    def __len__(self) -> int:
        return self.mask.shape[0]

    @property
    def ids(self) -> Tensor:
        """``input_ids``, (N, L)."""
        return self.texts["input_ids"]

    @property
    def mask(self) -> Tensor:
        """``attention_mask``, (N, L)."""
        return self.texts["attention_mask"]

    @property
    def width(self) -> int:
        """L."""
        return self.mask.shape[1]

    @property
    def prompt_length(self) -> int:
        """The tokens of the prompt before each text, with the special tokens before it; 0 without a prompt."""
        length = self.extras.get("prompt_length", 0)
        if isinstance(length, Tensor):
            length = int(length.flatten()[0])
        # A space at a prompt's end is counted as a token. Where it becomes a part of the next word, rows differ there.
        prompt = self.ids[:, :length]
        return int((prompt == prompt[:1]).all(dim=0).cumprod(0).sum()) if length else 0

    def features(self) -> dict[str, Any]:
        """A new dict for a SentenceTransformer, which writes into the one that it is given."""
        return {**self.extras, **self.texts}

    def corrupted(self, corruption: Callable[[Tensor, Tensor], CorruptedTokens], times: int = 1) -> Rows:
        """``times`` copies of the rows, one after the other, with what the corruption makes of them as ``masked``.

        A prompt stays whole.
        """
        texts = self.texts
        if times > 1:
            texts = {key: torch.cat([value] * times) for key, value in texts.items()}
        behind_prompt = torch.arange(self.width, device=self.mask.device) >= self.prompt_length
        corrupted = corruption(texts["input_ids"], texts["attention_mask"] * behind_prompt)
        return replace(self, texts=texts, masked=corrupted)

    def masked_copy(self) -> tuple[Rows, Tensor]:
        """The rows with the corrupted tokens, and the chosen positions, (M,), in the flattened (N x L).

        Raises:
            ValueError: the rows have no corrupted tokens.
        """
        if self.masked is None:
            raise ValueError("These rows have no corrupted tokens: call corrupted() first.")
        return replace(self, texts={**self.texts, "input_ids": self.masked.input_ids}), self.masked.places()

    def lengths(self) -> list[int]:
        """Tokens of each row, up to the last that is attended to. On a GPU this waits for the device."""
        places = torch.arange(1, self.width + 1, device=self.mask.device)
        found: list[int] = ((self.mask != 0) * places).amax(dim=1).tolist()
        return found

    def take(self, rows: Tensor, width: int) -> Rows:
        """Some rows, by index, cut to ``width`` columns, but to one at least."""
        width = max(width, 1)
        return replace(
            self,
            texts={key: value.index_select(0, rows)[:, :width] for key, value in self.texts.items()},
            masked=None if self.masked is None else self.masked.take(rows, width),
            vectors=None if self.vectors is None else self.vectors.index_select(0, rows),
        )

    def require_positions(self, limit: int | None, column: int) -> None:
        """Refuse texts that are longer than a network's table of positions.

        They are not cut here: the trained model would still fail on such a text when it encodes.

        Args:
            limit: rows of the table; None where there is none.
            column: number of the text column, for the message.

        Raises:
            ValueError: a text is longer.
        """
        if limit is None or self.width <= limit:
            return
        longest = int((self.mask != 0).sum(dim=1).max())  # the rest may be padding
        if longest > limit:
            raise ValueError(
                f"Text column {column} has a text of {longest} tokens, but there are positions for {limit}. Set "
                f"model.max_seq_length = {limit}, or less, so that longer texts are cut when they are tokenised."
            )


def chunks(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Row numbers in chunks of ``most``, shortest rows first; the last chunk may be smaller.

    Example:
        >>> chunks([3, 9, 3, 9, 1], most=2)
        [[4, 0], [2, 1], [3]]
    """
    order = np.argsort(lengths, kind="stable").tolist()
    return [order[start : start + most] for start in range(0, len(order), most)]


def cheapest_chunks(lengths: Sequence[int], pass_cost: int = PASS_COST) -> list[list[int]]:
    """The rows in one to eight equal chunks, the number that costs least in padded tokens and passes.

    Args:
        lengths: tokens of each row.
        pass_cost: what one more pass costs, in tokens.

    Example:
        >>> cheapest_chunks([3, 9, 3, 9], pass_cost=4)
        [[0, 2], [1, 3]]
        >>> cheapest_chunks([3, 9, 3, 9], pass_cost=20)
        [[0, 2, 1, 3]]
    """

    def cost(groups: list[list[int]]) -> int:
        return sum(pass_cost + len(rows) * lengths[rows[-1]] for rows in groups)

    return min((chunks(lengths, math.ceil(len(lengths) / count)) for count in _CHUNK_COUNTS), key=cost)


def in_order(parts: list[tuple[Tensor, ...]], order: Tensor) -> tuple[Tensor, ...]:
    """The groups' row-first tensors put together in the batch's order; ``order`` holds the groups' row numbers."""
    back = order.argsort()
    return tuple(torch.cat(column).index_select(0, back) for column in zip(*parts, strict=True))
