"""What the benchmarks write down: raw results as JSON, what they ran under, and how much memory is resident."""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from st_contrastive._files import complete_file


def read(path: str | None, empty: Any) -> Any:
    """What was written before, or ``empty``."""
    return json.loads(Path(path).read_text(encoding="utf-8")) if path and Path(path).is_file() else empty


def write(path: str | None, result: Any) -> None:
    """Where a path was asked for; what was there stays whole until it is replaced."""
    if path:
        with complete_file(Path(path)) as partial:
            partial.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def changing(path: str, empty: Any) -> Iterator[Any]:
    """What the file holds, or a copy of ``empty``, to be changed in place and written; other processes wait."""
    with FileLock(f"{path}.lock"):
        result = read(path, copy.deepcopy(empty))
        yield result
        write(path, result)


@contextmanager
def claimed(lock: Path) -> Iterator[bool]:
    """Whether this process alone holds the lock. One that dies lets go of it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(lock)
    try:
        held.acquire(timeout=0)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        held.release()


def arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The command's arguments: of files and folders the last part of their name, for the rest is this machine's."""
    given = {name: value for name, value in vars(args).items() if name != "json"}
    return {name: Path(value).name if isinstance(value, str) else value for name, value in given.items()}


def begin(path: str, empty: Any, about: dict[str, Any], remedy: str) -> None:
    """Write down what the cells of a file are made with, and the software.

    Raises:
        SystemExit: it has cells that were made with other arguments.
    """
    with changing(path, empty) as result:
        before = result.setdefault("arguments", about)
        if changed := [key for key in about if before.get(key) != about[key]]:
            raise SystemExit(f"{path} was made with another {', '.join(changed)}: {remedy}")
        result |= software()


def software() -> dict[str, Any]:
    return {"threads": torch.get_num_threads(), "torch": torch.__version__}


def resident(name: str = "VmRSS") -> int:
    """MiB of this process: ``VmRSS`` now, ``VmHWM`` at the most."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) // 1024
