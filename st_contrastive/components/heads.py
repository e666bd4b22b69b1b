"""Heads on top of the sentence embeddings, in training only."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


class TanhHead(nn.Sequential):
    """SimCSE's head, h' = tanh(W h + b), (N, d) to (N, d) (Gao et al., 2021, section 3)."""

    def __init__(self, width: int) -> None:
        super().__init__(OrderedDict(linear=nn.Linear(width, width), tanh=nn.Tanh()))


class Projector(nn.Sequential):
    """The projector of InfoCSE's and DiffCSE's authors, (N, d) to (N, d): two linear layers with BatchNorm.

    Call it once for both views: the rows of a call share their BatchNorm statistics.
    """

    def __init__(self, width: int) -> None:
        super().__init__(
            OrderedDict(
                inner=nn.Linear(width, 2 * width, bias=False),
                inner_norm=nn.BatchNorm1d(2 * width),
                relu=nn.ReLU(),
                outer=nn.Linear(2 * width, width, bias=False),
                outer_norm=nn.BatchNorm1d(width, affine=False),
            )
        )


class InteractionHead(nn.Sequential):
    """ConIsI's predictor g(x) = ELU(BatchNorm(W1 x + b1)), (N, d) to (N, d) (eq. 2).

    Call it once for all views: the rows of a call share their BatchNorm statistics.
    """

    def __init__(self, width: int) -> None:
        super().__init__(OrderedDict(linear=nn.Linear(width, width), norm=nn.BatchNorm1d(width), elu=nn.ELU()))


#: The heads that a loss's argument ``head`` names.
HEADS: dict[str, type[nn.Module]] = {"tanh": TanhHead, "projector": Projector}
