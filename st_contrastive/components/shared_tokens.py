"""Tokens that two vocabularies share, and an affine map between their embeddings that is fitted to these tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from st_contrastive._tokenizers import keep_settings

_ROLES = ("cls_token", "sep_token", "mask_token", "pad_token", "unk_token", "bos_token", "eos_token")
#: Marks for the inside (WordPiece), the beginning (SentencePiece, byte-level BPE) or the end of a word.
_MARKS = ("##", "▁", "Ġ", "</w>")
_IDEOGRAPH = re.compile("[\u2e80-\u2fdf\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")


@dataclass(frozen=True)
class Alignment:
    """Quality of a map between two embedding spaces, measured on held-out shared tokens.

    Attributes:
        shared_tokens: number of tokens in both vocabularies.
        residual: squared error of the predicted embeddings divided by their variance. 0 is perfect, and 1 is the error
            of predicting the mean embedding.
        cosine: mean cosine between predicted embeddings and the encoder's embeddings.
    """

    shared_tokens: int
    residual: float
    cosine: float

    def __str__(self) -> str:
        return (
            f"{self.shared_tokens:,} shared tokens; on held-out tokens, residual {self.residual:.3f} and cosine "
            f"{self.cosine:.3f}"
        )


def shared_tokens(foreign: PreTrainedTokenizerBase, native: PreTrainedTokenizerBase) -> tuple[Tensor, Tensor]:
    """Ids (n,) in the foreign and (n,) in the native vocabulary of the tokens for the same text.

    Tokens are compared by their text and by their place, at the beginning of a word or inside it. Punctuation and
    ideographs are compared only by text, because some vocabularies treat them as words. Special tokens are compared by
    role, such as [CLS]. If the native tokenizer is uncased, foreign tokens are lower-cased too.
    """
    with keep_settings(native):
        lowers = native.tokenize("A") == native.tokenize("a") != [native.unk_token]
    native_ids: dict[object, int] = {}
    for meaning, token_id in _meanings(native, lowers):
        native_ids.setdefault(meaning, token_id)
    pairs = {token_id: native_ids[key] for key, token_id in _meanings(foreign, lowers) if key in native_ids}
    ordered = sorted(pairs)
    return torch.tensor(ordered, dtype=torch.long), torch.tensor([pairs[i] for i in ordered], dtype=torch.long)


def _meanings(tokenizer: PreTrainedTokenizerBase, lowers: bool) -> list[tuple[object, int]]:
    """A key for the meaning of each token, and the token's id, sorted by id."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    special = set(tokenizer.all_special_ids)
    counts = {mark: sum(_is_marked(token, mark) for token in vocabulary) for mark in _MARKS}
    mark = max(_MARKS, key=counts.__getitem__)
    if counts[mark] < 0.01 * len(vocabulary):
        mark = ""  # a vocabulary of whole words or of characters
    meanings: list[tuple[object, int]] = []
    for token, token_id in sorted(vocabulary.items(), key=lambda item: item[1]):
        marked = _is_marked(token, mark)
        # A token without a mark for the end may be at the beginning of a word or inside it.
        if token_id in special or (mark == "</w>" and not marked):
            continue
        begins = not marked if mark in ("##", "") else marked
        text = token.removesuffix(mark) if mark == "</w>" else token.removeprefix(mark)
        if mark == "Ġ":
            text = tokenizer.convert_tokens_to_string([text])
        if text and "\ufffd" not in text:  # skip parts of characters
            text = text.lower() if lowers else text
            # Only scripts with spaces between words have beginnings of words.
            has_beginnings = text[0].isalnum() and not _IDEOGRAPH.match(text)
            meanings.append(((text, begins if has_beginnings else None), token_id))
    for role in _ROLES:
        role_id: int | None = getattr(tokenizer, f"{role}_id", None)
        if role_id is not None:
            # <s> and </s> have the roles of [CLS] and [SEP].
            role = {"bos_token": "cls_token", "eos_token": "sep_token"}.get(role, role)
            meanings.append((("special", role), role_id))
    return meanings


def _is_marked(token: str, mark: str) -> bool:
    return bool(mark) and (token.endswith(mark) if mark == "</w>" else token.startswith(mark))


def fit_affine(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Alignment]:
    r"""Fit an affine map from rows of ``source`` (n, w) to rows of ``target`` (n, d) by least squares.

    .. math:: \min_{W, b} \sum_i \lVert x_i W + b - y_i \rVert^2

    If there are several solutions, the one with the least norm is taken. Returns W (w, d) and b (d,) in float32. Also
    returns the quality of another map that is fitted to nine tenths of the rows, measured on the other tenth.
    """
    source, target = source.double(), target.double()
    design = torch.cat([source, source.new_ones(len(source), 1)], dim=1)
    held_out = torch.arange(len(source)) % 10 == 0
    least_squares = partial(torch.linalg.lstsq, driver="gelsd")
    predicted = design[held_out] @ least_squares(design[~held_out], target[~held_out]).solution
    actual, mean = target[held_out], target[~held_out].mean(dim=0)
    alignment = Alignment(
        shared_tokens=len(source),
        residual=float((predicted - actual).square().sum() / (mean - actual).square().sum()),
        cosine=float(torch.nn.functional.cosine_similarity(predicted, actual).mean()),
    )
    solution = least_squares(design, target).solution.float()
    return solution[:-1], solution[-1], alignment
