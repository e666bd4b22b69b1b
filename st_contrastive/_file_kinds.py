"""Detects the kind of a file by its first bytes, regardless of its name, and reads text from compressed files."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from st_contrastive._files import is_path

_HEAD = 512  # bytes
_PAGE = "a web page. Download the file itself, not the page that shows it"
_UTF_16 = "UTF-16 text. Convert it with `iconv -f utf-16 -t utf-8`"
#: Files that often have a misleading name: their first bytes in lower case, their kind, and the remedy.
_BEGINNINGS = (
    (b"version https://git-lfs", "a Git LFS pointer. Fetch the file itself with `git lfs pull`"),
    (b"<!doctype html", _PAGE),
    (b"<html", _PAGE),
    (b"%pdf-", "a PDF document. Extract its text"),
    (b"\xff\xfe", _UTF_16),
    (b"\xfe\xff", _UTF_16),
)
#: Compressed files that are read: their first bytes, and the ending that their names should have.
_READ = (
    (b"\x1f\x8b", ".gz"),
    (b"BZh", ".bz2"),
    (b"\xfd7zXZ\0", ".xz"),
    (b"PK\x03\x04", ".zip"),
    (b"\x28\xb5\x2f\xfd", ".zst"),
    (b"\x04\x22\x4d\x18", ".lz4"),
)
#: Compressed files that are read if a package is installed: the package, and the command that unpacks them.
_PACKAGES = {".zst": ("zstandard", "zstd -d"), ".lz4": ("lz4", "lz4 -d")}
#: Compressed files that are not read: their first bytes, their kind, and the command that unpacks them.
_NOT_READ = (
    (b"7z\xbc\xaf\x27\x1c", "compressed by 7-Zip", "7z x"),
    (b"Rar!\x1a\x07", "compressed by RAR", "unrar x"),
    (b"\x1f\x9d", "compressed by Unix compress", "uncompress"),
    (b"\x5d\0\0", "compressed by LZMA", "unlzma"),
    (b"LZIP", "compressed by lzip", "lzip -d"),
    (b"\x89LZO", "compressed by lzop", "lzop -d"),
    (b"\xff\x06\0\0sNaPpY", "compressed by Snappy", "snzip -d"),
)
#: Compressed files without characteristic first bytes, by the ending of their names.
_UNMARKED = {".br": ("compressed by Brotli", "brotli -d"), ".snappy": ("compressed by Snappy", "snzip -d")}
_TAR = slice(257, 262)
#: Endings of compressed files, in lower case.
COMPRESSIONS = (
    *(ending for _, ending in _READ), ".zstd", ".7z", ".rar", ".z", ".lzma", ".lz", ".lzo", *_UNMARKED,
)  # fmt: skip
_BINARY = (".parquet", ".safetensors", ".bin", ".pt", ".pth", ".npz")


def require_model_files(name: str | os.PathLike[str]) -> None:
    """Raise a ValueError if a local model is not a folder, or if a file in it does not match its name."""
    path = Path(name)
    if not path.is_dir() and (is_path(name) or path.exists()):
        raise ValueError(f"{path} is not a folder. Name the folder of a model; unpack it first if it is an archive.")
    for file in (*path.glob("*.json"), *path.glob("*.safetensors"), *path.glob("*.txt"), *path.glob("*/config.json")):
        if file.stat().st_size < 2**20:  # pointers and web pages are small, and real weights may have any first bytes
            require_plain_file(file)


def require_plain_file(path: str | os.PathLike[str]) -> None:
    """Raise a ValueError if a file, or the file inside a compressed one, does not match its name."""
    path = Path(path)
    with path.open("rb") as file:
        head = file.read(_HEAD)
    kind = _other_kind(head, path.name.lower())
    if not kind:
        with unpacked(path) as (name, opened):
            inner = opened.read(_HEAD)
            kind = _other_kind(inner, name)
            if not kind and _compression(path, head) and _compression(Path(name), inner):
                kind = "compressed twice. Unpack it once"
    if kind:
        raise ValueError(f"{path} is {kind}.")


@contextmanager
def unpacked(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The lower-case name and the bytes of a file or, if it is compressed, of the file inside it.

    Raises:
        ValueError: the file is damaged, or is an archive of several files.
    """
    with path.open("rb") as file:
        compression = _compression(path, file.read(_HEAD))
    try:
        if compression == ".zip":
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if not name.endswith("/") and "__MACOSX/" not in name]
                if len(names) != 1:
                    raise ValueError(f"{path} is a zip archive of {len(names)} files. Unpack it, and name one of them.")
                with archive.open(names[0]) as inner:
                    yield Path(names[0]).name.lower(), inner
        else:
            name = path.name.lower()
            stem = os.path.splitext(name)[0] if name.endswith(COMPRESSIONS) else name
            with _opener(compression)(path, "rb") as opened:
                yield stem if compression else name, opened
    except Exception as error:
        if not _is_damage(error):
            raise
        raise ValueError(
            f"{path} is truncated or not a valid {compression} file ({error}). Fetch or compress it again."
        ) from error


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """The text of a file, compressed or not, with unchanged line ends."""
    with unpacked(path) as (_, opened), io.TextIOWrapper(opened, "utf-8-sig", newline="") as file:
        yield file


