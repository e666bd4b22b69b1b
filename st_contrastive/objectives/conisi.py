"""ConIsI's own term: the interaction between two sentences of one pair."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from st_contrastive.objectives.contrast import at_least_float32


def interaction(
    positive_scores: Tensor,
    negative_scores: Tensor,
    *,
    valid: Tensor | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    r"""The inter-sentence interaction loss, eq. 8 and 9 of ConIsI (Sun and Huang, CCL 2022).

    .. math::
        \ell_i = -\log \frac{e^{r^Y_i}}{e^{r^Y_i} + e^{r^Z_i}} = \mathrm{softplus}(r^Z_i - r^Y_i)

    The paper declares r as a vector, while its formula needs a number: the formula is taken coordinate by coordinate
    and averaged over the coordinates, which for r of width 1 is the scalar reading.

    Args:
        positive_scores: r^Y, (N, c), of the sentence paired with itself.
        negative_scores: r^Z, (N, c), of the sentence paired with the constructed sentence.
        valid: (N,) bool; rows that are False do not count, because their constructed sentence is the sentence itself.
            None counts all rows.
        reduction: the mean over the rows that count, or their sum.

    Returns:
        0-d tensor, at least float32; 0 if no row is valid.

    Example:
        >>> import torch
        >>> round(interaction(torch.zeros(2, 3), torch.zeros(2, 3)).item(), 4)  # log 2
        0.6931
    """
    rows = F.softplus(at_least_float32(negative_scores) - at_least_float32(positive_scores)).mean(dim=1)
    total = (rows if valid is None else rows * valid).sum()
    if reduction == "sum":
        return total
    return total / (len(rows) if valid is None else valid.sum().clamp(min=1))
