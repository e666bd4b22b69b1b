"""Finds checkpoints by name, also in the hub's cache, and writes files completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def is_path(name: str | os.PathLike[str]) -> bool:
    """Whether a checkpoint's name is a path. A name on the hub has at most one slash and does not start like a path."""
    text = os.fspath(name)
    return text.startswith((".", "/", "~")) or text.count("/") > 1 or Path(text).is_absolute()


def checkpoint_name(name: str | os.PathLike[str], what: str) -> str:
    """A checkpoint's folder or hub name, with ``~`` replaced by the home directory."""
    text = os.path.expanduser(os.fspath(name))
    if is_path(text) and not Path(text).is_dir():  # transformers would look for a repository of this name
        raise OSError(f"{what} {text} is not a folder.")
    return text


@contextmanager
def complete_file(path: Path) -> Iterator[Path]:
    """A temporary file to write, which is renamed to ``path`` when the block ends.

    If the block raises, the temporary file is removed, and a file at ``path`` is not changed.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def is_in_hub_cache(name: str, *files: str) -> bool:
    """Whether the hub's cache on this machine holds any of these files of a model.

    A name without an organisation may also be short for a model of sentence-transformers.
    """
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repositories = [name] if "/" in name else [name, f"sentence-transformers/{name}"]
    with suppress(HFValidationError):  # the hub has no such names
        return any(isinstance(try_to_load_from_cache(repo, file), str) for repo in repositories for file in files)
    return False
