"""A finished model moves to its place in one step, or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from st_contrastive.cli._arguments import UserError


@contextmanager
def work_folder(folder: Path) -> Iterator[Path]:
    """A hidden folder beside the output, on the same disk, so that the finished model can be moved in one step."""
    missing = [place for place in folder.parents if not place.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise UserError(f"--output {folder} can't be made: {error.strerror or error}.") from error
    try:
        yield work
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        for place in missing:  # nearest first
            with suppress(OSError):
                place.rmdir()
        raise
    shutil.rmtree(work, ignore_errors=True)


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
