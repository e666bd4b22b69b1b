"""Composes sentence pairs from token ids on the device, without tokenizing again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from st_contrastive._tokenizers import keep_settings
from st_contrastive.encoder.token_batch import pad_to_width

_SPECIALS = ("prefix", "middle", "suffix")


@dataclass(frozen=True)
class Content:
    """Sentences without special tokens: ``ids`` (N, W) and ``lengths`` (N,). Ids beyond the length are undefined."""

    ids: Tensor
    lengths: Tensor

    def __getitem__(self, rows: Tensor) -> Content:
        """The rows with these indices."""
        return Content(self.ids[rows], self.lengths[rows])

    def followed_by(self, other: Content) -> Content:
        """The rows of this object, then those of ``other``, padded to one width."""
        ids = torch.cat(_of_one_width(self.ids, other.ids))
        return Content(ids, torch.cat([self.lengths, other.lengths]))

    def unless_equal(self, sentences: Content, others: Content) -> Content:
        """Replace rows that equal the row of ``sentences`` by the row of ``others``."""
        mine, theirs, third = _of_one_width(self.ids, sentences.ids, others.ids)
        beyond = torch.arange(mine.shape[1], device=mine.device) >= self.lengths[:, None]
        equal = (self.lengths == sentences.lengths) & ((mine == theirs) | beyond).all(dim=1)
        return Content(torch.where(equal[:, None], third, mine), torch.where(equal, others.lengths, self.lengths))


def _of_one_width(*ids: Tensor) -> list[Tensor]:
    width = max(part.shape[1] for part in ids)
    return [pad_to_width(part, width) for part in ids]


class PairComposer(nn.Module):
    """Builds the tokenizer's output for a pair of texts from the token ids of the single texts.

    BERT: ``[CLS] a [SEP] b [SEP]`` with token types 0 and 1; RoBERTa and MPNet: ``<s> a </s></s> b </s>``. Special
    tokens and types of any family are read from the tokenizer's output. Batches are right-padded.

    Args:
        tokenizer: the encoder's tokenizer.
        max_length: maximum number of tokens of a pair, including special tokens. The longer sentence is truncated
            first, like ``longest_first`` of the tokenizer. None does not truncate.
        types: number of token types of the encoder. Higher types become its last type. None keeps all types.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None, types: int | None = None
    ) -> None:
        super().__init__()
        self.pad_id = int(tokenizer.pad_token_id or 0)  # without a padding token there are no batches
        self.pad_type = int(getattr(tokenizer, "pad_token_type_id", 0) or 0)
        self.has_types = "token_type_ids" in tokenizer.model_input_names
        self.type_count = types or None
        with keep_settings(tokenizer):
            probe = _probe_text(tokenizer)
            single, _ = _template(tokenizer, probe)
            pair, self.content_types = _template(tokenizer, probe, probe)
        self.single_prefix, self.single_suffix = map(len, single)
        for name, specials in zip(_SPECIALS, pair, strict=True):
            ids_and_types = torch.tensor(specials, dtype=torch.long).reshape(len(specials), 2)
            self.register_buffer(f"{name}_ids", ids_and_types[:, 0].clone(), persistent=False)
            self.register_buffer(f"{name}_types", ids_and_types[:, 1].clone(), persistent=False)
        self.pair_specials = sum(map(len, pair))
        self.max_length = max_length

    def content(self, input_ids: Tensor, attention_mask: Tensor, prompt_length: int = 0) -> Content:
        """Remove special tokens and a prompt from single sentences with right-padded ids and mask (N, L).

        ``prompt_length`` includes the special tokens before the prompt.
        """
        begin = max(self.single_prefix, prompt_length)
        width = input_ids.shape[1] - begin - self.single_suffix
        lengths = attention_mask.sum(dim=1) - begin - self.single_suffix
        return Content(input_ids[:, begin : begin + max(width, 0)], lengths.clamp(min=0))

    def forward(self, first: Content, second: Content) -> dict[str, Tensor]:
        """Compose N pairs: ``input_ids``, ``attention_mask`` and, if the tokenizer uses them, ``token_type_ids``."""
        rows, device = first.ids.shape[0], first.ids.device
        widths = first.ids.shape[1], second.ids.shape[1]
        lengths = first.lengths, second.lengths
        if self.max_length is not None and sum(widths) + self.pair_specials > self.max_length:
            lengths = _truncated(*lengths, self.max_length - self.pair_specials)
        prefix, middle, suffix = (self.get_buffer(f"{name}_ids") for name in _SPECIALS)
        pad = prefix.new_full((1,), self.pad_id)
        parts = (prefix, first.ids, middle, second.ids, suffix, pad)
        source = torch.cat([part.expand(rows, -1) for part in parts], dim=1)
        total = (lengths[0] + lengths[1] + self.pair_specials)[:, None]
        width = source.shape[1] - 1
        position = torch.arange(width if self.max_length is None else min(width, self.max_length), device=device)
        # Column in `source` of each output token. Unused columns of the first and the second sentence are skipped.
        end_first = len(prefix) + lengths[0][:, None]
        end_second = end_first + len(middle) + lengths[1][:, None]
        index = position + (position >= end_first) * (widths[0] - lengths[0][:, None])
        index = index + (position >= end_second) * (widths[1] - lengths[1][:, None])
        attended = position < total
        index = torch.where(attended, index, width)
        pairs = {"input_ids": source.gather(1, index), "attention_mask": attended.long()}
        if self.has_types:
            segments = [self.get_buffer(f"{name}_types") for name in _SPECIALS]
            contents = [pad.new_full((w,), kind) for w, kind in zip(widths, self.content_types, strict=True)]
            pads = pad.new_full((1,), self.pad_type)
            types = torch.cat([segments[0], contents[0], segments[1], contents[1], segments[2], pads])[index]
            pairs["token_type_ids"] = types if self.type_count is None else types.clamp(max=self.type_count - 1)
        return pairs


