"""Checkpoint names, files that are written whole or not at all, and what a file's first bytes say that it is."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any


def is_path(name: str | os.PathLike[str]) -> bool:
    """Whether a checkpoint's name is a path: a name on the hub has one slash at most, and starts otherwise."""
    text = os.fspath(name)
    return text.startswith((".", "/", "~")) or text.count("/") > 1 or Path(text).is_absolute()


def checkpoint_name(name: str | os.PathLike[str], what: str) -> str:
    """A checkpoint's folder or hub name, with the home directory in place of ``~``."""
    text = os.path.expanduser(os.fspath(name))
    if is_path(text) and not Path(text).is_dir():  # transformers would look for a repository of this name
        raise OSError(f"{what} {text} is not a folder.")
    return text


def require_model_files(name: str | os.PathLike[str]) -> None:
    """Refuse a local model that is no folder, or whose files are something else, by a ValueError."""
    path = Path(name)
    if not path.is_dir() and (is_path(name) or path.exists()):
        raise ValueError(f"{path} is no folder. Name that of a model; if it is an archive, unpack it first.")
    for file in (*path.glob("*.json"), *path.glob("*.safetensors"), *path.glob("*.txt"), *path.glob("*/config.json")):
        if file.stat().st_size < 2**20:  # what stands in a model's place is small, and real weights may begin anyhow
            require_plain_file(file)


@contextmanager
def complete_file(path: Path) -> Iterator[Path]:
    """A temporary file to write, which is renamed to ``path`` when the block ends.

    If the block raises, the temporary file is removed, and a file at ``path`` stays as it was.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        os.replace(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


_PAGE = "a web page. Download the file itself, not the page that shows it"
_UTF_16 = "UTF-16 text. Convert it with `iconv -f utf-16 -t utf-8`"
#: How files begin that are often met under another name, and what they are.
_BEGINNINGS = (
    (b"version https://git-lfs", "a Git LFS pointer. Fetch the file itself with `git lfs pull`"),
    (b"<!doctype html", _PAGE),
    (b"<html", _PAGE),
    (b"%pdf-", "a PDF document. Extract its text"),
    (b"\xff\xfe", _UTF_16),
    (b"\xfe\xff", _UTF_16),
)
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
#: Endings of compressed files.
COMPRESSIONS = (*_OPENERS, ".zip")
_NOT_TEXT = (".parquet", ".safetensors", ".bin", ".pt", ".pth", ".npz", *COMPRESSIONS)


def require_plain_file(path: str | os.PathLike[str]) -> None:
    """Refuse a file, or the file inside a compressed one, whose first bytes contradict its name."""
    path = Path(path)
    with path.open("rb") as file:
        kind = _other_kind(file.read(512), path.name.lower())
    if not kind:
        with unpacked(path) as (name, opened):
            kind = _other_kind(opened.read(512), name)
    if kind:
        raise ValueError(f"{path} is {kind}.")


@contextmanager
def unpacked(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The name, in lower case, and the bytes of a file or, if it is compressed, of what it holds."""
    name, ending = os.path.splitext(path.name.lower())
    try:
        if ending == ".zip":
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if not name.endswith("/") and "__MACOSX/" not in name]
                if len(names) != 1:
                    raise ValueError(f"{path} is a zip archive of {len(names)} files. Unpack it, and name one of them.")
                with archive.open(names[0]) as file:
                    yield Path(names[0]).name.lower(), file
        else:
            with _OPENERS.get(ending, open)(path, "rb") as file:
                yield name if ending in _OPENERS else name + ending, file
    except (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(
            f"{path} is truncated or not a valid {ending} file ({error}). Fetch or compress it again."
        ) from error


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """The text of a file, also of a compressed one, with its line ends as they are."""
    with unpacked(path) as (_, opened), io.TextIOWrapper(opened, "utf-8-sig", newline="") as file:
        yield file


def _other_kind(start: bytes, name: str) -> str:
    """What a file is that begins so and is not what its name says, with the remedy; "" if it is that."""
    if not start:
        return "empty"
    for beginning, kind in _BEGINNINGS:
        if start.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(beginning):
            return kind
    if name.endswith(_NOT_TEXT):
        return ""
    controls = sum(byte < 32 and byte not in b"\t\n\f\r\x1b" for byte in start)
    if 0 in start or controls > 2 + len(start) / 50:
        return (
            "not text: it holds control bytes. Save a spreadsheet as .csv; unpack a compressed file, or let its name "
            f"end in what it is (.gz, .zip, .parquet); it may also be {_UTF_16}"
        )
    return ""
