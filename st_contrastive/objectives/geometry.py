"""Measures of an embedding space: alignment, uniformity, and the mutual information of two views."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from st_contrastive.objectives.contrast import full_precision, info_nce

_ROWS_AT_ONCE = 1024


def alignment(first: Tensor, second: Tensor, *, power: float = 2.0) -> Tensor:
    r"""Mean distance between two views of the same item; smaller is closer.

    .. math:: \mathbb{E}\, \lVert f(x) - f(x^+) \rVert^{\alpha}

    with unit vectors f; eq. 1 of Wang and Isola (2020), as SimCSE measures it.

    Args:
        first: (N, d).
        second: (N, d), row i the other view of row i.
        power: alpha.

    Returns:
        0-d tensor, from 0 to 2 ** alpha.

    Example:
        >>> import torch
        >>> round(alignment(torch.eye(2), torch.eye(2).flip(0)).item(), 4)  # the squared distance of right angles
        2.0
    """
    unit = [F.normalize(full_precision(rows), dim=-1) for rows in (first, second)]
    distances: Tensor = torch.linalg.vector_norm(unit[0] - unit[1], dim=1)
    return distances.pow(power).mean()


def uniformity(vectors: Tensor, *, scale: float = 2.0) -> Tensor:
    r"""How evenly embeddings are spread over the sphere; smaller is more even.

    .. math:: \log\, \mathbb{E}_{x \ne y}\; e^{-t \lVert f(x) - f(y) \rVert^2}

    over all pairs of distinct rows; eq. 2 of Wang and Isola (2020), as SimCSE measures it.

    Args:
        vectors: (N, d).
        scale: t.

    Returns:
        0-d tensor, from -4 t to 0.

    Example:
        >>> import torch
        >>> round(uniformity(torch.eye(2)).item(), 4)  # log(e^(-2 * 2))
        -4.0
    """
    count = vectors.shape[0]
    unit = F.normalize(full_precision(vectors), dim=-1)
    sums = []
    for start in range(0, count, _ROWS_AT_ONCE):
        part = unit[start : start + _ROWS_AT_ONCE]
        exponents = scale * (2 * part @ unit.T - 2)
        own = torch.arange(start, start + part.shape[0], device=unit.device)[:, None]
        exponents = exponents.scatter(1, own, -math.inf)  # a row and itself do not count
        sums.append(exponents.flatten().logsumexp(dim=0))
    return torch.stack(sums).logsumexp(dim=0) - math.log(count * (count - 1))


def mutual_information(
    first: Tensor, second: Tensor, *, temperatures: Sequence[float] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
) -> Tensor:
    r"""Lower bound on the mutual information of two views, in nats.

    .. math:: I(x; x^+) \ge \log N - \ell_{\mathrm{InfoNCE}}

    the bound of van den Oord et al. (2018), with cosine similarity over tau as the critic. It holds for every critic,
    so the largest over the temperatures is taken. Only bounds from the same number of rows can be compared, because
    none exceeds log N.

    Args:
        first: (N, d).
        second: (N, d), row i the other view of row i.
        temperatures: the values of tau to try.

    Returns:
        0-d tensor, at most log N.

    Example:
        >>> import torch
        >>> round(mutual_information(torch.eye(4), torch.eye(4)).item(), 3)  # log 4
        1.386
    """
    losses = [info_nce(first, second, temperature=temperature) for temperature in temperatures]
    return math.log(first.shape[0]) - torch.stack(losses).min()
