"""What the commands share: arguments of losses, and output folders."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from st_contrastive.cli._arguments import UserError
from st_contrastive.cli._saving import resolved
from st_contrastive.methods import ARGUMENTS, Method, argument_defaults

#: What is found in the folder of a saved model, by ending; and what exporters put beside it.
_MODEL_FILES = (".json", ".safetensors", ".bin", ".txt", ".md", ".model", ".jinja", ".py", ".pt", ".vocab", ".bpe")
_EXPORTS = ("onnx", "openvino")

#: Arguments of losses that are no values: objects, and what the Trainer alone needs.
_OBJECTS = ("detector", "log_terms")


def settable(method: Method) -> list[str]:
    """Arguments of the method's loss that the command line can set to a value."""
    excluded = (*_OBJECTS, *method.checkpoints)
    return [name for name in argument_defaults(method.loss_class) if name not in excluded]


def loss_arguments(method: Method, given: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` strings as constructor arguments of the method's loss.

    Raises:
        UserError: a name the loss does not take, or no value.
    """
    arguments: dict[str, Any] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"--loss-arg {item}: give NAME=VALUE.")
        if name not in settable(method):
            option = f"--{name.replace('_', '-')} {value}" if name in ARGUMENTS else f"--loss-arg {item}"
            raise UserError(f"{option}: {method.loss} has no argument {name}, only {', '.join(settable(method))}.")
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
