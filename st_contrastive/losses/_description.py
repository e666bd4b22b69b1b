"""What a loss tells sentence-transformers and the trainer about itself."""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

import numpy as np
from torch import nn

from st_contrastive import distributed
from st_contrastive._arguments import check_arguments
from st_contrastive._checks import warn


class DescribedLoss(nn.Module):
    """A loss that knows its arguments, its papers, and its value where all vectors are equal."""

    #: Keys of the papers in citations.bib.
    cites: tuple[str, ...] = ()
    #: Arguments that a resumed run may change: they do not alter what is trained, or only name the source of state that
    #: a checkpoint restores.
    may_change: tuple[str, ...] = ("mini_batch_size",)
    #: Arguments that are read only where another is above 0, or has a value, as "strategy=subword".
    read_with: Mapping[str, str] = {}
    #: Whether the loss reads labels; where it does not, labelled pairs are refused.
    reads_labels: bool = False
    #: Whether a batch of two text columns has other terms than one of a single column.
    terms_depend_on_columns: bool = False
    #: Whether the second column holds the first one's texts again, such as translations, and takes their prompt;
    #: otherwise the first is a query and the others are documents.
    columns_of_one_kind: bool = False
    #: The weights of the terms that are InfoNCE, by their names in the logs; none where nothing is contrasted.
    contrast_weights: dict[str, float] = {"contrastive": 1.0}
    #: Whether other devices' sentences are negatives too.
    gather_across_devices: bool
    _arguments: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self._warned_of: set[str] = set()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the constructor of each loss check and keep its arguments, and end with :meth:`_finish`."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _wrapped(vars(cls)["__init__"])  # type: ignore[method-assign]

    def _finish(self) -> None:
        """Called at the end of the constructor, when the loss has built all that it owns."""

    def has_negatives(self, batch_size: int) -> bool:
        """Whether a batch of this size has negatives, or the loss needs none."""
        if not self.contrast_weights or batch_size > 1 or getattr(self, "queue", None) is not None:
            return True
        return self.gather_across_devices and distributed.world_size() > 1

    def chance_levels(self, batch_size: int) -> dict[str, float]:
        """The value of each contrasted term if all vectors are equal, by its name in the logs; none where nothing is
        contrasted. Training that ends there has collapsed."""
        level = self.chance_level(batch_size)
        return {name: weight * level for name, weight in self.contrast_weights.items() if weight > 0}

    def chance_level(self, batch_size: int, *, queue: bool = True) -> float:
        """InfoNCE of equal vectors: the logarithm of the number of candidates, those of other devices and, with
        ``queue``, the weights of the queue's included."""
        candidates = batch_size * (distributed.world_size() if self.gather_across_devices else 1)
        past = getattr(self, "queue", None) if queue else None
        return math.log(candidates + (0.0 if past is None else float(past.keys_and_weights()[1].sum())))

    def get_config_dict(self) -> dict[str, Any]:
        """The constructor's arguments without the model, for the model card and for resuming."""
        return dict(self._arguments)

    @property
    def citation(self) -> str:
        """BibTeX of the papers, for the model card."""
        entries = resources.files(__package__).joinpath("citations.bib").read_text(encoding="utf-8").split("\n@")
        return "\n".join(f"@{entry.strip('@')}" for entry in entries if any(f"{{{key}," in entry for key in self.cites))

    def warn_once(self, message: str) -> None:
        """Warn, unless this message has been given before."""
        if message not in self._warned_of:
            self._warned_of.add(message)
            warn(message)


def _wrapped(constructor: Callable[..., None]) -> Callable[..., None]:
    """The constructor, with its arguments checked by their annotations.

    The constructor of the loss's own class, which calls those of its base classes, also keeps the arguments, and ends
    with :meth:`DescribedLoss._finish`.
    """
    signature = inspect.signature(constructor)
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}

    @functools.wraps(constructor)
    def checked(self: DescribedLoss, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            constructor(self, *args, **kwargs)  # Python's own error, which names the class
            raise
        bound.apply_defaults()
        given = {name: value for name, value in list(bound.arguments.items())[1:] if name != "model"}
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:  # arguments of a base class
                given |= given.pop(name)
        check_arguments(constructor, given)
        for name, condition in self.read_with.items():
            other, _, value = condition.partition("=")
            if {name, other} <= defaults.keys() and given[name] != defaults[name]:
                is_read = given[other] == value if value else given[other]
                if not is_read:
                    warn(f"{name}={described(given[name])!r} is not read while {other} is {given[other]!r}.")
        is_outermost = "_arguments" not in vars(self)
        if is_outermost:
            vars(self)["_arguments"] = {name: described(value) for name, value in given.items()}
        constructor(self, *args, **kwargs)
        if is_outermost:
            self._finish()

    return checked


def described(value: Any) -> Any:
    """An argument as JSON can hold it. An object becomes its class and, for a module, its ``extra_repr``."""
    if isinstance(value, dict):
        return {str(key): described(own) for key, own in value.items()}
    if value is None or isinstance(value, (str, int, float, list, tuple)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return f"{type(value).__name__}({value.extra_repr() if isinstance(value, nn.Module) else ''})"
