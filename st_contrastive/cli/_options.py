"""The parser of ``train``: each field of a dataclass is an option."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from transformers.hf_argparser import HfArgumentParser


class Options(HfArgumentParser):
    """transformers' parser, with one spelling of each option, no defaults, and "none" in place of a number."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        spelled = [name for name in names if "-" not in name.lstrip("-")]
        if options.get("type") in (int, float):
            options["type"] = _or_none(options["type"])
        if "choices" in options:
            options["choices"] = [*options["choices"], "none"]
        return super().add_argument(*spelled, **{**options, "default": argparse.SUPPRESS})


def _or_none(kind: type[float]) -> Callable[[str], float | str]:
    def number(text: str) -> float | str:
        if text.isdecimal():  # 50 steps, not 50.0
            return int(text)
        return "none" if text.lower() == "none" else kind(text)

    number.__name__ = kind.__name__  # which argparse names
    return number
