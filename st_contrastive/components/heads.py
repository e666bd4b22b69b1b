"""Heads on top of the sentence vectors, which are only used in training."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn


class TanhHead(nn.Sequential):
    """SimCSE's head, h' = tanh(W h + b), (N, d) to (N, d) (Gao et al., 2021, section 3)."""

    def __init__(self, width: int, dtype: torch.dtype | None = None) -> None:
        super().__init__(OrderedDict(linear=new_linear(width, width, dtype=dtype), tanh=nn.Tanh()))


class Projector(nn.Sequential):
    """The projector in the code of InfoCSE and DiffCSE, (N, d) to (N, d): two linear layers with BatchNorm.

    Call it once for both views, because all rows of a call share BatchNorm statistics.
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

    Call it once for all views, because all rows of a call share BatchNorm statistics.
    """

    def __init__(self, width: int, dtype: torch.dtype | None = None) -> None:
        parts = OrderedDict[str, nn.Module](linear=new_linear(width, width, dtype=dtype))
        super().__init__(OrderedDict(parts, norm=nn.BatchNorm1d(width, dtype=dtype), elu=nn.ELU()))


def new_linear(inputs: int, outputs: int, *, bias: bool = True, dtype: torch.dtype | None = None) -> nn.Linear:
    """A linear layer with weights from N(0, 0.02^2) and a bias of 0, as in BERT and in the code of all papers."""
    layer = nn.Linear(inputs, outputs, bias=bias, dtype=dtype)
    nn.init.normal_(layer.weight, std=0.02)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


#: Values of the losses' argument ``head``.
HEADS: dict[str, type[TanhHead] | type[Projector]] = {"tanh": TanhHead, "projector": Projector}
