"""A pass nothing of which is held: it is made again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import torch
from torch.utils.checkpoint import checkpoint

T = TypeVar("T")

_again_now: ContextVar[bool] = ContextVar("again", default=False)


def is_again() -> bool:
    """Whether the pass that is made now was made before, and is made again within the backward pass."""
    return _again_now.get()


def recomputed(function: Callable[..., T], *args: Any) -> T:
    """``function(*args)``, nothing of which is held for the backward pass: it is run again there, as it was.

    As torch's own checkpointing; but compiled code, which holds other things in each run, is not used, and who runs the
    encoder can see that it is the second time.
    """

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return uncompiled(), _again()

    return cast(T, checkpoint(function, *args, use_reentrant=False, context_fn=contexts))


@contextmanager
def _again() -> Iterator[None]:
    token = _again_now.set(True)
    try:
        with uncompiled():
            yield
    finally:
        _again_now.reset(token)


def uncompiled() -> AbstractContextManager[Any]:
    """While open, torch.compile's code is not used."""
    stance = getattr(torch.compiler, "set_stance", None)  # from PyTorch 2.6 on
    return nullcontext() if stance is None else cast(AbstractContextManager[Any], stance("force_eager"))
