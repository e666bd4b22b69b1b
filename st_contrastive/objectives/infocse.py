"""InfoCSE's own term: masked-LM cross-entropy."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from st_contrastive.objectives.contrast import at_least_float32


def masked_lm(logits: Tensor, targets: Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
    r"""Masked-LM cross-entropy of the masked positions, as in InfoCSE (Wu et al., EMNLP Findings 2022).

    .. math::
        \ell = \frac{1}{|\mathcal{M}|} \sum_{i \in \mathcal{M}} -\log p(x_i \mid \tilde{x}, h)

    Args:
        logits: (M, V), of the masked positions.
        targets: (M,), the original token ids.
        reduction: the mean over the masked positions, or their sum.

    Returns:
        0-d tensor, at least float32; 0 if nothing is masked.

    Example:
        >>> import torch
        >>> round(masked_lm(torch.zeros(2, 8), torch.tensor([1, 5])).item(), 4)  # log 8
        2.0794
    """
    total = F.cross_entropy(at_least_float32(logits), targets, reduction="sum")
    return total if reduction == "sum" else total / max(len(targets), 1)
