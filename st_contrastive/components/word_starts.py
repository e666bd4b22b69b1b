"""Which tokens of a vocabulary go on with the word before them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

#: How byte-level and SentencePiece vocabularies write the space before a word.
_SPACES = ("Ġ", "▁")


def continuations(tokenizer: PreTrainedTokenizerBase, size: int) -> Tensor:
    """(size,) bool: True for a token that goes on with a word, by id.

    Read off the vocabulary, so that words can be told apart on the device, from token ids alone: WordPiece marks the
    pieces inside a word by "##", the others mark the space before a word. Punctuation is a word of its own.

    Raises:
        ValueError: the vocabulary marks neither.
    """
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    inside = [token_id for token, token_id in vocabulary.items() if token.startswith("##") and len(token) > 2]
    if not inside:
        if not any(token.startswith(_SPACES) and len(token) > 1 for token in vocabulary):
            raise ValueError(
                f"The vocabulary of {type(tokenizer).__name__} marks neither the inside of words ('##') nor the space "
                "before them, so that whole words can't be told: leave whole_words=False."
            )
        inside = [
            token_id
            for token, token_id in vocabulary.items()
            if not token.startswith(_SPACES) and _is_word_part(tokenizer.convert_tokens_to_string([token]))
        ]
    flags = torch.zeros(size, dtype=torch.bool)
    flags[[token_id for token_id in inside if token_id < size]] = True
    return flags


def _is_word_part(text: str) -> bool:
    """Letters and digits, or a piece of a character's bytes, which does not decode."""
    return bool(text) and (text[0].isalnum() or text[0] == "\ufffd")
