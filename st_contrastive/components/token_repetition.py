"""The augmentation of ESimCSE, which repeats some tokens of a sentence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from st_contrastive.encoder.token_batch import TokenBatch

#: At most 9 tokens are repeated, one less than this limit (train.py of ESimCSE's authors).
_LIMIT = 10


class TokenRepetition(nn.Module):
    """Repeats random tokens in place. It follows truncation, so that a text gets longer and loses no token.

    In a text of L tokens, including special tokens, 0 to min(10, int(rate * L)) - 1 tokens are repeated, as in the code
    of ESimCSE's authors (Wu et al., COLING 2022). The first token, the last token and a prompt are never repeated.

    Args:
        rate: 0 to 1.
        max_length: maximum number of tokens of a text after repetition. None sets no limit.
    """

    def __init__(self, rate: float, max_length: int | None = None) -> None:
        super().__init__()
        self.rate, self.max_length = rate, max_length

    def forward(self, rows: TokenBatch) -> TokenBatch:
        """Repeat tokens of each row. The batch gets up to nine columns wider."""
        lengths = (rows.mask != 0).sum(dim=1)
        counts = self._counts(lengths)
        positions = torch.arange(rows.width, device=rows.mask.device)
        inside = (positions >= max(1, rows.prompt_length)) & (positions < lengths[:, None] - 1)
        order = torch.rand(rows.mask.shape, device=rows.mask.device).masked_fill(~inside, 2.0).argsort(dim=1)
        repeated = (order.argsort(dim=1) < counts[:, None]) & inside
        ends = (1 + repeated.long()).masked_fill(rows.mask == 0, 0).cumsum(dim=1)  # end of each token's copies
        width = rows.width + max(0, min(_LIMIT, int(self.rate * rows.width)) - 1)
        if self.max_length is not None:
            width = max(rows.width, min(width, self.max_length))
        copies = torch.arange(width, device=rows.mask.device).expand(len(rows), width).contiguous()
        source = torch.searchsorted(ends, copies, right=True).clamp(max=rows.width - 1)
        texts = {name: tensor.gather(1, source) for name, tensor in rows.token_tensors.items()}
        texts["attention_mask"] = (copies < ends[:, -1:]).to(rows.mask.dtype)
        return TokenBatch(texts, rows.per_row, rows.batch_info)

    def _counts(self, lengths: Tensor) -> Tensor:
        """Random numbers (N,) of tokens to repeat in each text."""
        limits = (self.rate * lengths).long().clamp(1, _LIMIT)
        counts = (torch.rand(lengths.shape, device=lengths.device) * limits).long()
        return counts if self.max_length is None else counts.minimum((self.max_length - lengths).clamp(min=0))
