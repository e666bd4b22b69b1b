"""Arguments of losses, as the command line gives them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from st_contrastive.cli._arguments import UserError, option_name
from st_contrastive.methods import ARGUMENTS, Method, argument_defaults

#: Arguments of losses that are no values: objects, and what the Trainer alone needs.
_OBJECTS = ("detector", "log_terms")


def settable(method: Method) -> list[str]:
    """Arguments of the method's loss that the command line can set to a value."""
    excluded = (*_OBJECTS, *method.checkpoints)
    return [name for name in argument_defaults(method.loss_class) if name not in excluded]


def loss_arguments(method: Method, given: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` strings as constructor arguments of the method's loss.

    Raises:
        UserError: a name the loss does not take, or that is given twice, or no value.
    """
    arguments: dict[str, Any] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"--loss-arg {item}: give NAME=VALUE.")
        if name not in settable(method):
            option = f"{option_name(name)} {value}" if name in ARGUMENTS else f"--loss-arg {item}"
            known = name in argument_defaults(method.loss_class)
            lacks = f"takes {name} only in Python" if known else f"has no argument {name}"
            raise UserError(f"{option}: {method.loss} {lacks}; here it takes {', '.join(settable(method))}.")
        if name in arguments:
            raise UserError(f"{name} of {method.loss} is given twice, the second time as {value}: give one value.")
        arguments[name] = _value(value)
    return arguments


def _value(text: str) -> Any:
    """A Python literal, a truth value or None in any case, or the text itself."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError):
        return text
