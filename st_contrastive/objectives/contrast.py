"""InfoNCE, which all methods share, and the cosine similarities of all objectives."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor


def info_nce(
    anchors: Tensor,
    positives: Tensor,
    *,
    temperature: float,
    negatives: Tensor | None = None,
    negative_weights: Tensor | None = None,
    offset: int = 0,
) -> Tensor:
    r"""InfoNCE with in-batch negatives and optional weighted negatives.

    .. math::
        \ell_i = -\log \frac{e^{\mathrm{sim}(h_i, h^+_i)/\tau}}
        {\sum_j e^{\mathrm{sim}(h_i, h^+_j)/\tau} + \sum_m p_m e^{\mathrm{sim}(h_i, H_m)/\tau}}

    averaged over the anchors. This is eq. 1 of SimCSE (Gao et al., 2021), eq. 3 and 4 of ConIsI with the sentence pairs
    as positives, eq. 6 of Twins with the hippocampus queue as ``negatives``, and eq. 7 of Twins without it. A weight is
    added as :math:`\mathrm{sim}/\tau + \log p` in one softmax, which stays finite where
    :math:`p\,e^{\mathrm{sim}/\tau}` overflows.

    Args:
        anchors: (N, d).
        positives: (P, d) with P >= N. Row ``offset + i`` is the positive of anchor i, and all other rows are its
            negatives. P is larger than N if the positives of several devices were gathered.
        temperature: tau, above 0.
        negatives: (K, d), further negatives of every anchor, or None.
        negative_weights: (K,), each p in [0, 1]. 0 removes the row. None weights every negative by 1.
        offset: index of the first anchor's positive.

    Returns:
        0-d tensor, at least float32. It is 0 for one anchor without further negatives.

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
    candidates = positives if negatives is None else torch.cat([positives, negatives])
    similarities = cast(Tensor, cosine_blocks(anchors, candidates)[0])
    return info_nce_of_cosines(similarities, temperature=temperature, weights=negative_weights, offset=offset)


def info_nce_of_cosines(
    similarities: Tensor, *, temperature: float, weights: Tensor | None = None, offset: int = 0
) -> Tensor:
    """:func:`info_nce` from cosines.

    Args:
        similarities: (N, P + K), at least float32: the cosines of each anchor with the positives and the negatives.
        weights: (K,), p of the last K columns. None weights them by 1.
    """
    logits = similarities / temperature
    if weights is not None and len(weights):
        logits = logits + F.pad(weights.log(), (logits.shape[1] - len(weights), 0))
    return F.cross_entropy(logits, torch.arange(offset, offset + len(logits), device=logits.device))


def normalized(vectors: Tensor) -> Tensor:
    """The rows scaled to length 1, at least float32."""
    return F.normalize(at_least_float32(vectors), dim=-1)


def cosine_blocks(anchors: Tensor, *others: Tensor | None) -> list[Tensor | None]:
    """Cosines of each anchor with the rows of several matrices, from one normalisation and one matrix product.

    Args:
        anchors: (N, d).
        others: matrices (K, d), or None.

    Returns:
        (N, K) for each matrix. None stays None.
    """
    present = [rows for rows in others if rows is not None]
    left, right = torch.split(normalized(torch.cat([anchors, *present])), [len(anchors), sum(map(len, present))])
    with torch.autocast(anchors.device.type, enabled=False):  # autocast would multiply in half precision
        whole = left @ right.T
    blocks = iter(torch.split(whole, [len(rows) for rows in present], dim=1) if len(present) > 1 else [whole])
    return [None if rows is None else next(blocks) for rows in others]


def pairwise_cos_sim(left: Tensor, right: Tensor) -> Tensor:
    """Cosine of the i-th row of ``left`` with the i-th row of ``right``, both (N, d): (N,)."""
    left, right = normalized(torch.cat([left, right])).chunk(2)
    return (left * right).sum(dim=-1)


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor, converted to float32 if it has half precision.

    A temperature of 0.05 multiplies a cosine by 20, and bfloat16's eight bits would round each logit to steps of about
    0.1.
    """
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
