"""A loss's description for sentence-transformers and the trainer: its arguments, papers, terms and weights."""

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
    """A loss that describes its arguments, papers and terms, and the terms' values if all vectors are equal."""

    #: Keys of the papers in citations.bib.
    cites: tuple[str, ...] = ()
    #: Arguments that may differ when a run is resumed: they do not change the training, or they only name the source of
    #: state that the checkpoint restores.
    may_change: tuple[str, ...] = ("mini_batch_size",)
    #: Arguments that are used only under a condition on another argument: ``{"mask_rate": "mlm_weight"}`` if
    #: ``mlm_weight`` must be set or above 0, ``{"replacement_rate": "strategy=subword"}`` if ``strategy`` must be
    #: "subword".
    only_used_with: Mapping[str, str] = {}
    #: Whether the loss uses labels. Labelled pairs are refused if it does not.
    reads_labels: bool = False
    #: Whether a batch of two text columns has other terms than a batch of one column.
    terms_depend_on_columns: bool = False
    #: Whether both columns hold texts of one kind, such as sentences and their translations, and take one prompt.
    #: Otherwise the first column holds queries and the second one documents.
    columns_of_one_kind: bool = False
    #: The names of the InfoNCE terms.
    contrasted_terms: tuple[str, ...] = ("contrastive",)
    #: Whether the sentences of other devices are negatives too.
    gather_across_devices: bool
    _arguments: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self._given_warnings: set[str] = set()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the constructor of each loss check and record its arguments, and call :meth:`_finish` at its end."""
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _checking_constructor(vars(cls)["__init__"])  # type: ignore[method-assign]

    def _finish(self) -> None:
        """Called at the end of the constructor, after the loss has built all its modules."""

    @property
    def term_weights(self) -> Mapping[str, float]:
        """The weights of the terms, by name. A term that is not listed has the weight 1."""
        return {}

    def has_negatives(self, batch_size: int) -> bool:
        """Whether every sentence of a batch of this size has a negative, or the loss needs none."""
        if not self.contrasted_terms or batch_size > 1 or getattr(self, "queue", None) is not None:
            return True
        return self.gather_across_devices and distributed.world_size() > 1

    def chance_levels(self, batch_size: int) -> dict[str, float]:
        """The weighted value that each InfoNCE term has if all vectors are equal, by the term's name in the logs.

        A run has collapsed if its terms end at these values. Terms with weight 0 are not listed.
        """
        weights = {name: self.term_weights.get(name, 1.0) for name in self.contrasted_terms}
        return {name: weight * self.chance_level(batch_size) for name, weight in weights.items() if weight > 0}

    def chance_level(self, batch_size: int, *, queue: bool = True) -> float:
        """InfoNCE of equal vectors: the logarithm of the number of candidates.

        Candidates of other devices are counted if they are gathered. With ``queue``, the queue's keys are counted by
        their weights.
        """
        candidates = batch_size * (distributed.world_size() if self.gather_across_devices else 1)
        past = getattr(self, "queue", None) if queue else None
        return math.log(candidates + (0.0 if past is None else float(past.keys_and_weights()[1].sum())))

    def get_config_dict(self) -> dict[str, Any]:
        """The constructor's arguments without the model. The model card and resumed runs use them."""
        return dict(self._arguments)

    @property
    def citation(self) -> str:
        """BibTeX of the papers, for the model card."""
        entries = resources.files(__package__).joinpath("citations.bib").read_text(encoding="utf-8").split("\n@")
        return "\n".join(f"@{entry.strip('@')}" for entry in entries if any(f"{{{key}," in entry for key in self.cites))

    def warn_once(self, message: str) -> None:
        """Warn, unless this loss has already issued the same warning."""
        if message not in self._given_warnings:
            self._given_warnings.add(message)
            warn(message)


def _checking_constructor(constructor: Callable[..., None]) -> Callable[..., None]:
    """The constructor, with its arguments checked against their annotations.

    The constructor of the object's class also records the arguments and calls :meth:`DescribedLoss._finish` at its end.
    The constructors of base classes, which it calls, do not.
    """
    signature = inspect.signature(constructor)
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}

    @functools.wraps(constructor)
    def checking(self: DescribedLoss, *args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            constructor(self, *args, **kwargs)  # raises Python's own error, which names the class
            raise
        bound.apply_defaults()
        arguments = {name: value for name, value in list(bound.arguments.items())[1:] if name != "model"}
        for name, parameter in signature.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:  # arguments of a base class
                arguments |= arguments.pop(name)
        check_arguments(constructor, arguments)
        for name, condition in self.only_used_with.items():
            other, _, value = condition.partition("=")
            if {name, other} <= defaults.keys() and arguments[name] != defaults[name]:
                is_used = arguments[other] == value if value else arguments[other]
                if not is_used:
                    shown = describe_argument(arguments[name])
                    warn(f"{name}={shown!r} has no effect while {other} is {arguments[other]!r}.")
        is_outermost = "_arguments" not in vars(self)
        if is_outermost:
            vars(self)["_arguments"] = {name: describe_argument(value) for name, value in arguments.items()}
        constructor(self, *args, **kwargs)
        if is_outermost:
            self._finish()

    return checking


def describe_argument(value: Any) -> Any:
    """An argument as a JSON value. An object becomes its class name and, for a module, its ``extra_repr``."""
    if isinstance(value, dict):
        return {str(key): describe_argument(item) for key, item in value.items()}
    if value is None or isinstance(value, (str, int, float, list, tuple)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return f"{type(value).__name__}({value.extra_repr() if isinstance(value, nn.Module) else ''})"
