"""One number that tells tokenizers apart."""

from __future__ import annotations

import zlib

from transformers import PreTrainedTokenizerBase


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> int:
    """31 bits of all tokens and their ids: two tokenizers that agree in it write the same ids for the same tokens."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    text = "\n".join(f"{token_id} {token}" for token, token_id in vocabulary)
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF
