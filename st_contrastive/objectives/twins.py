"""The Twins paper's own term: identical and fraternal twins kept a margin apart."""

from __future__ import annotations

from torch import Tensor

from st_contrastive.objectives.contrast import cosine_pairs


def twins_margin(
    anchors: Tensor,
    identical: Tensor,
    fraternal: Tensor,
    anchor_inputs: Tensor,
    identical_inputs: Tensor,
    fraternal_inputs: Tensor,
) -> Tensor:
    r"""The Twins loss, eq. 8 of Xiao, Li and Chen (2023, arXiv 2307.10932).

    .. math::
        \ell_i = \left| e^{\mathrm{sim}(h_i, h^+_i)} - e^{\mathrm{sim}(h_i, h^-_i)} - M_i \right|, \quad
        M_i = e^{\mathrm{sim}(x_i, x^+_i)} - e^{\mathrm{sim}(x_i, x^-_i)}

    averaged over the rows: the twins should differ at the output as much as they do at the embedding layer. There is
    no temperature. M is a target and gets no gradient.

    Args:
        anchors: h, (N, d).
        identical: h+, (N, d), the same input under another dropout mask.
        fraternal: h-, (N, d), the input fused with its translation.
        anchor_inputs: x, (N, w), the anchors' vectors at the embedding layer; w may differ from d.
        identical_inputs: x+, (N, w).
        fraternal_inputs: x-, (N, w).

    Returns:
        0-d tensor, at least float32, in [0, 2(e - 1/e)].

    Example:
        >>> import torch
        >>> h, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> round(twins_margin(h, h, other, h, h, h).item(), 4)  # e^1 - e^0, and M = 0
        1.7183
        >>> twins_margin(h, h, other, h, h, other).item()
        0.0
    """
    distance = cosine_pairs(anchors, identical).exp() - cosine_pairs(anchors, fraternal).exp()
    margin = cosine_pairs(anchor_inputs, identical_inputs).exp() - cosine_pairs(anchor_inputs, fraternal_inputs).exp()
    return (distance - margin.detach()).abs().mean()