def _truncated(first: Tensor, second: Tensor, budget: int) -> tuple[Tensor, Tensor]:
    """Lengths after ``longest_first``: the longer text is cut to the shorter's length, then both are cut equally."""
    swapped = first > second
    short, long = torch.minimum(first, second), torch.maximum(first, second)
    long = torch.minimum(long, torch.maximum(short, budget - short))
    over = short + long > budget
    short = torch.where(over, budget // 2, short)
    long = torch.where(over, budget // 2 + budget % 2, long)
    return torch.where(swapped, long, short), torch.where(swapped, short, long)


def _probe_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """A text without any token of the template for pairs."""
    specials = set(tokenizer("", "")["input_ids"])
    for text in ("a", "the", "1", *list(tokenizer.get_vocab())[-100:]):
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        if tokens and specials.isdisjoint(tokens):
            return text
    return ""


def _template(tokenizer: PreTrainedTokenizerBase, *texts: str) -> tuple[list[list[tuple[int, int]]], list[int]]:
    """The special tokens before, between and after one or two texts, with their types, and each text's token type."""
    encoded = tokenizer(*texts, return_token_type_ids=True)
    ids = encoded["input_ids"]
    types = encoded.get("token_type_ids", [0] * len(ids))
    content = tokenizer(texts[0], add_special_tokens=False)["input_ids"]
    specials: list[list[tuple[int, int]]] = [[]]
    content_types: list[int] = []
    index = 0
    while index < len(ids):
        if content and ids[index : index + len(content)] == content:
            content_types.append(types[index])
            specials.append([])
            index += len(content)
        else:
            specials[-1].append((ids[index], types[index]))
            index += 1
    if len(content_types) != len(texts):
        raise ValueError(
            f"The special tokens of {type(tokenizer).__name__} around {len(texts)} text(s) can't be found: it changes "
            "the texts. Use another loss, such as SimCSELoss."
        )
    return specials, content_types
