"""Options of the commands: argument types, actions, and the error that a user sees as one line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from st_contrastive._checks import first_line

Number = TypeVar("Number", int, float)

#: How a model pools its token vectors into a sentence vector; "keep" is the model's own pooling.
POOLINGS = ("cls", "mean", "lasttoken", "keep")


class UserError(ValueError):
    """Bad input that argparse can't see: the command prints the message as one line and exits with code 2."""


@contextmanager
def user_error(*kinds: type[Exception], prefix: str = "") -> Iterator[None]:
    """Raise exceptions of these kinds as a UserError: the prefix and the first line of the message."""
    try:
        yield
    except UserError:
        raise
    except kinds as error:
        raise UserError(prefix + first_line(error)) from error


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Raise an OSError as a UserError that says that ``what``, an option and its value, can't be written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what} can't be written: {error.strerror or error}.") from error


class Given(argparse.Action):
    """Stores an option and adds its name to ``given``, which tells a value from an equal default."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, values)
        namespace.given = {*namespace.given, self.dest}


class Once(argparse.Action):
    """Stores a file of which a run reads one, and refuses a second: argparse would forget the first."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        first = getattr(namespace, self.dest)
        if first is not None:
            raise argparse.ArgumentError(self, f"one file is read, and two were given, {first} and {values}")
        setattr(namespace, self.dest, values)


class LossArgument(argparse.Action):
    """An option for one argument of the loss, stored as ``--loss-arg NAME=VALUE`` is."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        namespace.loss_arg = [*namespace.loss_arg, f"{self.dest}={values}"]


def _number(convert: Callable[[str], Number], accepts: Callable[[Number], bool], what: str) -> Callable[[str], Number]:
    """An argument type: a number that ``accepts`` is true of."""

    def parse(text: str) -> Number:
        try:
            value = convert(text)
        except ValueError:
            value = None
        if value is None or not accepts(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return parse


whole = _number(int, lambda value: value >= 1, "a whole number of at least 1")
several = _number(int, lambda value: value >= 2, "a whole number of at least 2")
count = _number(int, lambda value: value >= 0, "a whole number of at least 0")
seed = _number(int, lambda value: 0 <= value < 2**32, "a whole number from 0 to 2**32 - 1")  # as numpy takes it
positive_float = _number(float, lambda value: 0 < value < float("inf"), "a number above 0")
fraction = _number(float, lambda value: 0 <= value < 1, "a number of at least 0 and below 1")
share = _number(float, lambda value: 0 < value <= 1, "a number above 0 and up to 1")


def name(text: str) -> str:
    """A name or path; refused are an empty one, as of an unset shell variable, and one that can't be printed."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty")
    try:
        text.encode()
    except UnicodeEncodeError:  # the bytes of a file's name, in another encoding
        raise argparse.ArgumentTypeError(f"{text!a} is not UTF-8: rename the file") from None
    return text


def option_name(dest: str) -> str:
    """``--batch-size`` of ``batch_size``."""
    return f"--{dest.replace('_', '-')}"
