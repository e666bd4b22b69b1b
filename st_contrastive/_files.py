"""Files and folders that appear complete or not at all, and checksums of their content."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
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
def new_folder(folder: Path) -> Iterator[None]:
    """Make a folder and its parents. If the block raises, those that were made are removed, if they are empty."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for place in made:  # the innermost first
            with suppress(OSError):
                place.rmdir()
        raise


@contextmanager
def complete_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A temporary file to write, which is renamed to ``path`` when the block ends.

    If the block raises, the temporary file is removed, and a file at ``path`` stays as it was.

    Args:
        path: where the file goes. Missing folders are made.
        durable: wait until the content is on the disk before the file is renamed, so that it also survives a power cut.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with complete_file(Path(folder, "scores.json")) as partial:
        ...         _ = partial.write_text("{}")
        ...     os.listdir(folder)
        ['scores.json']
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with new_folder(path.parent):
        try:
            yield partial
            if durable:
                synchronise(partial)
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


@contextmanager
def work_folder(target: Path) -> Iterator[Path]:
    """A temporary, hidden folder beside ``target``, from which finished content can be renamed to it in one step.

    The folder is removed when the block ends, and if the block raises, so are the folders that were made above it.
    """
    with new_folder(target.parent):
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def synchronise(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(parts: Iterable[bytes | Path]) -> str:
    """SHA-256 of bytes and of files' content, one after another, in hexadecimal digits: tells contents apart."""
    digest = hashlib.sha256()
    for block in _blocks(parts):
        digest.update(block)
    return digest.hexdigest()


def crc32(parts: Iterable[bytes | Path]) -> int:
    """CRC-32 of bytes and of files' content, one after another: shows damage to a file of this package."""
    value = 0
    for block in _blocks(parts):
        value = zlib.crc32(block, value)
    return value


def _blocks(parts: Iterable[bytes | Path]) -> Iterator[bytes]:
    for part in parts:
        if isinstance(part, bytes):
            yield part
        else:
            with part.open("rb") as file:
                while block := file.read(2**20):
                    yield block


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
