"""The registry of methods, as the tests take it."""

from __future__ import annotations

from typing import Any

from st_contrastive.methods import METHODS, Method


def every_method(**options: dict[str, Any]) -> dict[str, tuple[dict[str, Any], int]]:
    """Of each method, its loss's options and how many text columns it is given: two where one is a translation."""
    assert options.keys() <= METHODS.keys()
    return {
        name: (options.get(name, {}), 2 if "translation" in method.columns else 1) for name, method in METHODS.items()
    }


def method_of(case: str) -> Method:
    """The method whose name the case begins with: "twins" of "twins-german"."""
    return METHODS[case.partition("-")[0]]
