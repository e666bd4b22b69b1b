"""What the commands share: errors of the user, methods by name, model loading."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive import inputs, losses
from st_contrastive.cli._arguments import UserError

#: Arguments of losses that have an option of their own, or none.
_OBJECTS = ("model", "auxiliary", "fraternal", "generator", "detector", "log_terms")


@dataclass(frozen=True)
class Method:
    """A loss, and the builders of its inputs."""

    title: str
    loss: type[losses.TextLoss]
    pooling: str  # as the paper evaluates
    builders: str  # whose inputs it takes

    @property
    def arguments(self) -> list[str]:
        """Names that the loss's constructor takes from the command line."""
        names = list(inspect.signature(self.loss).parameters)
        return [name for name in names if name not in _OBJECTS]

    def examples(self, *columns: list[str]) -> list[InputExample]:
        """Examples for ``fit``."""
        build: Any = getattr(inputs, f"{self.builders}_examples")
        examples: list[InputExample] = build(*columns)
        return examples

    def dataset(self, *columns: Any, **options: Any) -> Dataset:
        """Dataset for the Trainer."""
        build: Any = getattr(inputs, f"{self.builders}_dataset")
        return build(*columns, **options)


METHODS = {
    "simcse": Method("SimCSE", losses.SimCSELoss, "cls", "simcse"),
    "conisi": Method("ConIsI", losses.ConIsILoss, "cls", "conisi"),
    "twins": Method("Twins", losses.TwinsLoss, "mean", "twins"),
    "infocse": Method("InfoCSE", losses.InfoCSELoss, "cls", "infocse"),
    "diffcse": Method("DiffCSE", losses.DiffCSELoss, "cls", "simcse"),
}
PRETRAINING = Method("InfoCSE, stage 1", losses.AuxiliaryMLMPretrainingLoss, "cls", "infocse")


def load_model(name: str, *, pooling: str = "keep", max_length: int | None = None) -> SentenceTransformer:
    """A model by folder or hub name: as it is ("keep"), or its encoder under a pooling of its own.

    Raises:
        UserError: it can't be loaded, or is not a text encoder.
    """
    try:
        if pooling == "keep":
            model = SentenceTransformer(name)
        else:
            transformer = Transformer(name)
            model = SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension(), pooling)])
    except (OSError, ValueError, RuntimeError, TypeError, AttributeError, SafetensorError) as error:
        raise UserError(f"--model {name}: it can't be loaded: {first_line(error)}") from error
    if max_length is not None:
        if not isinstance(model[0], Transformer):
            raise UserError(f"--model {name} starts with {type(model[0]).__name__}, not with a Transformer module.")
        longest = model.max_seq_length
        if longest is not None and max_length > longest:
            raise UserError(f"--max-length {max_length}: --model {name} takes {longest} tokens at most.")
        model.max_seq_length = max_length
    return model


def loss_arguments(method: Method, given: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` strings as constructor arguments of the method's loss.

    Raises:
        UserError: a name the loss does not take, or no value.
    """
    arguments: dict[str, Any] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or name not in method.arguments:
            raise UserError(f"--set {item}: give NAME=VALUE, NAME one of {', '.join(method.arguments)}.")
        arguments[name] = _value(value)
    return arguments


def _value(text: str) -> Any:
    """A Python literal, a truth value or None in any case, or the text itself."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def output_folder(path: str, *, overwrite: bool) -> Path:
    """A folder that may be written: new, empty, or a saved model that may be replaced.

    Raises:
        UserError: something else is there.
    """
    folder = Path(path).resolve()
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise UserError(f"--output {path}: {place} is a file; name a folder.")
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / "modules.json").is_file():
            raise UserError(f"--output {path} holds something that is not a saved model; name another folder.")
        if not overwrite:
            raise UserError(f"--output {path} holds a saved model; name another folder, or add --overwrite.")
    return folder


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class where it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
