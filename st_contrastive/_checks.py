"""Checks of arguments, whose messages name the argument, what it may be and what was given; and texts of errors."""

from __future__ import annotations

import math
from collections.abc import Sequence


def require_count(name: str, value: int, *, least: int = 1) -> None:
    """Require a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")


def require_number(name: str, value: float, *, most: float | None = None) -> None:
    """Require a finite number of at least 0, and at most ``most`` if that is given."""
    if not _is_number(value) or value < 0 or (most is not None and value > most):
        span = "at least 0" if most is None else f"from 0 to {most:g}"
        raise ValueError(f"{name} must be a number {span}, got {value!r}.")


def require_temperature(value: float) -> None:
    """Require a finite number above 0."""
    if not _is_number(value) or value <= 0:
        raise ValueError(f"temperature must be a positive number, got {value!r}; the papers use 0.05.")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -math.inf < value < math.inf


def require_flag(name: str, value: bool) -> None:
    """Require True or False: a string such as "false" would count as True."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}.")


def require_choice(name: str, value: str | None, choices: Sequence[str | None]) -> None:
    """Require one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if the message is empty."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
