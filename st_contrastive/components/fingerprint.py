"""A fingerprint of a tokenizer's vocabulary."""

from __future__ import annotations

import zlib

from transformers import PreTrainedTokenizerBase


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> int:
    """A 31-bit checksum of all tokens and their ids."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    text = "\n".join(f"{token_id} {token}" for token, token_id in vocabulary)
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF
