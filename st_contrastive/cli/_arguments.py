"""Bad input on the command line: one line on the error stream, exit code 2."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, TypeVar

Number = TypeVar("Number", int, float)


class Given(argparse.Action):
    """Stores an option and, in ``given``, that it was given: a default, or a recipe, may have the same value.

    The parser's ``given`` is empty by default.
    """

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, values)
        namespace.given = {*namespace.given, self.dest}


#: How a model makes one vector of its tokens' vectors; "keep" is the model's own way.
POOLINGS = ("cls", "mean", "lasttoken", "first-last", "keep")


class LossArgument(argparse.Action):
    """An option for one argument of the loss, which is kept as ``--loss-arg NAME=VALUE`` is."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        namespace.loss_arg = [*namespace.loss_arg, f"{self.dest}={values}"]


class UserError(ValueError):
    """Bad input that argparse can't see; the command prints the message as one line and exits with 2."""


def whole(text: str) -> int:
    """A whole number of at least 1."""
    return _number(text, int, lambda value: value >= 1, "a whole number of at least 1")


def count(text: str) -> int:
    """A whole number of at least 0."""
    return _number(text, int, lambda value: value >= 0, "a whole number of at least 0")


def seed(text: str) -> int:
    """A whole number from 0 to 2**32 - 1, as numpy takes it."""
    return _number(text, int, lambda value: 0 <= value < 2**32, "a whole number from 0 to 2**32 - 1")


def positive_float(text: str) -> float:
    """A finite number above 0."""
    return _number(text, float, lambda value: 0 < value < float("inf"), "a number above 0")


def name(text: str) -> str:
    """A name that is not empty, as that of an unset variable would be."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def fraction(text: str) -> float:
    """A number of at least 0 and below 1."""
    return _number(text, float, lambda value: 0 <= value < 1, "a number from 0 to below 1")


def share(text: str) -> float:
    """A number above 0 and up to 1."""
    return _number(text, float, lambda value: 0 < value <= 1, "a number above 0 and up to 1")


def _number(text: str, convert: Callable[[str], Number], accepted: Callable[[Number], bool], what: str) -> Number:
    """The converted text; argparse turns the error into usage, one line and exit code 2."""
    try:
        value = convert(text)
    except ValueError:
        value = None
    if value is None or not accepted(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value
