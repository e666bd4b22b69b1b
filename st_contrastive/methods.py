"""The registry of methods. Each has a loss, a builder of its inputs, and the paper's pooling.

A new loss needs a file and a line here. The command line, the recipes, the tests and the docs read METHODS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from st_contrastive.poolings import PoolingName


@dataclass(frozen=True)
class Method:
    """A training method. Its parts are named as strings, so that nothing is imported until it is used.

    Args:
        name: value of ``st-contrastive train --loss``. The loss is in ``st_contrastive/losses/<name>.py``.
        title: name in tables.
        loss: name of the class in that file.
        builder: stem of a function in ``st_contrastive.inputs``, such as "conisi" for ``conisi_dataset``.
        columns: text columns that the loss can use, as the builder names them. The first is required.
        pooling: pooling of an encoder that was saved without one, as in the paper's evaluation.
        checkpoints: arguments of the loss that name another checkpoint.

    Example:
        >>> METHODS["twins"].columns
        ('sentence', 'translation')
        >>> METHODS["twins"].loss_class.__name__
        'TwinsLoss'
    """

    name: str
    title: str
    loss: str
    builder: str = "text"
    columns: tuple[str, ...] = ("sentence",)
    pooling: PoolingName = "cls"
    checkpoints: tuple[str, ...] = ()

    @property
    def loss_class(self) -> type[Any]:
        module, colon, _ = self.name.partition(":")
        loaded = import_module(module if colon else f"st_contrastive.losses.{self.name}")
        return getattr(loaded, self.loss)  # type: ignore[no-any-return]

    @property
    def dataset(self) -> Callable[..., Any]:
        inputs = import_module("st_contrastive.inputs")
        return getattr(inputs, f"{self.builder}_dataset")  # type: ignore[no-any-return]


def find_method(name: str) -> Method:
    """The method with this name. "my_module:MyLoss" is a user's loss, which takes the model as its first argument.

    Raises:
        ValueError: no method has this name, or the loss can't be imported.
    """
    if isinstance(name, str) and name in METHODS:
        return METHODS[name]
    if not isinstance(name, str) or ":" not in name:
        raise ValueError(f"loss must be one of {', '.join(METHODS)}, or my_module:MyLoss; got {name!r}.")
    method = Method(name, loss := name.partition(":")[2], loss, columns=_PAIR)
    try:
        method.loss_class.__mro__  # noqa: B018  # fails here if it can't be found or is not a class
    except (AttributeError, ImportError, ValueError) as error:
        raise ValueError(f"loss {name} can't be imported: {error}.") from error
    return method


_PAIR, _CONSTRUCTED, _TRANSLATED = ("sentence", "other"), ("sentence", "constructed"), ("sentence", "translation")

#: Every method by its name.
METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("simcse", "SimCSE", "SimCSELoss", columns=_PAIR),
        Method("conisi", "ConIsI", "ConIsILoss", "conisi", _CONSTRUCTED),
        Method("twins", "Twins", "TwinsLoss", "twins", _TRANSLATED, pooling="mean", checkpoints=("fraternal",)),
        Method("infocse", "InfoCSE", "InfoCSELoss", checkpoints=("auxiliary",)),
        Method("diffcse", "DiffCSE", "DiffCSELoss", checkpoints=("generator",)),
        Method("momentum", "Momentum contrast", "MomentumContrastLoss", columns=_PAIR),
        Method("pretraining", "InfoCSE, stage 1", "AuxiliaryMLMPretrainingLoss"),
    )
}
