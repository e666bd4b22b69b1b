"""Which parameters of a test run with ``make test``, and which with ``make test-long`` alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def crossed(*columns: Iterable[Any], quick: Callable[..., bool]) -> list[Any]:
    """All combinations, as parameters of a test; those that are not ``quick`` are marked ``long``."""
    return [
        pytest.param(*values, marks=() if quick(*values) else pytest.mark.long)
        for values in itertools.product(*columns)
    ]
