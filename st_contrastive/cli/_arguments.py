"""Argument types of the commands, and the error that a user sees as one line."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields

from st_contrastive._checks import first_line
from st_contrastive.settings import RunSettings


class UserError(ValueError):
    """Bad input that argparse can't see: the command prints the message as one line and exits with code 2."""


@contextmanager
def user_error(*kinds: type[Exception], prefix: str = "") -> Iterator[None]:
    """Raise exceptions of these kinds as a UserError: the prefix and the first line of the message."""
    try:
        yield
    except kinds as error:
        raise UserError(("" if isinstance(error, UserError) else prefix) + first_line(error)) from error


def as_options(message: str) -> str:
    """The message, with settings spelled as options.

    Example:
        >>> as_options("columns=['title', 'text']: the file has no column 'text'. Leave dev='corpus' out.")
        "--column title,text: the file has no column 'text'. Leave --dev corpus out."
    """
    return _SETTING.sub(_as_option, message)


_NAMES = "|".join(field.name for field in fields(RunSettings))
_QUOTED = r"""['"]([^'"]*)['"]"""
#: Not of a call in Python: load_pairs(source, columns=...).
_SETTING = re.compile(rf"(?<![\w(.])(?<!, )({_NAMES})s?=({_QUOTED}|[\[(][^])]*[\])]|[\w.]+)")


def _as_option(found: re.Match[str]) -> str:
    name, value = found[1], found[2]
    values = re.findall(_QUOTED, value) or [value]
    return f"--{name} {(',' if name == 'column' else ' ').join(map(shlex.quote, values))}"


def _whole(least: int) -> Callable[[str], int]:
    """An argument type: a whole number of at least so much."""

    def parse(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return parse


whole, several = _whole(1), _whole(2)


def name(text: str) -> str:
    """A name or path, which is not empty, as that of an unset shell variable."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty")
    return text
