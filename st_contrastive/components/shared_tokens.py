"""Tokens that two vocabularies share, and the affine map between their embedding matrices that is fitted on them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

_ROLES = ("cls_token", "sep_token", "mask_token", "pad_token", "unk_token", "bos_token", "eos_token")
_IDEOGRAPH = re.compile("[\u2e80-\u2fdf\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]")


@dataclass(frozen=True)
class Alignment:
    """How well a map transfers one embedding matrix into another's space.

    All figures but ``anchors`` are means over the anchors. Each anchor is left out of the fit that predicts it (in
    closed form, from the leverages), so that a map with as many parameters as anchors does not look good.

    Attributes:
        anchors: how many tokens both vocabularies have.
        residual: squared error of the predicted embeddings over their variance; 0 is perfect, 1 is no better than
            predicting the mean embedding.
        cosine: mean cosine of a token's predicted embedding and its embedding in the encoder.
        chance: mean cosine of the predicted embedding and another anchor's.
        unmapped: mean cosine without the map; None if the widths differ.
    """

    anchors: int
    residual: float
    cosine: float
    chance: float
    unmapped: float | None

    def __str__(self) -> str:
        without = "" if self.unmapped is None else f", {self.unmapped:.3f} without the map"
        return (
            f"{self.anchors:,} shared tokens, each left out of the fit in turn: residual {self.residual:.3f}, cosine "
            f"with their own embedding {self.cosine:.3f}, with another token's {self.chance:.3f}{without}"
        )


def shared_tokens(foreign: PreTrainedTokenizerBase, own: PreTrainedTokenizerBase) -> tuple[Tensor, Tensor]:
    """Ids of the tokens that mean the same text in both vocabularies, (n,) and (n,).

    The vocabularies may mark the beginning or the inside of words in different ways (``##ing``, ``▁the``, ``Ġthe``,
    ``the</w>``); tokens are compared by their text and by whether they begin a word. Punctuation and ideographs, which
    are words in some schemes only, are compared by text, and special tokens by role, such as [CLS]. If the encoder's
    tokenizer is uncased, the foreign text is lower-cased too.
    """
    lowers = own.tokenize("A") == own.tokenize("a") != [own.unk_token]
    ours: dict[object, int] = {}
    for key, token_id in _canonical(own, lowers):
        ours.setdefault(key, token_id)
    pairs = {token_id: ours[key] for key, token_id in _canonical(foreign, lowers) if key in ours}
    foreign_ids = sorted(pairs)
    return torch.tensor(foreign_ids, dtype=torch.long), torch.tensor([pairs[i] for i in foreign_ids], dtype=torch.long)


def _canonical(tokenizer: PreTrainedTokenizerBase, lowers: bool) -> list[tuple[object, int]]:
    """The meaning of each token, and its id, in the order of the ids."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    special = set(tokenizer.all_special_ids)
    marks: Counter[str] = Counter()
    for token in vocabulary:
        marks["##"] += token.startswith("##")
        marks["▁"] += token.startswith("▁")
        marks["Ġ"] += token.startswith("Ġ")
        marks["</w>"] += token.endswith("</w>")
    mark = max(marks, key=marks.__getitem__, default="")
    if marks[mark] < 0.01 * len(vocabulary):
        mark = ""  # whole words or characters
    canonical: list[tuple[object, int]] = []
    for token, token_id in sorted(vocabulary.items(), key=lambda item: item[1]):
        if token_id in special:
            continue
        if mark == "</w>":
            if not token.endswith(mark):
                continue  # whether it begins a word is unknown
            begins, text = True, token.removesuffix(mark)
        else:
            begins = token.startswith(mark) != (mark == "##") if mark else True
            text = token.removeprefix(mark) if mark else token
        if mark == "Ġ":
            text = _decoded_bytes(text)
        if text:
            text = text.lower() if lowers else text
            # A word beginning means something only in text with spaces between words.
            letter = text[0].isalnum() and not _IDEOGRAPH.match(text)
            canonical.append(((text, begins if letter else None), token_id))
    for role in _ROLES:
        role_id: int | None = getattr(tokenizer, f"{role}_id", None)
        if role_id is not None:
            # <s> and </s> have the roles of [CLS] and [SEP].
            role = {"bos_token": "cls_token", "eos_token": "sep_token"}.get(role, role)
            canonical.append((("special", role), role_id))
    return canonical


def _byte_alphabet() -> dict[str, int]:
    """The printable characters by which byte-level BPE represents bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_alphabet()


def _decoded_bytes(text: str) -> str:
    """Byte-level BPE's spelling as text; empty for a part of a character."""
    if not all(character in _BYTES for character in text):
        return text
    try:
        return bytes(_BYTES[character] for character in text).decode("utf-8")
    except UnicodeDecodeError:
        return ""


def least_squares(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Alignment]:
    r"""The affine map from ``source`` rows to ``target`` rows with the least squared error, and its report.

    .. math:: \min_{W, b} \sum_i \lVert x_i W + b - y_i \rVert^2

    Args:
        source: (n, w), n > w.
        target: (n, d).

    Returns:
        W (w, d) and b (d,), float32, and the report.
    """
    source, target = source.double(), target.double()
    rows = source.shape[0]
    design = torch.cat([source, source.new_ones(rows, 1)], dim=1)
    # QR, then the SVD of R, gives both the solution and the leverages. If columns are linearly dependent, it is the
    # solution of least norm.
    orthogonal, triangular = torch.linalg.qr(design)
    left, values, right = torch.linalg.svd(triangular)
    kept = values > values.max() * max(design.shape) * torch.finfo(torch.float64).eps
    basis = orthogonal @ left[:, kept]
    coordinates = basis.T @ target
    solution = right[kept].T @ (coordinates / values[kept, None])
    fitted = basis @ coordinates
    leverage = basis.square().sum(dim=1, keepdim=True).clamp(max=1 - 1e-9)
    predicted = target - (target - fitted) / (1 - leverage)
    return solution[:-1].float(), solution[-1].float(), _report(source, predicted, target)


def _report(source: Tensor, predicted: Tensor, target: Tensor) -> Alignment:
    cosine = torch.nn.functional.cosine_similarity
    others = target.roll(max(1, target.shape[0] // 2), dims=0)
    # The error of predicting each row by the mean of the others: that row is left out here too.
    rows = target.shape[0]
    spread = ((target - target.mean(dim=0)) * rows / max(rows - 1, 1)).square().sum()
    same_width = source.shape[1] == target.shape[1]
    return Alignment(
        anchors=rows,
        residual=float((predicted - target).square().sum() / spread),
        cosine=float(cosine(predicted, target).mean()),
        chance=float(cosine(predicted, others).mean()),
        unmapped=float(cosine(source, target).mean()) if same_width else None,
    )
