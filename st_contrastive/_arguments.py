"""Checks arguments of constructors and functions against their annotations."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

P = ParamSpec("P")
R = TypeVar("R")
#: A fraction.
Share: TypeAlias = Annotated[float, Ge(0), Le(1)]
PositiveShare: TypeAlias = Annotated[float, Gt(0), Le(1)]
#: The fraction of its old value that a moving average keeps.
Momentum: TypeAlias = Annotated[float, Ge(0), Lt(1)]
#: The weight of a loss's term.
Weight: TypeAlias = Annotated[float, Ge(0)]
Positive: TypeAlias = Annotated[float, Gt(0)]
Count: TypeAlias = Annotated[int, Ge(1)]
CountOrZero: TypeAlias = Annotated[int, Ge(0)]
#: The number of tokens of a truncated text: at least one between two special tokens.
TextLength: TypeAlias = Annotated[int, Ge(3)]

_BOUNDS: tuple[tuple[type[Any], str, str, Callable[[Any, Any], bool]], ...] = (
    (Ge, "ge", "of at least", lambda value, bound: value >= bound),
    (Gt, "gt", "above", lambda value, bound: value > bound),
    (Le, "le", "at most", lambda value, bound: value <= bound),
    (Lt, "lt", "below", lambda value, bound: value < bound),
)


def check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Require that each argument fits its annotation: a choice, a flag, a number in a range, or a class.

    Other kinds of annotations are not checked.

    Example:
        >>> def build(temperature: Positive = 0.05, head: Literal["tanh"] | None = None) -> None: ...
        >>> check_arguments(build, {"temperature": 0.1, "head": "relu"})
        Traceback (most recent call last):
        ValueError: head must be 'tanh' or None, got 'relu'.
    """
    for name, hint in argument_types(function).items():
        if name in arguments and not _accepts(hint, arguments[name]):
            raise ValueError(f"{name} must be {_described(hint)}, got {arguments[name]!r:.80}.")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that :func:`check_arguments` checks its arguments."""
    signature = inspect.signature(function)
    get_type_hints(function)  # raises now if a name is unknown at run time, because the checks would be skipped

    @wraps(function)
    def with_checks(*args: P.args, **kwargs: P.kwargs) -> R:
        check_arguments(function, signature.bind(*args, **kwargs).arguments)
        return function(*args, **kwargs)

    return with_checks


@cache
def argument_types(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function, or {} if some names exist only for the type checker."""
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        return {}


def _accepts(hint: Any, value: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_accepts(part, value) for part in get_args(hint))
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(hint))
    if origin is Annotated:
        return _accepts(get_args(hint)[0], value) and all(holds(value, bound) for _, bound, holds in _bounds(hint))
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    kind = origin or hint
    return isinstance(value, kind) if isinstance(kind, type) and kind is not Any else True


def _bounds(hint: Any) -> Iterator[tuple[str, float, Callable[[Any, Any], bool]]]:
    """The phrase, value and comparison of each bound of an annotation."""
    for bound in get_args(hint)[1:]:
        for kind, name, phrase, holds in _BOUNDS:
            if isinstance(bound, kind):
                yield phrase, getattr(bound, name), holds


def _described(hint: Any) -> str:
    """The allowed values, in the words of a message."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        *parts, last = map(_described, get_args(hint))
        return f"{', '.join(parts)} or {last}"
    if origin is Literal:
        *choices, last = map(repr, get_args(hint))
        return f"{', '.join(choices)} or {last}" if choices else last
    if origin is Annotated:
        phrases = [f"{phrase} {bound:g}" for phrase, bound, _ in _bounds(hint)]
        return f"{_described(get_args(hint)[0])} {' and '.join(phrases)}"
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", NoneType: "None"}
    return words.get(hint) or f"of type {getattr(origin or hint, '__name__', hint)}"
