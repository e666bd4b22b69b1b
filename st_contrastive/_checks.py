"""Checks of arguments: each message names the argument, the values that it takes, and what it was given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def require_count(name: str, value: int) -> None:
    """Require a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")


def require_number(name: str, value: float, *, most: float | None = None) -> None:
    """Require a finite number of at least 0, and at most ``most`` where that is given."""
    in_range = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")
    if not in_range or (most is not None and value > most):
        span = "at least 0" if most is None else f"from 0 to {most:g}"
        raise ValueError(f"{name} must be a number {span}, got {value!r}.")


def require_flag(name: str, value: bool) -> None:
    """Require True or False: a string such as "false" would count as True."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}.")


def require_choice(name: str, value: str | None, choices: Sequence[str | None]) -> None:
    """Require one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")


def require_instance(name: str, value: object, kind: type[Any]) -> None:
    """Require an object of the class, or None."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} must be of type {kind.__name__}, or None; got {type(value).__name__}.")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if the message is empty."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
