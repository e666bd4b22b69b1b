"""What a loss says of itself, to sentence-transformers and to the trainer."""

from __future__ import annotations

import inspect
import math
import os
from contextlib import suppress
from importlib import resources
from typing import Any

import numpy as np
from torch import nn

from st_contrastive import distributed
from st_contrastive._checks import warn


class DescribedLoss(nn.Module):
    """A loss that knows its arguments, its papers, and what it is worth where training has collapsed."""

    #: Keys of the papers in citations.bib.
    cites: tuple[str, ...] = ()
    #: Arguments that a resumed run may change: they do not alter what is trained, or only name the source of state that
    #: a checkpoint restores.
    may_change: tuple[str, ...] = ("mini_batch_size",)
    #: Whether the loss reads labels; where it does not, labelled pairs are refused.
    reads_labels: bool = False
    #: Whether a batch of two text columns has other terms than one of a single column.
    terms_depend_on_columns: bool = False
    #: Whether the second column holds the first one's texts again, such as translations, and takes their prompt;
    #: otherwise the first is a query and the others are documents.
    columns_of_one_kind: bool = False
    #: Whether other devices' sentences are negatives too.
    gather_across_devices: bool
    _warned_of: set[str]

    def has_negatives(self, batch_size: int) -> bool:
        """Whether sentences in batches of this size are contrasted with others."""
        if batch_size > 1 or getattr(self, "queue", None) is not None:
            return True
        return self.gather_across_devices and distributed.world_size() > 1

    def chance_levels(self, batch_size: int) -> dict[str, float]:
        """The value of each contrasted term if all vectors are equal, by its name in the logs; none where nothing is
        contrasted. Training that ends there has collapsed."""
        return {"contrastive": self.chance_level(batch_size)}

    def chance_level(self, batch_size: int, *, queue: bool = True) -> float:
        """InfoNCE of equal vectors: the logarithm of the number of candidates, those of other devices and, with
        ``queue``, the weights of the queue's included."""
        candidates = batch_size * (distributed.world_size() if self.gather_across_devices else 1)
        past = getattr(self, "queue", None) if queue else None
        return math.log(candidates + (0.0 if past is None else float(past.entries()[1].sum())))

    def get_config_dict(self) -> dict[str, Any]:
        """The constructor's arguments but for the model: for the model card and for a resumed run."""
        return dict(vars(self)["_arguments"])

    @property
    def citation(self) -> str:
        """BibTeX of the papers, for the model card."""
        entries = resources.files(__package__).joinpath("citations.bib").read_text(encoding="utf-8").split("\n@")
        return "\n".join(f"@{entry.strip('@')}" for entry in entries if any(f"{{{key}," in entry for key in self.cites))

    def warn_once(self, message: str) -> None:
        """Warn of something that one warning is enough for."""
        if message not in self._warned_of:
            self._warned_of.add(message)
            warn(message)

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Keep the constructor's arguments, for :meth:`get_config_dict`; of a module, its description."""
        loss = super().__new__(cls)
        vars(loss)["_warned_of"] = set()
        with suppress(TypeError):  # __init__ reports wrong arguments; copying passes none
            bound = inspect.signature(cls.__init__).bind(loss, *args, **kwargs)
            bound.apply_defaults()
            kept = {name: value for name, value in bound.arguments.items() if name not in ("self", "model")}
            vars(loss)["_arguments"] = {name: described(value) for name, value in kept.items()}
        return loss


def described(value: Any) -> Any:
    """An argument as JSON holds it: of numpy's numbers the number, of an object what tells it from others."""
    if value is None or isinstance(value, (str, int, float, list, tuple, dict)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return f"{type(value).__name__}({value.extra_repr() if isinstance(value, nn.Module) else ''})"
