"""Random replacement of tokens, drawn on the device that holds them."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from st_contrastive._checks import require_number
from st_contrastive.components.word_starts import word_marks
from st_contrastive.encoder import CorruptedTokens


@final
class TokenCorruption(nn.Module):
    """Chooses a share of the tokens; each becomes the mask token, a random token, or stays.

    Special tokens and padding are never chosen, and a random token is never a special one. Drawn from PyTorch's global
    generator, so that a seed fixes it.

    Args:
        tokenizer: knows the vocabulary, the special tokens and the mask token.
        rate: share of the tokens that are chosen, 0 to 1.
        mask_share: share of the chosen that become the mask token.
        random_share: share of the chosen that become a random token; the rest stays as it is.
        whole_words: choose words, with all of their tokens, rather than tokens.
        vocabulary: rows of the encoder's embedding matrix, where the tokenizer may know more tokens.

    Raises:
        ValueError: a share is not in [0, 1], both shares exceed 1 together, or the tokenizer lacks what is asked for.
    """

    special: Tensor  # (V,) bool
    ordinary: Tensor  # ids that a random token is drawn from
    inside: Tensor  # (V,) bool, where whole words are chosen: the tokens that can go on with a word
    open_ended: Tensor  # (V,) bool, and those behind which a word can go on

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
                f"The tokenizer {type(tokenizer).__name__} has no mask token, which masked-LM needs. Take "
                "an encoder that was trained by masked-LM, such as BERT or RoBERTa; if this one was, set "
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
        # Follow from the tokenizer, so that checkpoints need not hold them.
        special = torch.zeros(max(ids, default=0) + 1, dtype=torch.bool)
        special[[i for i in specials if i < len(special)]] = True
        self.register_buffer("special", special, persistent=False)
        self.register_buffer("ordinary", torch.tensor(ordinary, dtype=torch.long), persistent=False)
        if whole_words:
            inside, open_ended = word_marks(tokenizer, len(special))
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
        """Masked-LM corruption (Devlin et al., 2019): 80 % mask, 10 % random, 10 % as it is."""
        return cls(
            tokenizer, rate=rate, mask_share=0.8, random_share=0.1, whole_words=whole_words, vocabulary=vocabulary
        )

    @classmethod
    def replacement(
        cls, tokenizer: PreTrainedTokenizerBase, rate: float, *, unreplaced: Literal["original", "mask"] = "original"
    ) -> TokenCorruption:
        """ConIsI-o1's subword replacement (section 3.2.1): of the chosen tokens 80 % become random ones.

        Args:
            tokenizer: knows the vocabulary, the special tokens and the mask token.
            rate: share of the tokens that are chosen, 0 to 1.
            unreplaced: what the other 20 % are. "original" leaves them as they were, "mask" as the mask token.

        Raises:
            ValueError: ``unreplaced`` is neither, or "mask" under a tokenizer without a mask token.
        """
        if unreplaced not in ("original", "mask"):
            raise ValueError(f"unreplaced must be 'original' or 'mask', got {unreplaced!r}.")
        if unreplaced == "mask" and tokenizer.mask_token_id is None:
            raise ValueError(
                f"unreplaced='mask' needs a mask token, and the tokenizer {type(tokenizer).__name__} has none: take "
                "unreplaced='original', or set model.tokenizer.mask_token."
            )
        return cls(tokenizer, rate=rate, mask_share=0.2 if unreplaced == "mask" else 0.0, random_share=0.8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> CorruptedTokens:
        """Corrupt ``input_ids`` (N, L) wherever ``attention_mask`` (N, L) is not 0; the input is left as it is."""
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
        # A word begins behind a special token, whatever the piece looks like: the sentence's first has no space.
        goes_on = self.inside[input_ids] & ~special
        goes_on[:, 1:] &= (self.open_ended[input_ids] & ~special)[:, :-1]
        goes_on[:, 0].fill_(False)
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        return torch.where(goes_on, 0, places).cummax(dim=1).values
