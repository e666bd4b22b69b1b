"""A finished model moves to its place in one step, or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from st_contrastive import _files
from st_contrastive.cli._arguments import UserError


def resolved(option: str, path: str) -> Path:
    """Where the path of an output leads.

    Raises:
        UserError: through a file, or by a link to nothing, which may be a disk that is not mounted.
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
        found.exists()  # says of a name that is too long
    except OSError as error:
        raise UserError(f"{option} {path} can't be used: {error.strerror or error}.") from error
    return found


def _holds_scores(file: Path) -> bool:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"model", "scores"} <= content.keys()


def report_file(option: str, path: str, *, ours: Callable[[Path], bool] = _holds_scores, what: str = "scores") -> Path:
    """Where scores may be written: a new file, or one of scores that may be replaced. Looked at before any is computed.

    Args:
        option: the option that names it.
        path: its value.
        ours: whether a file that is there may be replaced.
        what: what such a file holds.

    Raises:
        UserError: something else is there, or nothing can be written there.
    """
    file = resolved(option, path)
    if file.is_dir():
        raise UserError(f"{option} {path} is a folder; name a file.")
    if file.exists() and (not file.is_file() or (file.stat().st_size and not ours(file))):
        raise UserError(f"{option} {path} is there and holds no {what}; name another file.")
    parent = next(place for place in file.parents if place.exists())
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"{option} {path} can't be written: {parent} is read-only.")
    return file


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """What fails in here for want of room or rights ends in one line.

    Raises:
        UserError: in place of the error.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # tokenizers and safetensors, which are not Python, have errors of their own for it.
        if not isinstance(error, OSError) and "os error" not in str(error):
            raise
        told = error.__cause__ or error  # save_auxiliary names the folder of the work, which goes
        reason = getattr(told, "strerror", None) or str(told).strip().splitlines()[0]
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
    """Whether the folder could be renamed; a mount point can't."""
    try:
        source.rename(target)
    except OSError:
        return False
    return True


def put_in_place(saved: Path, folder: Path) -> None:
    """Move the complete new model to the output; a model that was there goes only when the new one is in place."""
    if not folder.exists():
        saved.rename(folder)
        return
    old = saved.with_name("replaced")
    if any(folder.iterdir()) and folder != Path.cwd() and _renamed(folder, old):
        if _renamed(saved, folder):
            return
        old.rename(folder)
    # The folder stays, for it may be a mount point or the working directory: its entries are exchanged.
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
        kept = folder.with_name(f"{folder.name}.unsaved")
        saved.rename(kept)
        raise UserError(
            f"--output {folder} can't be written ({error.strerror or error}); the trained model is in {kept}."
        ) from error
