"""Warnings of other libraries that training gives in these tests."""

from __future__ import annotations

import pytest

TRAINING = (
    pytest.mark.filterwarnings("ignore:'pin_memory' argument"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
)
