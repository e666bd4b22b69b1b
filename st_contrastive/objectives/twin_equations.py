"""Equations of the Twins paper: fused embeddings, forgetting coefficients, and the margin between the twins."""

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
    r"""The fused token embeddings of a sentence and its translation, position by position.

    This is :math:`\epsilon y + (1 - \epsilon) y^-`, eq. 3 of Xiao, Li and Chen (2023, arXiv 2307.10932). A language
    with a share of 0 counts as having no token. Positions without any token have undefined values and are masked.

    Args:
        sentence: y, (N, L, d).
        sentence_mask: (N, L), 1 where there is a token.
        translation: y^-, (N, L, d).
        translation_mask: (N, L).
        epsilon: the sentence's share, 0 to 1.
        full_where_unpaired: at positions where only one of the two has a token, use its embedding unchanged. False
            multiplies it by its share.

    Returns:
        The fused embeddings (N, L, d) and their mask (N, L).

    Example:
        >>> import torch
        >>> y, y_minus = torch.full((1, 2, 1), 1.0), torch.full((1, 2, 1), 2.0)
        >>> both, first = torch.tensor([[1, 1]]), torch.tensor([[1, 0]])
        >>> fused, mask = fused_embeddings(y, both, y_minus, first, epsilon=0.75, full_where_unpaired=True)
        >>> fused.flatten().tolist(), mask.tolist()
        ([1.25, 1.0], [[1, 1]])
    """
    if epsilon in (0, 1):  # one language counts as having no token
        sentence_mask, translation_mask = sentence_mask * (epsilon > 0), translation_mask * (epsilon < 1)
    has_y, has_y_minus = (mask.to(sentence.dtype)[..., None] for mask in (sentence_mask, translation_mask))
    if full_where_unpaired:
        fused = torch.lerp(sentence, translation, has_y_minus * (1 - epsilon * has_y))
    else:
        fused = epsilon * has_y * sentence + (1 - epsilon) * has_y_minus * translation
    return fused, torch.maximum(sentence_mask, translation_mask)


def forgetting_weights(ages: Tensor, rate: float) -> Tensor:
    r"""The forgetting coefficients of past batches, :math:`p = 1 - \lambda a` (eq. 4 of the same paper).

    Args:
        ages: a, in batches; the newest batch has age 1. The paper has :math:`a = \lceil m / N \rceil` for the m-th
            newest sentence.
        rate: the forgetting rate lambda, less than 1 / k for an oldest age k.

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
        M_i = e^{\mathrm{sim}(emb_i, emb^+_i)} - e^{\mathrm{sim}(emb_i, emb^-_i)}

    averaged over the rows. The twins should differ at the output as much as at the embedding layer. There is no
    temperature. M is a target, so compute its cosines without gradient.

    Args:
        identical: sim(h, h+), (N,), the cosine with the same input under another dropout mask.
        fraternal: sim(h, h-), (N,), the cosine with the input that is fused with the translation.
        identical_inputs: sim(emb, emb+), (N,), at the embedding layer, or one number for all rows.
        fraternal_inputs: sim(emb, emb-), (N,).

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
    identical_input = identical_inputs.exp() if isinstance(identical_inputs, Tensor) else math.exp(identical_inputs)
    margin = identical_input - fraternal_inputs.exp()
    return (identical.exp() - fraternal.exp() - margin).abs().mean()
