"""Names of checkpoints, files that appear complete or not at all, and what stands in a file's place."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def is_path(name: str | os.PathLike[str]) -> bool:
    """Whether a checkpoint's name is a path: a name on the hub has one slash at most, and starts otherwise."""
    text = os.fspath(name)
    return text.startswith((".", "/", "~")) or text.count("/") > 1 or Path(text).is_absolute()


def checkpoint_name(name: str | os.PathLike[str], what: str) -> str:
    """A checkpoint's folder or hub name, with the home directory in place of ``~``.

    Raises:
        OSError: it is a path, and no folder: transformers would look for a repository of this name.

    Example:
        >>> checkpoint_name("bert-base-uncased", "model")
        'bert-base-uncased'
        >>> checkpoint_name("./none", "model")
        Traceback (most recent call last):
        OSError: model ./none is not a folder.
    """
    text = os.path.expanduser(os.fspath(name))
    if is_path(text) and not Path(text).is_dir():
        raise OSError(f"{what} {text} is not a folder.")
    return text


def require_model_files(name: str | os.PathLike[str]) -> None:
    """Refuse a local model that is no folder, or whose files are a web page, a Git LFS pointer or an archive instead.

    Raises:
        ValueError: the message names the file, what it is, and the remedy.
    """
    path = Path(name)
    if path.is_file():
        require_plain_file(path)
        raise ValueError(f"{path} is a file. Name the folder of a model; if the file is an archive, unpack it first.")
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


#: How files begin that are often met under another name: what they are, and the endings that may begin so.
_BEGINNINGS: tuple[tuple[bytes, str, tuple[str, ...]], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer. Fetch the file itself with `git lfs pull`", ()),
    (b"<!doctype html", "a web page. Download the file itself, not the page that shows it", (".html", ".htm")),
    (b"<html", "a web page. Download the file itself, not the page that shows it", (".html", ".htm")),
    (b"pk\x03\x04", "a zip archive. Unpack it", (".zip", ".bin", ".pt", ".pth", ".npz")),
    (b"\x1f\x8b", "compressed by gzip. Let its name end in .gz, or unpack it", (".gz", ".tgz")),
    (b"bzh", "compressed by bzip2. Unpack it", (".bz2",)),
    (b"\xfd7zxz", "compressed by xz. Unpack it", (".xz",)),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd. Unpack it", (".zst",)),
    (b"par1", "a Parquet table. Let its name end in .parquet", (".parquet",)),
    (b"%pdf-", "a PDF document. Extract its text", (".pdf",)),
    (b"\xff\xfe", "UTF-16 text. Convert it with `iconv -f utf-16 -t utf-8`", ()),
    (b"\xfe\xff", "UTF-16 text. Convert it with `iconv -f utf-16 -t utf-8`", ()),
)


def require_plain_file(path: str | os.PathLike[str]) -> None:
    """Refuse a file whose first bytes, or those of what a .gz holds, are not of what its name says.

    Raises:
        ValueError: it is empty, or something else stands in its place; the message names what, and the remedy.
        OSError: it can't be read.
    """
    path = Path(path)
    name = path.name.lower()
    with path.open("rb") as file:
        _require_beginning(path, file.read(512), name)
    if name.endswith(".gz"):
        try:
            with gzip.open(path) as file:
                _require_beginning(path, file.read(512), name.removesuffix(".gz"))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is not a whole gzip file ({error}). Fetch or compress it again.") from error


def _require_beginning(path: Path, start: bytes, name: str) -> None:
    if not start:
        raise ValueError(f"{path} is empty.")
    if start[257:262] == b"ustar" and not name.endswith(".tar"):
        raise ValueError(f"{path} is a tar archive. Unpack it.")
    for beginning, kind, endings in _BEGINNINGS:
        if start.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(beginning) and not name.endswith(endings or ("?",)):
            raise ValueError(f"{path} is {kind}.")
    if name.endswith((".txt", ".csv", ".tsv", ".json", ".jsonl")) and start.count(0) > len(start) / 4:
        raise ValueError(f"{path} is UTF-16 text. Convert it with `iconv -f utf-16 -t utf-8`.")
