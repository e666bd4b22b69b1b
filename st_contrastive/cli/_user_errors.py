"""Types of arguments, and errors that the user sees as one line."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches

from st_contrastive._checks import first_line
from st_contrastive.settings import RunSettings


class UserError(ValueError):
    """Bad input that argparse cannot see. The command prints the message as one line and exits with code 2."""


@contextmanager
def user_error(*kinds: type[Exception], prefix: str = "") -> Iterator[None]:
    """Turn exceptions of these kinds into a UserError with the prefix and the first line of the message."""
    try:
        yield
    except BrokenPipeError:  # an OSError that is not the user's mistake
        raise
    except kinds as error:
        raise UserError(("" if isinstance(error, UserError) else prefix) + first_line(error)) from error


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """A sentence that suggests the nearest choice, with a leading space; "" if none is near.

    Example:
        >>> did_you_mean("--bm52", ["--bm25", "--top"])
        ' Did you mean --bm25?'
    """
    nearest = get_close_matches(word, choices, n=1, cutoff=0.7)
    return f" Did you mean {nearest[0]}?" if nearest else ""


def as_options(message: str) -> str:
    """The message, with settings written as options.

    Example:
        >>> as_options("columns=['title', 'text']: the file has no column 'text'. Remove dev='corpus'.")
        "--column title,text: the file has no column 'text'. Remove --dev corpus."
    """
    return _SETTING.sub(_as_option, message)


_NAMES = "|".join([*(field.name for field in fields(RunSettings)), "resume_from_checkpoint"])
_QUOTED = r"""['"]([^'"]*)['"]"""
#: Does not match inside a Python call such as load_pairs(source, columns=...).
_SETTING = re.compile(rf"(?<![\w(.])(?<!, )({_NAMES})s?=({_QUOTED}|[\[(][^])]*[\])]|[\w.]+)")


def _as_option(found: re.Match[str]) -> str:
    name, value = found[1], found[2]
    values = re.findall(_QUOTED, value) or [value]
    return f"--{name} {(',' if name == 'column' else ' ').join(map(shlex.quote, values))}"


def _whole_number(least: int) -> Callable[[str], int]:
    """An argument type: a whole number that is not below ``least``."""

    def parse(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return parse


positive_number, number_above_one = _whole_number(1), _whole_number(2)


def parse_name(text: str) -> str:
    """A non-empty name. An unset shell variable gives an empty one."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def parse_query(text: str) -> str:
    """A query that is not empty."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the query is empty")
    return text


def parse_path(text: str) -> str:
    """A name or path, with ``~`` expanded to the home directory."""
    return os.path.expanduser(parse_name(text))


def parse_names(text: str) -> list[str]:
    """Names separated by commas."""
    return [parse_name(part).strip() for part in text.split(",")]
