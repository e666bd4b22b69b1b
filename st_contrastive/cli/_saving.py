"""Where commands write: outputs are checked before the work begins, and models move into place in one step."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextlib import nullcontext as uninterrupted
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Any

from st_contrastive import _files
from st_contrastive._checks import first_line
from st_contrastive.cli._arguments import UserError, option_name

#: Files in a saved model's folder: weights, configurations, the tokenizer's, custom code, and what training adds.
_MODEL_FILES = (
    "*.safetensors", "*.safetensors.index.json", "pytorch_model*", "model.pt",
    "*config*.json", "modules.json", "router_config.json",
    "tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model", "*.bpe",
    "*.codes", "*.vocab", "*.jinja", "configuration_*.py", "modeling_*.py", "tokenization_*.py",
    "README.md", ".gitattributes", "training_run.json",
)  # fmt: skip
#: Folders that exporters add to a saved model's.
_EXPORTS = ("onnx", "openvino")
#: The options of a run, beside its checkpoints.
RUN_FILE = "run.json"


def resolved(option: str, path: str) -> Path:
    """The path of an output, with links followed.

    Raises:
        UserError: the path goes through a file, or through a broken link, which may be a disk that is not mounted.
    """
    try:
        for place in (Path(path), *Path(path).parents):
            if place.is_symlink() and not place.exists():
                raise UserError(
                    f"{option} {path}: {place} is a link to {os.readlink(place)}, which does not exist; make that, or "
                    "name another place."
                )
        found = Path(path).resolve()
        for place in found.parents:
            if place.exists() and not place.is_dir():
                raise UserError(f"{option} {path}: {place} is a file; name a folder.")
        found.exists()  # raises if the name is too long
    except OSError as error:
        raise UserError(f"{option} {path} can't be used: {error.strerror or error}.") from error
    return found


def _folder(option: str, path: str) -> Path:
    folder = resolved(option, path)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{option} {path}: {folder} is a file; name a folder.")
    return folder


def output_folder(args: argparse.Namespace, *inputs: str) -> Path:
    """The folder of ``--output``: new, empty, or with ``--overwrite`` a saved model.

    Args:
        args: the command's options.
        inputs: names of options whose files must not be in the folder, because replacing it would delete them.

    Raises:
        UserError: the folder holds something else.
    """
    path = args.output
    folder = _folder("--output", path)
    try:
        entries = sorted(folder.iterdir()) if folder.is_dir() else []
        if entries and not (folder / "modules.json").is_file():
            raise UserError(f"--output {path} holds something that is not a saved model; name another folder.")
        if entries and not args.overwrite:
            raise UserError(f"--output {path} holds a saved model; name another folder, or add --overwrite.")
        folders = {*_module_folders(folder), *_EXPORTS} if entries else set()
        foreign = [entry.name for entry in entries if not _belongs_to_model(entry, folders)]
    except OSError as error:
        raise UserError(f"--output {path} can't be read: {error.strerror or error}.") from error
    _require_outside_model("--output", folder, args)
    for option in inputs:
        name = getattr(args, option)
        if name and Path(name).exists() and folder in (place := Path(name).resolve(), *place.parents):
            raise UserError(
                f"--output {folder} holds {option_name(option)} {name}, which would be lost: name another folder."
            )
    if foreign:
        raise UserError(
            f"--output {path} holds a saved model and other files ({', '.join(foreign[:3])}), which would be lost; "
            "move them, or name another folder."
        )
    return folder


def _require_outside_model(option: str, folder: Path, args: argparse.Namespace) -> None:
    """Refuse a folder in that of the model: its weights would count as the model's when the run is resumed."""
    model = Path(args.model)
    if model.is_dir() and model.resolve() in folder.parents:
        raise UserError(f"{option} {folder} is in --model {args.model}: name a folder outside the model's.")


def _module_folders(folder: Path) -> set[str]:
    """Folders of a saved model's modules, such as 1_Pooling."""
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        return {Path(module["path"]).parts[0] for module in modules if module["path"]}
    except (ValueError, KeyError, TypeError):
        return set()


def _belongs_to_model(entry: Path, folders: set[str]) -> bool:
    if entry.is_dir():
        return not entry.is_symlink() and entry.name in folders
    return any(fnmatchcase(entry.name, pattern) for pattern in _MODEL_FILES)


