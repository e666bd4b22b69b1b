"""The training methods by name: each one's loss, the builder of its inputs, and how its paper reads the encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Method:
    """A training method. Its parts are named as strings: nothing is imported until it is asked for.

    Args:
        name: as ``st-contrastive train --method`` takes it.
        title: as tables show it.
        loss: class in ``st_contrastive.losses``.
        builder: stem of the functions in ``st_contrastive.inputs``: "conisi" of ``conisi_examples`` and
            ``conisi_dataset``.
        columns: text columns that the loss can take, as the builder's dataset names them. The first is always needed.
        pooling: under which the paper evaluates.
        arguments: the arguments of the loss that matter most, beside its temperature; each is in ``ARGUMENTS``.
        checkpoints: arguments of the loss that take another checkpoint.

    Example:
        >>> METHODS["twins"].columns
        ('sentence', 'translation')
        >>> METHODS["twins"].loss_class.__name__
        'TwinsLoss'
    """

    name: str
    title: str
    loss: str
    builder: str
    columns: tuple[str, ...] = ("sentence",)
    pooling: str = "cls"
    arguments: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()

    @property
    def loss_class(self) -> type[Any]:
        """The loss itself, imported now."""
        found: type[Any] = getattr(import_module("st_contrastive.losses"), self.loss)
        return found

    @property
    def examples(self) -> Callable[..., Any]:
        """The builder of InputExamples for ``fit``, imported now."""
        return self._builder("examples")

    @property
    def dataset(self) -> Callable[..., Any]:
        """The builder of a Dataset for the Trainer, imported now."""
        return self._builder("dataset")

    def _builder(self, kind: str) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(import_module("st_contrastive.inputs"), f"{self.builder}_{kind}")
        return found


#: Arguments of losses that the command line has an option for; ``--loss-arg`` sets the others.
ARGUMENTS: Mapping[str, str] = {
    "temperature": "the contrast's temperature, tau",
    "strategy": "how the constructed sentence is made: other or subword",
    "interaction_weight": "lambda, the interactive term's share, 0 to 1",
    "queue_batches": "batches of past sentences in the queue",
    "queue_size": "past sentences in the queue",
    "momentum": "of the momentum encoder, 0 to 1",
    "fusion_rate": "the sentence's share in its fraternal twin, 0 to 1",
    "mlm_weight": "weight of the masked-LM term",
    "mask_rate": "share of the tokens that are masked",
    "rtd_weight": "weight of the replaced-token detection",
    "auxiliary_weight": "weight of the auxiliary network's masked-LM term",
}

#: Every method by its name. A new loss is registered here, and the command line, the recipes and the tests have it.
METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("simcse", "SimCSE", "SimCSELoss", "text", ("sentence", "other"), arguments=("mlm_weight",)),
        Method(
            "conisi",
            "ConIsI",
            "ConIsILoss",
            "conisi",
            ("sentence", "constructed"),
            arguments=("strategy", "interaction_weight"),
        ),
        Method(
            "twins",
            "Twins",
            "TwinsLoss",
            "twins",
            ("sentence", "translation"),
            pooling="mean",
            arguments=("queue_batches", "fusion_rate"),
            checkpoints=("fraternal",),
        ),
        Method(
            "infocse",
            "InfoCSE",
            "InfoCSELoss",
            "text",
            arguments=("mlm_weight", "mask_rate"),
            checkpoints=("auxiliary",),
        ),
        Method(
            "diffcse",
            "DiffCSE",
            "DiffCSELoss",
            "text",
            arguments=("rtd_weight", "mask_rate"),
            checkpoints=("generator",),
        ),
        Method(
            "momentum",
            "Momentum contrast",
            "MomentumContrastLoss",
            "text",
            ("sentence", "other"),
            arguments=("queue_size", "momentum"),
        ),
        Method(
            "combined",
            "Combined",
            "CombinedLoss",
            "conisi",
            ("sentence", "constructed"),
            arguments=("interaction_weight", "mlm_weight"),
            checkpoints=("auxiliary",),
        ),
    )
}

#: InfoCSE's first stage, which prepares an encoder and its auxiliary network: no ``--method``, but a command.
PRETRAINING = Method(
    "pretraining",
    "InfoCSE, stage 1",
    "AuxiliaryMLMPretrainingLoss",
    "text",
    arguments=("mask_rate", "auxiliary_weight"),
)
