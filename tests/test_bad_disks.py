"""A full disk leaves existing files as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModel, AutoTokenizer

from st_contrastive.components import AuxiliaryMLM, load_auxiliary, save_auxiliary
from st_contrastive.inputs import load_sentences

resource = pytest.importorskip("resource", reason="a system that limits the size of files")


@contextmanager
def limited_space(most_bytes: int) -> Iterator[None]:
    """Context in which no file can be larger. Writing fails as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def contents_of(folder: Path) -> dict[str, bytes]:
    """Contents of all files in a folder, including hidden ones."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("had_another", [False, True])
def test_save_auxiliary_on_a_full_disk(checkpoint, tmp_path, had_another):
    folder = checkpoint("bert")
    encoder, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    auxiliary, place = AuxiliaryMLM.from_encoder(encoder), tmp_path / "a" / "b"
    if had_another:
        save_auxiliary(auxiliary, place, tokenizer, "the old one")
        (place / "mine.txt").write_text("mine")
    before = contents_of(tmp_path)
    with torch.no_grad():
        for parameter in auxiliary.parameters():
            parameter += 1
    for size in (0, 1000, 100_000):
        with limited_space(size), pytest.raises((OSError, SafetensorError), match="File too large"):
            save_auxiliary(auxiliary, place, tokenizer, "the new one")
        assert contents_of(tmp_path) == before
    save_auxiliary(auxiliary, place, tokenizer, "the new one")
    assert load_auxiliary(place, encoder, tokenizer).extra_layers == 1


def test_a_cache_on_a_full_disk(tmp_path):
    path = tmp_path / "c.txt"
    path.write_text("".join(f"sentence {n}\n" for n in range(5000)))
    with limited_space(10_000), pytest.raises(OSError, match=r"The cache .*HF_DATASETS_CACHE"):
        load_sentences(path)
    assert len(load_sentences(path)) == 5000
