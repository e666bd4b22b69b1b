"""The poolings that can be added to an encoder without one."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

PoolingName: TypeAlias = Literal["cls", "mean", "lasttoken"]
POOLINGS: tuple[str, ...] = get_args(PoolingName)
