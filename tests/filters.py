"""Warnings of other libraries that training gives in these tests."""

from __future__ import annotations

import pytest

TRAINING = (
    pytest.mark.filterwarnings("ignore:'pin_memory' argument"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:train_dataset has .* sentences are their own negatives"),  # of ten sentences
    pytest.mark.filterwarnings("ignore:train_dataset has .* sentences are their own negatives"),  # of ten sentences
)
