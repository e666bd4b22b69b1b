"""Heads on top of the sentence embeddings, in training only."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn


class TanhHead(nn.Sequential):
    """SimCSE's head, h' = tanh(W h + b), (N, d) to (N, d) (Gao et al., 2021, section 3)."""

    def __init__(self, width: int, dtype: torch.dtype | None = None) -> None:
        super().__init__(OrderedDict(linear=new_linear(width, width, dtype=dtype), tanh=nn.Tanh()))


class Projector(nn.Sequential):
    """The projector of InfoCSE's and DiffCSE's authors, (N, d) to (N, d): two linear layers with BatchNorm.

    Call it once for both views: the rows of a call share their BatchNorm statistics.
    """

    def __init__(self, width: int, dtype: torch.dtype | None = None) -> None:
        super().__init__(
            OrderedDict(
                inner=new_linear(width, 2 * width, bias=False, dtype=dtype),
                inner_norm=nn.BatchNorm1d(2 * width, dtype=dtype),
                relu=nn.ReLU(),
                outer=new_linear(2 * width, width, bias=False, dtype=dtype),
                outer_norm=nn.BatchNorm1d(width, affine=False, dtype=dtype),
            )
        )


class PredictionHead(nn.Sequential):
    """ConIsI's predictor g(x) = ELU(BatchNorm(W1 x + b1)), (N, d) to (N, d) (eq. 2).

    Call it once for all views: the rows of a call share their BatchNorm statistics.
    """

    def __init__(self, width: int, dtype: torch.dtype | None = None) -> None:
        parts = OrderedDict[str, nn.Module](linear=new_linear(width, width, dtype=dtype))
        super().__init__(OrderedDict(parts, norm=nn.BatchNorm1d(width, dtype=dtype), elu=nn.ELU()))


def new_linear(inputs: int, outputs: int, *, bias: bool = True, dtype: torch.dtype | None = None) -> nn.Linear:
    """A linear layer whose weights start from N(0, 0.02) and its bias from 0, as BERT's and all of the authors' do."""
    layer = nn.Linear(inputs, outputs, bias=bias, dtype=dtype)
    nn.init.normal_(layer.weight, std=0.02)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


#: The heads that a loss's argument ``head`` names.
HEADS: dict[str, type[TanhHead] | type[Projector]] = {"tanh": TanhHead, "projector": Projector}
