"""Random replacement of tokens, on the tokens' device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, final

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from st_contrastive._checks import require_choice, require_number
from st_contrastive.encoder import CorruptedTokens

#: How byte-level and SentencePiece vocabularies write the space before a word.
_SPACES = ("Ġ", "▁")


@final
class TokenCorruption(nn.Module):
    """Chooses a share of the tokens; each becomes the mask token, becomes a random token, or stays.

    Special tokens and padding are never chosen, and a random token is never a special one. The choice is drawn from
    PyTorch's global generator, so a seed makes it repeatable.

    Args:
        tokenizer: the encoder's.
        rate: share of the tokens to choose, 0 to 1.
        mask_share: share of the chosen tokens that become the mask token.
        random_share: share of the chosen tokens that become a random token; the rest stays.
        whole_words: choose whole words, with all their tokens.
        vocabulary: rows of the encoder's embedding matrix, if the tokenizer may have more tokens.

    Raises:
        ValueError: a share is not in [0, 1], the shares add up to more than 1, or the tokenizer has no mask token, no
            ordinary token or no marks of words, and one is needed.
    """

    special: Tensor  # (V,) bool
    ordinary: Tensor  # ids that random tokens are drawn from
    inside: Tensor  # (V,) bool, tokens that can continue a word; only with whole_words
    open_ended: Tensor  # (V,) bool, tokens after which a word can continue; only with whole_words

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        rate: float,
        mask_share: float,
        random_share: float,
        whole_words: bool = False,
        vocabulary: int | None = None,
    ) -> None:
        super().__init__()
        for name, share in (("rate", rate), ("mask_share", mask_share), ("random_share", random_share)):
            require_number(name, share, most=1)
        if mask_share + random_share > 1:
            raise ValueError(f"mask_share + random_share must not exceed 1, got {mask_share} + {random_share}.")
        self.rate, self.mask_share, self.random_share = rate, mask_share, random_share
        self.whole_words = whole_words
        if mask_share and tokenizer.mask_token_id is None:
            raise ValueError(
                f"The tokenizer {type(tokenizer).__name__} has no mask token, which masked-LM needs. Take an encoder "
                "that was trained by masked-LM, such as BERT or RoBERTa; if this one was, set "
                "model.tokenizer.mask_token."
            )
        self.mask_id = tokenizer.mask_token_id if mask_share else None
        ids = sorted(set(tokenizer.get_vocab().values()))
        added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        specials = added | set(tokenizer.all_special_ids)
        ordinary = [i for i in ids if i not in specials and (vocabulary is None or i < vocabulary)]
        if mask_share and vocabulary is not None and tokenizer.mask_token_id >= vocabulary:
            raise ValueError(
                f"The mask token's id is {tokenizer.mask_token_id}, the encoder has {vocabulary} embeddings: call "
                "resize_token_embeddings(len(tokenizer)) on the encoder."
            )
        if random_share and not ordinary:
            raise ValueError(f"The tokenizer {type(tokenizer).__name__} has no token that is not a special one.")
        # Not persistent, because they follow from the tokenizer.
        special = torch.zeros(max(ids, default=0) + 1, dtype=torch.bool)
        special[[i for i in specials if i < len(special)]] = True
        self.register_buffer("special", special, persistent=False)
        self.register_buffer("ordinary", torch.tensor(ordinary, dtype=torch.long), persistent=False)
        if whole_words:
            inside, open_ended = _word_marks(tokenizer, len(special))
            self.register_buffer("inside", inside, persistent=False)
            self.register_buffer("open_ended", open_ended, persistent=False)

    @classmethod
    def masking(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        rate: float,
        *,
        whole_words: bool = False,
        vocabulary: int | None = None,
    ) -> TokenCorruption:
        """Masked-LM corruption (Devlin et al., 2019): 80 % become the mask token, 10 % a random one, 10 % stay."""
        return cls(
            tokenizer, rate=rate, mask_share=0.8, random_share=0.1, whole_words=whole_words, vocabulary=vocabulary
        )

    @classmethod
    def replacement(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        rate: float,
        *,
        unreplaced: Literal["original", "mask"] = "original",
        vocabulary: int | None = None,
    ) -> TokenCorruption:
        """ConIsI-o1's subword replacement (section 3.2.1): of the chosen tokens 80 % become random ones.

        Args:
            tokenizer: the encoder's.
            rate: share of the tokens to choose, 0 to 1.
            unreplaced: what becomes of the other 20 %. "original" keeps them; "mask" makes them the mask token.
            vocabulary: see the class.

        Raises:
            ValueError: ``unreplaced`` is neither, or it is "mask" and the tokenizer has no mask token.
        """
        require_choice("unreplaced", unreplaced, ("original", "mask"))
        if unreplaced == "mask" and tokenizer.mask_token_id is None:
            raise ValueError(
                f"unreplaced='mask' needs a mask token, and the tokenizer {type(tokenizer).__name__} has none: use "
                "unreplaced='original', or set model.tokenizer.mask_token."
            )
        mask_share = 0.2 if unreplaced == "mask" else 0.0
        return cls(tokenizer, rate=rate, mask_share=mask_share, random_share=0.8, vocabulary=vocabulary)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> CorruptedTokens:
        """Corrupt a copy of ``input_ids`` (N, L) at positions whose ``attention_mask`` (N, L) is not 0."""
        shape, device = input_ids.shape, input_ids.device
        eligible = attention_mask.bool() & ~self.special[input_ids]
        drawn_share = torch.rand(shape, device=device)
        if self.whole_words:
            drawn_share = drawn_share.gather(1, self._words(input_ids))
        chosen = eligible & (drawn_share < self.rate)
        fate = torch.rand(shape, device=device)
        corrupted = input_ids
        if self.random_share:
            drawn = self.ordinary[torch.randint(len(self.ordinary), shape, device=device)]
            to_random = chosen & (fate >= self.mask_share) & (fate < self.mask_share + self.random_share)
            corrupted = torch.where(to_random, drawn, corrupted)
        if self.mask_id is not None:
            corrupted = torch.where(chosen & (fate < self.mask_share), self.mask_id, corrupted)
        return CorruptedTokens(corrupted, chosen)

    def _words(self, input_ids: Tensor) -> Tensor:
        """(N, L), for each token the position of its word's first token."""
        special = self.special[input_ids]
        # After a special token a word always begins: the sentence's first word has no space before it.
        continues = self.inside[input_ids] & ~special
        continues[:, 1:] &= (self.open_ended[input_ids] & ~special)[:, :-1]
        continues[:, 0].fill_(False)
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        return torch.where(continues, 0, places).cummax(dim=1).values


def _word_marks(tokenizer: PreTrainedTokenizerBase, size: int) -> tuple[Tensor, Tensor]:
    """Two flags for each token, (size,) bool each: it can continue a word; a word can continue after it.

    With them the device finds words from token ids. WordPiece marks the pieces inside a word by "##", and other
    vocabularies mark the space before a word. Each punctuation mark is a word. In a vocabulary that marks spaces, text
    without spaces is one word up to the next punctuation mark.

    Raises:
        ValueError: the vocabulary marks neither.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    pieces = [token for token in vocabulary if token.startswith("##") and token[2:].isalnum()]
    spaced = [token for token in vocabulary if token.startswith(_SPACES) and len(token) > 1]
    if not pieces and not spaced:
        raise ValueError(
            f"The vocabulary of {type(tokenizer).__name__} marks neither the inside of words ('##') nor the space "
            "before them, so whole words can't be found: leave whole_words=False."
        )
    if len(pieces) > len(spaced):  # a byte-level vocabulary may have tokens of number signs
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
    """A letter or digit, or a part of a character, which does not decode."""
    return character.isalnum() or character == "\ufffd"
