"""The parser of ``train``, which has an option for each field of a dataclass."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, NoReturn

from transformers.hf_argparser import HfArgumentParser


class Options(HfArgumentParser):
    """transformers' parser, with one spelling of each option, no defaults, and "none" accepted as a number."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        spelled = [name for name in names if "-" not in name.lstrip("-")]
        if options.get("type") in (int, float):
            options["type"] = _number_or_none(options["type"])
        if "choices" in options:
            options["choices"] = [*options["choices"], "none"]
        return super().add_argument(*spelled, **{**options, "default": argparse.SUPPRESS})

    def error(self, message: str) -> NoReturn:
        """For an option without a value, print its help instead of the usage."""
        found = re.match(r"argument (--\w+): expected", message)
        action = self._option_string_actions.get(found[1]) if found else None
        if action is None:
            super().error(message)
        help_text = f": {action.help}" if action.help else ""
        self.exit(2, f"st-contrastive train: {action.option_strings[0]} needs a value{help_text}.\n")


def _number_or_none(kind: type[float]) -> Callable[[str], float | str]:
    def number(text: str) -> float | str:
        if text.isdecimal():  # 50 steps, not 50.0
            return int(text)
        return "none" if text.lower() == "none" else kind(text)

    number.__name__ = kind.__name__  # for argparse's message
    return number