def checkpoint_folder(args: argparse.Namespace, output: Path) -> Path | None:
    """The folder of ``--checkpoints``; None if none are kept.

    Raises:
        UserError: it is inside the output, which is replaced, or holds another run's checkpoints.
    """
    from st_contrastive.training.checkpoints import checkpoints
    from st_contrastive.training.keep_best import KEPT_FILES

    if args.checkpoints is None:
        if args.resume:
            raise UserError("--resume needs --checkpoints DIR, the folder of the interrupted run.")
        if "checkpoint_steps" in args.given:
            raise UserError("--checkpoint-steps needs --checkpoints DIR: without it, no checkpoint is kept.")
        return None
    folder = _folder("--checkpoints", args.checkpoints)
    if output in (folder, *folder.parents):
        raise UserError(f"--checkpoints {args.checkpoints} is in --output, which is replaced: name another folder.")
    _require_outside_model("--checkpoints", folder, args)
    if not args.resume and checkpoints(folder):
        raise UserError(
            f"--checkpoints {args.checkpoints} holds checkpoints of another run: add --resume to continue it, or "
            "name another folder."
        )
    ours = options_of_run(folder) is not None
    foreign = [name for name in (RUN_FILE, *KEPT_FILES) if (folder / name).exists() and not ours]
    if foreign:
        raise UserError(
            f"--checkpoints {args.checkpoints} holds {', '.join(foreign)}, which a run would overwrite: move them, or "
            "name another folder."
        )
    return folder


def options_of_run(checkpoints: Path) -> dict[str, Any] | None:
    """The options of the run that writes its checkpoints there; None where there is no such record."""
    try:
        options = json.loads((checkpoints / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return options if isinstance(options, dict) and {"data", "batch_size"} <= options.keys() else None


def _holds_scores(file: Path) -> bool:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"model", "scores"} <= content.keys()


def report_file(option: str, path: str, *, ours: Callable[[Path], bool] = _holds_scores, what: str = "scores") -> Path:
    """A file that may be written: a new one, or an older one of the same kind. Checked before any score is computed.

    Args:
        option: the option that names it.
        path: its value.
        ours: whether an existing file may be replaced.
        what: what such a file holds.

    Raises:
        UserError: something else is there, or the folder is read-only.
    """
    file = resolved(option, path)
    if file.is_dir():
        raise UserError(f"{option} {path} is a folder; name a file.")
    if file.exists() and (not file.is_file() or (file.stat().st_size and not ours(file))):
        raise UserError(f"{option} {path} exists and holds no {what}; name another file.")
    parent = next(place for place in file.parents if place.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"{option} {path} can't be written: {parent} is read-only.")
    return file


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Raise a UserError in place of an error that says that the disk is full or read-only."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # tokenizers and safetensors are written in Rust and have their own exceptions.
        if not isinstance(error, OSError) and "os error" not in str(error):
            raise
        cause = error.__cause__ or error  # the message of save_auxiliary names the temporary folder
        reason = getattr(cause, "strerror", None) or first_line(cause)
        raise UserError(f"--output {folder} can't be written: {reason}. Make room, or name another folder.") from error


@contextmanager
def work_folder(folder: Path) -> Iterator[Path]:
    """A hidden folder beside the output, on the same disk, so that the finished model can be moved in one step."""
    stack = ExitStack()
    try:
        work = stack.enter_context(_files.work_folder(folder))
    except OSError as error:
        raise UserError(f"--output {folder} can't be made: {error.strerror or error}.") from error
    with stack:
        yield work


def _renamed(source: Path, target: Path) -> bool:
    """Rename a folder and return True, or return False where that is impossible, as for a mount point."""
    try:
        source.rename(target)
    except OSError:
        return False
    return True


def _unsaved(saved: Path, folder: Path) -> Path:
    """Move the model to a free name beside the output."""
    names = (f"{folder.name}.unsaved{number or ''}" for number in count())
    kept = next(place for name in names if not (place := folder.with_name(name)).exists())
    return saved.rename(kept)


def put_in_place(saved: Path, folder: Path, args: argparse.Namespace) -> None:
    """Move the complete new model to the output; an old model is removed only when the new one is in place.

    Raises:
        UserError: something has come into the output since training began, or it can't be written; the new model is
            then beside it.
    """
    with uninterrupted():
        try:
            output_folder(args)
        except UserError as error:
            raise UserError(f"{error} The trained model is in {_unsaved(saved, folder)}.") from error
        _exchange(saved, folder)


def _exchange(saved: Path, folder: Path) -> None:
    if not folder.exists():
        saved.rename(folder)
        return
    old = saved.with_name("replaced")
    if any(folder.iterdir()) and folder != Path.cwd() and _renamed(folder, old):
        if _renamed(saved, folder):
            return
        old.rename(folder)
    # A mount point or the working directory can't be renamed: exchange the entries instead.
    old.mkdir(exist_ok=True)
    moved: list[tuple[Path, Path]] = []
    try:
        for source, target in ((folder, old), (saved, folder)):
            for entry in sorted(source.iterdir()):
                shutil.move(entry, target / entry.name)
                moved.append((entry, target / entry.name))
    except OSError as error:
        for before, after in reversed(moved):
            shutil.move(after, before)
        raise UserError(
            f"--output {folder} can't be written ({error.strerror or error}); the trained model is in "
            f"{_unsaved(saved, folder)}."
        ) from error
