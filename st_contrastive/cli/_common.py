"""What the commands share: errors of the user, methods by name, model loading."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive import inputs, losses
from st_contrastive.cli._arguments import UserError
from st_contrastive.cli._saving import resolved

#: What is found in the folder of a saved model, by ending; and what exporters put beside it.
_MODEL_FILES = (".json", ".safetensors", ".bin", ".txt", ".md", ".model", ".jinja", ".py", ".pt", ".vocab", ".bpe")
_EXPORTS = ("onnx", "openvino")

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
    "momentum": Method("Momentum contrast", losses.MomentumContrastLoss, "cls", "simcse"),
    "combined": Method("Combined", losses.CombinedLoss, "cls", "conisi"),
}
PRETRAINING = Method("InfoCSE, stage 1", losses.AuxiliaryMLMPretrainingLoss, "cls", "infocse")


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
    folder = resolved("--output", path)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output {path}: {folder} is a file; name a folder.")
    try:
        entries = sorted(folder.iterdir()) if folder.is_dir() else []
        if entries and not (folder / "modules.json").is_file():
            raise UserError(f"--output {path} holds something that is not a saved model; name another folder.")
        if entries and not overwrite:
            raise UserError(f"--output {path} holds a saved model; name another folder, or add --overwrite.")
        modules = _module_folders(folder) if entries else set()
        foreign = [entry.name for entry in entries if not _of_a_model(entry, modules)]
    except OSError as error:
        raise UserError(f"--output {path} can't be read: {error.strerror or error}.") from error
    if foreign:
        raise UserError(
            f"--output {path} holds a saved model and what is none of it ({', '.join(foreign[:3])}), which would be "
            "lost; move that away, or name another folder."
        )
    return folder


def _module_folders(folder: Path) -> set[str]:
    """Folders that a saved model says are its modules', such as 1_Pooling."""
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        return {Path(module["path"]).parts[0] for module in modules if module["path"]}
    except (ValueError, KeyError, TypeError):
        return set()


def _of_a_model(entry: Path, modules: set[str]) -> bool:
    """Whether a saved model may have such an entry: its files, and the folders of its modules and exports."""
    if entry.is_dir():
        return not entry.is_symlink() and entry.name in (*modules, *_EXPORTS)
    return entry.suffix in _MODEL_FILES or entry.name == ".gitattributes"


def keep_inputs(folder: Path, **inputs: str | None) -> None:
    """Refuse an output folder that holds one of the inputs: replacing it would remove them.

    Raises:
        UserError: it does; ``inputs`` are options by name.
    """
    for option, name in inputs.items():
        if name and Path(name).exists() and folder in (place := Path(name).resolve(), *place.parents):
            raise UserError(f"--output {folder} holds --{option} {name}, which would be lost: name another folder.")
