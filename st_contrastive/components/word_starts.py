"""Where words begin, read off a vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

#: How byte-level and SentencePiece vocabularies write the space before a word.
_SPACES = ("Ġ", "▁")


def word_marks(tokenizer: PreTrainedTokenizerBase, size: int) -> tuple[Tensor, Tensor]:
    """Two flags a token, (size,) bool each: it can go on with a word; a word can go on behind it.

    So words can be told apart on the device, from token ids alone. WordPiece marks the pieces inside a word by "##",
    the others mark the space before a word. Punctuation is a word of its own. Text without spaces, in a vocabulary that
    marks spaces, is one word from one punctuation mark to the next.

    Raises:
        ValueError: the vocabulary marks neither.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    pieces = [token for token in vocabulary if token.startswith("##") and token[2:].isalnum()]
    spaced = [token for token in vocabulary if token.startswith(_SPACES) and len(token) > 1]
    if not pieces and not spaced:
        raise ValueError(
            f"The vocabulary of {type(tokenizer).__name__} marks neither the inside of words ('##') nor the space "
            "before them, so that whole words can't be told: leave whole_words=False."
        )
    if len(pieces) > len(spaced):  # a byte-level vocabulary may hold a row of number signs
        return _flags(vocabulary, size, lambda token: token.startswith("##")), torch.ones(size, dtype=torch.bool)

    def text(token: str) -> str:
        return tokenizer.convert_tokens_to_string([token]).strip()

    inside = _flags(vocabulary, size, lambda token: not token.startswith(_SPACES) and _is_word_part(text(token)[:1]))
    return inside, _flags(vocabulary, size, lambda token: _is_word_part(text(token)[-1:]))


def _flags(vocabulary: dict[str, int], size: int, holds: Callable[[str], bool]) -> Tensor:
    flags = torch.zeros(size, dtype=torch.bool)
    flags[[token_id for token, token_id in vocabulary.items() if token_id < size and holds(token)]] = True
    return flags


def _is_word_part(character: str) -> bool:
    """A letter or digit, or a piece of a character's bytes, which does not decode."""
    return character.isalnum() or character == "\ufffd"
