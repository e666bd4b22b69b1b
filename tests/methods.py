"""What a test's case is of."""

from __future__ import annotations

from st_contrastive.methods import METHODS, PRETRAINING, Method


def method_of(case: str) -> Method:
    """The method whose name the case begins with: "twins" of "twins-german"."""
    name = case.partition("-")[0]
    return PRETRAINING if name == PRETRAINING.name else METHODS[name]
