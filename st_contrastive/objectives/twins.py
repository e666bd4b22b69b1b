"""The Twins paper's own equations: fused embeddings, the weights of forgetting, and the margin between the twins."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def fused_embeddings(
    sentence: Tensor,
    sentence_mask: Tensor,
    translation: Tensor,
    translation_mask: Tensor,
    *,
    epsilon: float,
    full_where_unpaired: bool,
) -> tuple[Tensor, Tensor]:
    r"""Eq. 3 of Xiao, Li and Chen (2023, arXiv 2307.10932), :math:`\epsilon y + (1 - \epsilon) y_F`, at each position.

    A language whose share is 0 has no token. Where neither has one, the result is undefined and masked out.

    Args:
        sentence: y, (N, L, d).
        sentence_mask: (N, L), 1 where there is a token.
        translation: y_F, (N, L, d).
        translation_mask: (N, L).
        epsilon: the sentence's share, 0 to 1.
        full_where_unpaired: where one of the two alone has a token, take its embedding as it is, else times its share.

    Returns:
        The fused embeddings (N, L, d) and their mask (N, L).

    Example:
        >>> import torch
        >>> y, y_f = torch.full((1, 2, 1), 1.0), torch.full((1, 2, 1), 2.0)
        >>> both, first = torch.tensor([[1, 1]]), torch.tensor([[1, 0]])
        >>> fused, mask = fused_embeddings(y, both, y_f, first, epsilon=0.75, full_where_unpaired=True)
        >>> fused.flatten().tolist(), mask.tolist()
        ([1.25, 1.0], [[1, 1]])
    """
    if epsilon in (0, 1):  # as if one language had no token
        sentence_mask, translation_mask = sentence_mask * (epsilon > 0), translation_mask * (epsilon < 1)
    mine, theirs = (mask.to(sentence.dtype)[..., None] for mask in (sentence_mask, translation_mask))
    if full_where_unpaired:
        fused = torch.lerp(sentence, translation, theirs * (1 - epsilon * mine))
    else:
        fused = epsilon * mine * sentence + (1 - epsilon) * theirs * translation
    return fused, torch.maximum(sentence_mask, translation_mask)


def forgetting_weights(ages: Tensor, rate: float) -> Tensor:
    r"""Eq. 4 of the same paper: the weight of a past batch, :math:`p = 1 - \text{rate} \cdot a`.

    Args:
        ages: a, in batches, 1 for the newest.
        rate: less than 1 / k, k the oldest age.

    Example:
        >>> import torch
        >>> forgetting_weights(torch.tensor([1.0, 2.0]), 0.25).tolist()
        [0.75, 0.5]
    """
    return 1 - rate * ages


def twins_margin(
    identical: Tensor, fraternal: Tensor, identical_inputs: Tensor | float, fraternal_inputs: Tensor
) -> Tensor:
    r"""The Twins loss, eq. 8 of the same paper.

    .. math::
        \ell_i = \left| e^{\mathrm{sim}(h_i, h^+_i)} - e^{\mathrm{sim}(h_i, h^-_i)} - M_i \right|, \quad
        M_i = e^{\mathrm{sim}(x_i, x^+_i)} - e^{\mathrm{sim}(x_i, x^-_i)}

    averaged over the rows: the twins should differ at the output as much as they do at the embedding layer. There is
    no temperature. M is a target: compute its cosines without gradient.

    Args:
        identical: sim(h, h+), (N,), the cosine with the same input under another dropout mask.
        fraternal: sim(h, h-), (N,), with the input that is fused with its translation.
        identical_inputs: sim(x, x+), (N,), at the embedding layer, or a number that all rows have.
        fraternal_inputs: sim(x, x-), (N,).

    Returns:
        0-d tensor, in [0, 2(e - 1/e)].

    Example:
        >>> import torch
        >>> same, orthogonal = torch.tensor([1.0]), torch.tensor([0.0])
        >>> round(twins_margin(same, orthogonal, same, same).item(), 4)  # e^1 - e^0, and M = 0
        1.7183
        >>> twins_margin(same, orthogonal, 1.0, orthogonal).item()
        0.0
    """
    wanted = identical_inputs.exp() if isinstance(identical_inputs, Tensor) else math.exp(identical_inputs)
    margin = wanted - fraternal_inputs.exp()
    return (identical.exp() - fraternal.exp() - margin).abs().mean()
