"""Training-only projection heads. The losses cast their input to the dtype of their weights."""

from __future__ import annotations

from collections import OrderedDict
from typing import cast

from torch import Tensor, nn

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


class InteractionHead(nn.Module):
    """ConIsI's head g (eq. 2), and its classifier f (eq. 6, 7) on top of the same weights.

    g(x) = ELU(BatchNorm(W1 x + b1)); f(x) = W3 g(x) + b3.

    Args:
        width: d of the sentence embeddings; W1 is d x d.
        interaction_dim: length of r = f(x). None takes d, as the paper declares it.

    Example:
        >>> import torch
        >>> head = InteractionHead(8, interaction_dim=1)
        >>> projected = head(torch.randn(6, 8))
        >>> projected.shape, head.interaction(projected).shape
        (torch.Size([6, 8]), torch.Size([6, 1]))
    """

    def __init__(self, width: int, interaction_dim: int | None = None) -> None:
        super().__init__()
        require_count("width", width)
        if interaction_dim is not None:
            require_count("interaction_dim", interaction_dim)
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.classifier = nn.Linear(width, width if interaction_dim is None else interaction_dim)

    def forward(self, embeddings: Tensor) -> Tensor:
        """g: (N, d) to (N, d). One call for all views: its rows share their BatchNorm statistics."""
        return nn.functional.elu(self.norm(self.linear(embeddings)))

    def interaction(self, projected: Tensor) -> Tensor:
        """f, from the result of ``forward``: (N, d) to (N, interaction_dim)."""
        return cast(Tensor, self.classifier(projected))


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
