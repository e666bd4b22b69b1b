"""Random corruption of tokens on the device."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from st_contrastive.encoder.token_batch import CorruptedTokens


class TokenCorruption(nn.Module):
    """Chooses random tokens. A chosen token is replaced by the mask token or by a random token, or is not changed.

    Special tokens and padding are never chosen, and random tokens are never special tokens.

    Args:
        tokenizer: the encoder's tokenizer.
        rate: fraction of the tokens to choose, 0 to 1.
        mask_share: fraction of the chosen tokens to replace by the mask token.
        random_share: fraction of the chosen tokens to replace by a random token. The rest is not changed.
    """

    special: Tensor  # (V,) bool, True for special tokens
    ordinary: Tensor  # ids of all other tokens

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, rate: float, mask_share: float, random_share: float
    ) -> None:
        super().__init__()
        self.rate, self.mask_share, self.random_share = rate, mask_share, random_share
        self.mask_id = tokenizer.mask_token_id if mask_share else None
        if mask_share and self.mask_id is None:
            raise ValueError(
                f"The tokenizer {type(tokenizer).__name__} has no mask token, which masked-LM needs. Use an encoder "
                "that was trained by masked-LM, such as BERT or RoBERTa, or set model.tokenizer.mask_token if this one "
                "was."
            )
        ids = sorted(set(tokenizer.get_vocab().values()))
        added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        specials = added | set(tokenizer.all_special_ids)
        ordinary = [i for i in ids if i not in specials]
        # Not persistent, because the tokenizer determines them.
        special = torch.zeros(max(ids, default=0) + 1, dtype=torch.bool)
        special[[i for i in specials if i < len(special)]] = True
        self.register_buffer("special", special, persistent=False)
        self.register_buffer("ordinary", torch.tensor(ordinary, dtype=torch.long), persistent=False)

    @classmethod
    def masking(cls, tokenizer: PreTrainedTokenizerBase, rate: float) -> TokenCorruption:
        """Masked-LM corruption (Devlin et al., 2019): 80 % become the mask token, 10 % a random token, 10 % stay."""
        return cls(tokenizer, rate=rate, mask_share=0.8, random_share=0.1)

    @classmethod
    def replacement(
        cls, tokenizer: PreTrainedTokenizerBase, rate: float, unreplaced: Literal["original", "mask"] = "original"
    ) -> TokenCorruption:
        """Subword replacement of ConIsI-o1 (section 3.2.1): 80 % of the chosen tokens become random tokens.

        The other 20 % stay (``unreplaced="original"``) or become the mask token ("mask").
        """
        mask_share = 0.2 if unreplaced == "mask" else 0.0
        return cls(tokenizer, rate=rate, mask_share=mask_share, random_share=0.8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> CorruptedTokens:
        """Corrupt a copy of ``input_ids`` (N, L) where ``attention_mask`` (N, L) is not 0."""
        shape, device = input_ids.shape, input_ids.device
        # Tokens with a draw below the rate are chosen. The lowest draws are masked, and the next become random.
        draw = torch.rand(shape, device=device)
        chosen = attention_mask.bool() & ~self.special[input_ids] & (draw < self.rate)
        corrupted = input_ids
        if self.random_share:
            random = self.ordinary[torch.randint(len(self.ordinary), shape, device=device)]
            changed = chosen & (draw < self.rate * (self.mask_share + self.random_share))
            corrupted = torch.where(changed, random, corrupted)
        if self.mask_id is not None:
            corrupted = torch.where(chosen & (draw < self.rate * self.mask_share), self.mask_id, corrupted)
        return CorruptedTokens(corrupted, chosen)
