"""Tokens that two vocabularies share, and the affine map between their embedding matrices that is fitted on them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from st_contrastive.encoder.tokenizers import keep_settings

_ROLES = ("cls_token", "sep_token", "mask_token", "pad_token", "unk_token", "bos_token", "eos_token")
#: How vocabularies mark the inside (WordPiece), the beginning (SentencePiece, byte-level BPE) or the end of words.
_MARKS = ("##", "▁", "Ġ", "</w>")
_IDEOGRAPH = re.compile("[\u2e80-\u2fdf\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")


@dataclass(frozen=True)
class Alignment:
    """How well a map transfers one embedding matrix into another's space, measured on shared tokens outside the fit.

    Attributes:
        shared_tokens: how many tokens both vocabularies have.
        residual: squared error of the predicted embeddings over their variance; 0 is perfect, 1 is no better than
            predicting the mean embedding.
        cosine: mean cosine of a token's predicted embedding and its embedding in the encoder.
    """

    shared_tokens: int
    residual: float
    cosine: float

    def __str__(self) -> str:
        return (
            f"{self.shared_tokens:,} shared tokens; on those left out of the fit, residual {self.residual:.3f} "
            f"and cosine {self.cosine:.3f}"
        )


def shared_tokens(foreign: PreTrainedTokenizerBase, native: PreTrainedTokenizerBase) -> tuple[Tensor, Tensor]:
    """Ids of the tokens that mean the same text in both vocabularies, (n,) and (n,).

    Tokens are compared by their text and by whether they begin a word, which vocabularies mark in different ways.
    Punctuation and ideographs, which are words in some schemes only, are compared by text, and special tokens by role,
    such as [CLS]. If the native tokenizer is uncased, the foreign text is lower-cased too.
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
    """The meaning of each token, and its id, in the order of the ids."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    special = set(tokenizer.all_special_ids)
    counts = {mark: sum(_is_marked(token, mark) for token in vocabulary) for mark in _MARKS}
    mark = max(_MARKS, key=counts.__getitem__)
    if counts[mark] < 0.01 * len(vocabulary):
        mark = ""  # whole words or characters
    meanings: list[tuple[object, int]] = []
    for token, token_id in sorted(vocabulary.items(), key=lambda item: item[1]):
        marked = _is_marked(token, mark)
        # Whether a token that ends no word begins one is unknown.
        if token_id in special or (mark == "</w>" and not marked):
            continue
        begins = not marked if mark in ("##", "") else marked
        text = token.removesuffix(mark) if mark == "</w>" else token.removeprefix(mark)
        if mark == "Ġ":
            text = tokenizer.convert_tokens_to_string([text])
        if text and "\ufffd" not in text:  # not a part of a character
            text = text.lower() if lowers else text
            # A word beginning means something only in text with spaces between words.
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
    r"""The affine map from ``source`` rows (n, w) to ``target`` rows (n, d) with the least squared error.

    .. math:: \min_{W, b} \sum_i \lVert x_i W + b - y_i \rVert^2

    Of several solutions it is that of least norm. Returned are W (w, d) and b (d,), float32, and how well a map that is
    fitted on nine rows of ten predicts the tenth.
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
