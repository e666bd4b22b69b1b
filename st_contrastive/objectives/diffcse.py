"""DiffCSE's own term: which tokens were replaced."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from st_contrastive.objectives.contrast import at_least_float32


def replaced_tokens(
    logits: Tensor, replaced: Tensor, attended: Tensor, *, reduction: Literal["mean", "sum"] = "mean"
) -> Tensor:
    r"""Replaced-token detection, eq. 3 and 4 of DiffCSE (Chuang et al., NAACL 2022), over the attended positions.

    .. math::
        \ell = -\frac{1}{T} \sum_{t=1}^{T} \log p\big([x'_t \neq x_t] \mid x', h\big)

    Args:
        logits: (N, L, 2), scores of "original" and "replaced".
        replaced: (N, L) bool.
        attended: (N, L), the attention mask; padding does not count.
        reduction: the mean over the attended positions, or their sum.

    Returns:
        0-d tensor, at least float32; 0 if nothing is attended.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[[0.0, 1.0986123], [0.0, 0.0], [9.0, 0.0]]])  # log 3
        >>> loss = replaced_tokens(logits, torch.tensor([[True, False, True]]), torch.tensor([[1, 1, 0]]))
        >>> round(loss.item(), 4)  # (log 4/3 + log 2) / 2
        0.4904
    """
    counted = attended != 0
    losses = F.cross_entropy(at_least_float32(logits).flatten(0, 1), replaced.flatten().long(), reduction="none")
    total = (losses * counted.flatten()).sum()
    return total if reduction == "sum" else total / counted.sum().clamp(min=1)
