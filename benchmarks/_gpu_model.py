"""BERT-base with random weights, its tokenizer and its texts, all made in code: nothing is downloaded.

What a step costs does not depend on the weights. The texts are made-up words, drawn as words of a language are: few of
them often, some of two pieces. They have 5 to 60 words, 20 at the median, like sentences of an encyclopedia.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SYLLABLES = [first + vowel + last for first in "bdfgklmnprstvz" for vowel in "aeiou" for last in ("", "n", "r", "s")]

BASE = BertConfig()
#: For trying the code on a CPU.
TINY = BertConfig(
    vocab_size=600,
    hidden_size=32,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
)


def vocabulary(size: int) -> list[str]:
    """Pieces of a WordPiece vocabulary: special tokens, letters, words, and pieces that continue a word."""
    draw = random.Random(0)
    pieces = dict.fromkeys([*_SPECIAL, *_LETTERS, *(f"##{letter}" for letter in _LETTERS)])
    while len(pieces) < size:
        word = "".join(draw.choices(_SYLLABLES, k=draw.choice((1, 2, 2, 3))))
        pieces[word if draw.random() < 0.85 else f"##{word}"] = None
    return list(pieces)


def sentences(count: int, size: int = BASE.vocab_size) -> list[str]:
    """The same ones each time."""
    draw = random.Random(1)
    pieces = vocabulary(size)[len(_SPECIAL) + 2 * len(_LETTERS) :]
    words = [piece for piece in pieces if not piece.startswith("##")]
    ends = [piece.removeprefix("##") for piece in pieces if piece.startswith("##")]
    weights = list(itertools.accumulate(1 / rank for rank in range(10, len(words) + 10)))
    found = []
    for _ in range(count):
        length = min(60, max(5, round(draw.lognormvariate(3.0, 0.5))))
        chosen = draw.choices(words, cum_weights=weights, k=length)
        found.append(" ".join(word + draw.choice(ends) if draw.random() < 0.1 else word for word in chosen))
    return found


def save(folder: Path, config: BertConfig) -> None:
    """A masked-LM checkpoint with its tokenizer."""
    torch.manual_seed(0)
    BertForMaskedLM(config).save_pretrained(folder)
    pieces = {piece: index for index, piece in enumerate(vocabulary(config.vocab_size))}
    BertTokenizer(vocab=pieces, model_max_length=config.max_position_embeddings).save_pretrained(folder)


def load(folder: Path, length: int) -> SentenceTransformer:
    """The encoder of such a folder under [CLS] pooling, in training mode."""
    transformer = Transformer(str(folder), max_seq_length=length)
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), "cls")]
    return SentenceTransformer(modules=modules, device="cpu").train()
