"""Training-only projection heads. The losses cast their input to the dtype of their weights."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from st_contrastive._checks import require_count


class TanhHead(nn.Sequential):
    """SimCSE's head, h' = tanh(W h + b), (N, d) to (N, d). Used in training only (Gao et al., 2021, section 3).

    Example:
        >>> import torch
        >>> TanhHead(8)(torch.zeros(3, 8)).shape
        torch.Size([3, 8])
    """

    def __init__(self, width: int) -> None:
        require_count("width", width)
        super().__init__(OrderedDict(linear=nn.Linear(width, width), tanh=nn.Tanh()))


class InteractionHead(nn.Sequential):
    """ConIsI's predictor g(x) = ELU(BatchNorm(W1 x + b1)), (N, d) to (N, d) (eq. 2).

    Call it once for all views: the rows of a call share their BatchNorm statistics.

    Example:
        >>> import torch
        >>> InteractionHead(8)(torch.randn(6, 8)).shape
        torch.Size([6, 8])
    """

    def __init__(self, width: int) -> None:
        require_count("width", width)
        super().__init__(OrderedDict(linear=nn.Linear(width, width), norm=nn.BatchNorm1d(width), elu=nn.ELU()))


def interaction_classifier(width: int, interaction_dim: int | None = None) -> nn.Linear:
    """ConIsI's classifier on g, r = W3 g(x) + b3 (eq. 6, 7), (N, d) to (N, interaction_dim).

    Args:
        width: d.
        interaction_dim: length of r. None takes d, as the paper declares it.
    """
    if interaction_dim is not None:
        require_count("interaction_dim", interaction_dim)
    return nn.Linear(width, width if interaction_dim is None else interaction_dim)


class Projector(nn.Sequential):
    """InfoCSE's training-only projector, (N, d) to (N, d), as in its authors' code.

    Linear(d, 2d, no bias), BatchNorm, ReLU, Linear(2d, d, no bias), BatchNorm(no affine). Call it once for both views:
    the rows of a call share their BatchNorm statistics.

    Example:
        >>> import torch
        >>> Projector(8)(torch.randn(6, 8)).shape
        torch.Size([6, 8])
    """

    def __init__(self, width: int) -> None:
        require_count("width", width)
        super().__init__(
            OrderedDict(
                inner=nn.Linear(width, 2 * width, bias=False),
                inner_norm=nn.BatchNorm1d(2 * width),
                relu=nn.ReLU(),
                outer=nn.Linear(2 * width, width, bias=False),
                outer_norm=nn.BatchNorm1d(width, affine=False),
            )
        )
