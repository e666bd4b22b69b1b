"""InfoCSE's own term: masked-LM cross-entropy."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from st_contrastive.objectives._numerics import full_precision, without_autocast

#: Label of a position that is not predicted, as in transformers and PyTorch.
IGNORED = -100


def masked_lm(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Masked-LM cross-entropy over the masked positions, eq. 5 to 7 of InfoCSE (Wu et al., EMNLP Findings 2022).

    .. math::
        \ell = \frac{1}{|\mathcal{M}|} \sum_{i \in \mathcal{M}} -\log p(x_i \mid \tilde{x}, h)

    Args:
        logits: (..., V). Pass the masked positions alone, (M, V): the others would be computed for nothing.
        labels: (...), the original token ids; -100 marks a position that is not counted.

    Returns:
        0-d tensor, at least float32; 0 where nothing is masked.

    Raises:
        ValueError: the shapes do not fit.

    Example:
        >>> import torch
        >>> round(masked_lm(torch.zeros(3, 8), torch.tensor([1, 5, -100])).item(), 4)  # log 8
        2.0794
    """
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"labels must have the shape of logits without the vocabulary, {tuple(logits.shape[:-1])}, "
            f"got {tuple(labels.shape)}."
        )
    flat = full_precision(logits).reshape(-1, logits.shape[-1])
    targets = labels.reshape(-1)
    with without_autocast(flat):
        total = F.cross_entropy(flat, targets, ignore_index=IGNORED, reduction="sum")
    return total / (targets != IGNORED).sum().clamp(min=1)
