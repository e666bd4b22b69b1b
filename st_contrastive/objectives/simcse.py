"""InfoNCE, the objective that all methods here share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from st_contrastive.objectives._log_sum import LogSumOfNegatives
from st_contrastive.objectives._numerics import (
    cosine_matrix,
    full_precision,
    require_matrix,
    require_temperature,
    without_autocast,
)


def info_nce(
    anchors: Tensor,
    positives: Tensor,
    *,
    temperature: float,
    negatives: Tensor | None = None,
    negative_weights: Tensor | None = None,
    offset: int = 0,
) -> Tensor:
    r"""InfoNCE with in-batch negatives and, if given, weighted extra negatives.

    .. math::
        \ell_i = -\log \frac{e^{\mathrm{sim}(h_i, h^+_i)/\tau}}
        {\sum_j e^{\mathrm{sim}(h_i, h^+_j)/\tau} + \sum_m p_m e^{\mathrm{sim}(h_i, H_m)/\tau}}

    averaged over the anchors. This is eq. 1 of SimCSE (Gao et al., 2021), eq. 3 and 4 of ConIsI with the sentence pairs
    as positives, eq. 6 of Twins with the hippocampus as ``negatives``, and eq. 7 of Twins without it. A weight enters
    as :math:`\mathrm{sim}/\tau + \log p` in one softmax, which stays finite where :math:`p\,e^{\mathrm{sim}/\tau}`
    would not.

    Args:
        anchors: (N, d), the rows that are scored.
        positives: (P, d) with P >= N; row ``offset + i`` belongs to anchor i, all others are its negatives. P is larger
            than N where the positives of several devices were gathered.
        temperature: tau, positive.
        negatives: (K, d), negatives of every anchor, or None.
        negative_weights: (K,), each p in [0, 1]; 0 takes its row out. None weighs every negative 1.
        offset: index of the first anchor's positive.

    Returns:
        0-d tensor, at least float32. 0 for one anchor without further negatives: there is nothing to contrast.

    Raises:
        ValueError: a shape, the temperature or the offset does not fit.

    Example:
        >>> import torch
        >>> h = torch.eye(2)
        >>> round(info_nce(h, h, temperature=1.0).item(), 4)  # log(1 + e^-1)
        0.3133
        >>> queue = torch.tensor([[1.0, 0.0]])
        >>> weighted = info_nce(h, h, temperature=1.0, negatives=queue, negative_weights=torch.tensor([0.5]))
        >>> round(weighted.item(), 4)
        0.5321
    """
    require_temperature(temperature)
    require_matrix("anchors", anchors)
    require_matrix("positives", positives, anchors.shape[1])
    rows = anchors.shape[0]
    if rows == 0:
        raise ValueError("anchors holds no row; InfoNCE needs at least one.")
    if offset < 0 or offset + rows > positives.shape[0]:
        raise ValueError(
            f"positives has {positives.shape[0]} rows, but anchors {offset} to {offset + rows - 1} each need their own."
        )
    if negatives is None and negative_weights is not None:
        raise ValueError("negative_weights was given without negatives.")
    logits = cosine_matrix(anchors, positives) / temperature
    if negatives is not None and negatives.shape[0] > 0:
        require_matrix("negatives", negatives, anchors.shape[1])
        if negative_weights is not None and negative_weights.shape != negatives.shape[:1]:
            raise ValueError(
                f"negative_weights must have shape ({negatives.shape[0]},), one weight a negative, "
                f"got {tuple(negative_weights.shape)}."
            )
        logits = torch.cat([logits, _of_negatives(anchors, negatives, negative_weights, temperature)], dim=1)
    targets = torch.arange(offset, offset + rows, device=logits.device)
    with without_autocast(logits):
        return F.cross_entropy(logits, targets)


def _of_negatives(anchors: Tensor, negatives: Tensor, weights: Tensor | None, temperature: float) -> Tensor:
    """The negatives' logits, (N, K); or their logarithmic sum (N, 1), where no gradient is to reach them."""
    fixed = not negatives.requires_grad and not (weights is not None and weights.requires_grad)
    if not fixed:
        logits = cosine_matrix(anchors, negatives) / temperature
        return logits if weights is None else logits + full_precision(weights).to(logits.dtype).log()
    unit = F.normalize(full_precision(anchors), dim=-1)
    keys = full_precision(negatives).to(unit.dtype)
    scales = 1 / (temperature * torch.linalg.vector_norm(keys, dim=1).clamp(min=1e-12))
    biases = torch.zeros_like(scales) if weights is None else full_precision(weights).to(unit.dtype).log()
    total: Tensor = LogSumOfNegatives.apply(unit, keys, scales, biases)  # type: ignore[no-untyped-call]
    return total[:, None]