def _compression(path: Path, head: bytes) -> str:
    """The ending of a compressed file, by its first bytes, or else by its name; "" for other files."""
    name = path.name.lower()
    if not name.endswith(_BINARY):
        for beginning, ending in _READ:
            if head.startswith(beginning):
                return ending
    return next((ending for _, ending in _READ if name.endswith(ending)), "")


def datasets_can_unpack(path: Path) -> bool:
    """Whether ``datasets``, which only looks at a file's name, unpacks it correctly. True for uncompressed files."""
    with path.open("rb") as file:
        compression = _compression(path, file.read(_HEAD))
    return path.name.lower().endswith(compression) and compression != ".zst"  # datasets accepts truncated ones


class _ZstdFile(io.RawIOBase):
    """The bytes inside a .zst file. zstandard's own reader accepts a truncated file as complete."""

    def __init__(self, path: Path, mode: str = "rb") -> None:
        self._new = import_module("zstandard").ZstdDecompressor().decompressobj
        self._file, self._ready = path.open(mode), b""
        self._frame: Any = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            rest = self._frame.unused_data if self._frame is not None and self._frame.eof else b""
            if not (packed := rest or self._file.read(io.DEFAULT_BUFFER_SIZE)):
                if self._frame is not None and not self._frame.eof:
                    raise EOFError("it ends in the middle of a frame")
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = self._new()
            self._ready = self._frame.decompress(packed)
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _opener(compression: str) -> Callable[..., Any]:
    if compression == ".zst":
        return lambda path, mode: io.BufferedReader(_ZstdFile(path, mode))
    if compression == ".lz4":
        return import_module("lz4.frame").open  # type: ignore[no-any-return]
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    return openers.get(compression, open)


def _is_damage(error: Exception) -> bool:
    """Whether an error says that a compressed file can't be unpacked."""
    by_system = isinstance(error, OSError) and error.errno is not None
    kinds = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)
    return (isinstance(error, kinds) and not by_system) or str(error).lower().startswith(("zstd", "lz4"))


def _other_kind(head: bytes, name: str) -> str:
    """The kind of a file with these first bytes and the remedy, if it does not match its name; "" if it does."""
    if not head:
        return "empty"
    for beginning, kind in _BEGINNINGS:
        if head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(beginning):
            return kind
    if name.endswith(_BINARY):
        return ""
    for beginning, kind, command in _NOT_READ:
        if head.startswith(beginning):
            return f"{kind}. Unpack it with `{command}`, and name the file inside"
    if head[_TAR] == b"ustar":
        return "a tar archive. Unpack it with `tar -xf`, and name the folder or one of its files"
    compression = _compression(Path(name), head)
    if compression in _PACKAGES:
        package, command = _PACKAGES[compression]
        if find_spec(package) is None:
            return f"compressed ({compression}). Run `pip install {package}` to read it, or unpack it with `{command}`"
    if compression:
        return ""
    for ending, (kind, command) in _UNMARKED.items():
        if name.endswith(ending) and not _is_text(head):
            return f"{kind}. Unpack it with `{command}`, and name the file inside"
    controls = sum(byte < 32 and byte not in b"\t\n\f\r\x1b" for byte in head)
    if 0 in head or controls > 2 + len(head) / 50:
        return (
            "not text: it contains control bytes. Save a spreadsheet as .csv. Unpack a compressed file, or give it the "
            f"right ending (.gz, .zip, .parquet). It may also be {_UTF_16}"
        )
    return ""


def _is_text(head: bytes) -> bool:
    """Whether bytes begin UTF-8 text; the last character may be incomplete."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True
