"""Signals that stop a command: it cleans up first, and never stops half-way through an exchange of folders."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: What Ctrl-C sends, and what job schedulers, ``docker stop`` and ``kill`` send.
_STOPPING = (signal.SIGINT, signal.SIGTERM)
#: As shells report a process that SIGTERM ended.
TERMINATED = 128 + signal.SIGTERM


@contextmanager
def _handled(handlers: dict[signal.Signals, Callable[..., Any] | signal.Handlers]) -> Iterator[None]:
    """Handle signals so, and set the handlers back afterwards. Only the main thread can: others change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.signal(one, handler) for one, handler in handlers.items()}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)


@contextmanager
def sigterm_exits() -> Iterator[None]:
    """Let SIGTERM raise ``SystemExit``, so that the command removes its temporary files; by default it would not."""
    own = os.getpid()

    def stop(*_: Any) -> None:
        if os.getpid() != own:  # a forked worker, whose temporary files these are not
            os._exit(TERMINATED)
        raise SystemExit(TERMINATED)

    with _handled({signal.SIGTERM: stop}):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM, so that the exchange of two folders is not left half-way."""
    with _handled(dict.fromkeys(_STOPPING, signal.SIG_IGN)):
        yield
