"""A cache of document vectors, so that a second search does not encode the file again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer

from st_contrastive._files import complete_file

#: Size in bytes above which the oldest files are deleted.
LIMIT = 2 * 2**30


def cache_folder() -> Path:
    """The folder of the cache: ``$ST_CONTRASTIVE_CACHE``, or ~/.cache/st_contrastive. It may be deleted at any time."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("ST_CONTRASTIVE_CACHE") or Path(home, "st_contrastive")).expanduser() / "vectors"


def cached_vectors(
    model: SentenceTransformer, texts: Sequence[str], encode: Callable[[], Any]
) -> tuple[NDArray[np.float32], bool]:
    """(N, d) vectors of N texts, from the cache or from ``encode``, and whether the cache had them.

    The cache key depends on the texts, the model's weights and settings, and the libraries' versions.
    """
    file = cache_folder() / f"{_key(model, texts)}.npy"
    with suppress(EOFError, OSError, ValueError):  # no such file, or a damaged one
        vectors = np.load(file, allow_pickle=False)
        os.utime(file)
        return vectors, True
    vectors = np.asarray(encode(), dtype=np.float32)
    if np.isfinite(vectors).all():
        with suppress(OSError):  # a read-only or full disk
            with complete_file(file) as partial, partial.open("wb") as opened:
                np.save(opened, vectors, allow_pickle=False)
            _delete_oldest(file)
    return vectors, False


def _key(model: SentenceTransformer, texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for library in ("sentence-transformers", "transformers", "torch"):
        digest.update(f"{library} {version(library)}\n".encode())
    settings = (model.max_seq_length, model.prompts, model.default_prompt_name, model.truncate_dim)
    digest.update(repr((model, settings)).encode())
    for module in model:
        digest.update(repr(sorted(getattr(module, "get_config_dict", dict)().items(), key=str)).encode())
    tokenizer = getattr(model.tokenizer, "backend_tokenizer", model.tokenizer)
    if hasattr(tokenizer, "to_str"):
        content = json.loads(tokenizer.to_str())
        content |= dict.fromkeys(("truncation", "padding"))  # settings of the last call only
        digest.update(json.dumps(content).encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()[:40]


def _delete_oldest(newest: Path) -> None:
    """Delete the least recently used files until the cache is within its limit."""
    states = {file: file.stat() for file in newest.parent.glob("*.npy") if file != newest}
    size = newest.stat().st_size + sum(state.st_size for state in states.values())
    for file, state in sorted(states.items(), key=lambda item: item[1].st_mtime):
        if size <= LIMIT:
            break
        file.unlink(missing_ok=True)
        size -= state.st_size
