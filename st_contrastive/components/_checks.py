"""Argument checks that several components share: each message names the argument, its value and the cure."""

from __future__ import annotations


def require_positive(name: str, value: int) -> None:
    """Refuse anything but a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class where it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def require_share(name: str, value: float) -> None:
    """Refuse anything but a number in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"{name} must be a number from 0 to 1, got {value!r}.")
