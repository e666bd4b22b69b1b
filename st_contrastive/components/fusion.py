"""The fused token embeddings of a sentence and its translation, which make the fraternal twin."""

from __future__ import annotations

import torch
from torch import Tensor


def fused_embeddings(
    own: Tensor, own_mask: Tensor, foreign: Tensor, foreign_mask: Tensor, *, share: float, full_where_unpaired: bool
) -> tuple[Tensor, Tensor]:
    r"""Twins' eq. 3, :math:`\epsilon y + (1 - \epsilon) y_F`, position by position.

    Args:
        own: y, (N, L, d), the sentences' token embeddings.
        own_mask: (N, L), 1 where the sentence has a token.
        foreign: y_F, (N, L, d), the translations'.
        foreign_mask: (N, L), 1 where the translation has a token.
        share: epsilon, 0 to 1. A language whose share is 0 has no token.
        full_where_unpaired: where only one of the two has a token, take its embedding as it is; else times its share.

    Returns:
        The fused embeddings, (N, L, d), zeros where neither has a token, and their mask, (N, L).

    Example:
        >>> import torch
        >>> own, foreign = torch.ones(1, 3, 1), torch.full((1, 3, 1), 3.0)
        >>> masks = torch.tensor([[1, 1, 0]]), torch.tensor([[1, 0, 0]])
        >>> fused, mask = fused_embeddings(own, masks[0], foreign, masks[1], share=0.5, full_where_unpaired=True)
        >>> fused.flatten().tolist(), mask.tolist()
        ([2.0, 1.0, 0.0], [[1, 1, 0]])
    """
    own_mask, foreign_mask = own_mask * (share > 0), foreign_mask * (share < 1)
    has_own, has_foreign = own_mask.bool()[..., None], foreign_mask.bool()[..., None]
    own_part, foreign_part = share * own, (1 - share) * foreign
    if full_where_unpaired:
        own_part = torch.where(has_foreign, own_part, own)
        foreign_part = torch.where(has_own, foreign_part, foreign)
    fused = torch.where(has_own, own_part, 0) + torch.where(has_foreign, foreign_part, 0)
    return fused, torch.maximum(own_mask, foreign_mask)
