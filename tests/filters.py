"""Warnings that are not this package's: what the host says of its own ways, in any run of a trainer."""

from __future__ import annotations

import pytest

TRAINING = (
    pytest.mark.filterwarnings("ignore:'pin_memory' argument"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
)
