"""A copy of an encoder that follows it slowly, and makes the keys of a queue: MoCo's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from accelerate.state import GradientState
from torch import nn

from st_contrastive.encoder.copies import plain_copy


def _precise(module: nn.Module) -> nn.Module:
    half = any(one.dtype in (torch.float16, torch.bfloat16) for one in module.parameters())
    return module.float() if half else module


class MomentumEncoder(nn.Module):
    r"""Modules whose weights are a moving average of others' (eq. 2 of MoCo, He et al., 2020).

    .. math:: \theta_k \leftarrow m\,\theta_k + (1 - m)\,\theta_q

    They start as copies, are never trained, and are always in evaluation mode, without dropout, as ESimCSE's. Under
    gradient accumulation they take one step for each of the optimizer's. Of weights in half precision they are
    in float32: 0.5 % of a small step would be lost in rounding.

    Args:
        followed: the modules.
        momentum: m, at least 0 and below 1; 0 copies at each update.

    Raises:
        ValueError: the momentum is none, or the weights are quantised.

    Example:
        >>> import torch
        >>> followed = torch.nn.Linear(1, 1, bias=False)
        >>> keys = MomentumEncoder([followed], momentum=0.75)
        >>> before = followed.weight.item()
        >>> followed.weight.data += 1
        >>> keys.update([followed])
        >>> round(keys.copies[0].weight.item() - before, 4)
        0.25
    """

    def __init__(self, followed: Sequence[nn.Module], momentum: float) -> None:
        super().__init__()
        if isinstance(momentum, bool) or not 0 <= momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {momentum!r}; ESimCSE takes 0.995.")
        for name, parameter in nn.ModuleList(followed).named_parameters():
            if not parameter.is_floating_point():
                raise ValueError(
                    f"The encoder's weights are quantised ({name} is {parameter.dtype}), so that no average of them "
                    "can be taken. Load it unquantised, or take SimCSELoss or TwinsLoss, which copy nothing."
                )
        self.momentum = momentum
        #: The copies, in the order of what they follow.
        self.copies = nn.ModuleList(_precise(plain_copy(module)) for module in followed).requires_grad_(False)
        self._followed_moved = True
        self.train(False)

    @torch.no_grad()
    def update(self, followed: Sequence[nn.Module]) -> None:
        """Take a step towards the weights of the modules that are followed; their buffers are taken as they are.

        Nothing is done while the optimizer gathers gradients: the weights are those of the last call.
        """
        moved, self._followed_moved = self._followed_moved, bool(GradientState().sync_gradients)
        if not moved:
            return
        modules = nn.ModuleList(followed)
        for own, live in zip(self.copies.parameters(), modules.parameters(), strict=True):
            own.lerp_(live.to(own.dtype), 1 - self.momentum)
        for kept, present in zip(self.copies.buffers(), modules.buffers(), strict=True):
            kept.copy_(present)

    def train(self, mode: bool = True) -> MomentumEncoder:
        """Nothing: it stays in evaluation mode."""
        return super().train(False)
