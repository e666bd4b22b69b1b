"""Signals that stop a command: it cleans up first, and an exchange of two folders is finished."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: What job schedulers, ``docker stop`` and ``kill`` send, and what a terminal sends when it is closed (not on Windows).
_ENDING = tuple(signal.Signals[name] for name in ("SIGTERM", "SIGHUP") if name in signal.Signals.__members__)


class Terminated(SystemExit):
    """A signal ended the command. The code is a shell's: 128 and the signal's number."""

    code: int

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


@contextmanager
def _handled(handlers: dict[signal.Signals, Callable[..., Any]]) -> Iterator[None]:
    """Handle signals so, and set the handlers back afterwards. Only the main thread can: others change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {}
    try:
        for number, handler in handlers.items():
            before[number] = signal.getsignal(number)
            signal.signal(number, handler)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def ending_signals_raise() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise :class:`Terminated`, so that the command removes its temporary files.

    A signal that the process ignores, as SIGHUP under ``nohup``, stays ignored.
    """
    own = os.getpid()

    def stop(number: int, _: Any) -> None:
        if os.getpid() != own:  # a forked worker, whose temporary files these are not
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        for one in _ENDING:  # a second signal would break off the cleaning
            signal.signal(one, signal.SIG_IGN)
        raise Terminated(number)

    with _handled({number: stop for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN}):
        yield


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C, SIGTERM and SIGHUP until the block has ended, so that two folders are never half exchanged."""
    received: list[int] = []
    with _handled(dict.fromkeys((signal.SIGINT, *_ENDING), lambda number, _: received.append(number))):
        yield
    if received:
        signal.raise_signal(received[0])
