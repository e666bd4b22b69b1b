"""ConIsI's interactive term: the interaction between the two sentences of a pair."""

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

    r is the output of the interaction classifier f (eq. 7). The paper declares r as a vector in R^d, but eq. 8 needs a
    number. Here the equation is applied to each coordinate and averaged over the coordinates. If r has width 1, this
    is exactly eq. 8.

    Args:
        positive_scores: r^Y, (N, c), of the sentence paired with itself.
        negative_scores: r^Z, (N, c), of the sentence paired with the constructed sentence.
        valid: (N,) bool. Rows with False are ignored, because their constructed sentence is the sentence itself. None
            counts all rows.
        reduction: the mean or the sum over the rows that are not ignored.

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
