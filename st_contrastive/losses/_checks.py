"""Argument checks of the losses' constructors."""

from __future__ import annotations

from collections.abc import Sequence


def require_weight(name: str, value: float, *, most: float | None = None) -> None:
    """Refuse anything but a number from 0 on, up to ``most`` where one is given."""
    in_range = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
    if not in_range or (most is not None and value > most) or value == float("inf"):
        span = "at least 0" if most is None else f"from 0 to {most:g}"
        raise ValueError(f"{name} must be a number {span}, got {value!r}.")


def require_flag(name: str, value: bool) -> None:
    """Refuse anything but True and False: a string would count as True, whatever it says."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}.")


def require_choice(name: str, value: str | None, choices: Sequence[str | None]) -> None:
    """Refuse what is not among the choices, and list them."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}.")
