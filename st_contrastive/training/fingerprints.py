"""Fingerprints of weights, data and tokenizers: short strings that differ if the objects differ."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from st_contrastive.components.pretrained import vocabulary_checksum
from st_contrastive.encoder.copies import adapter_names

#: Number of values of each tensor that are hashed in addition to the sum of all its values.
_SAMPLE = 64
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Part of the names of a pooler, which is drawn at random if the checkpoint has none. No sentence vector depends on it.
_POOLER = ".pooler."
#: Text that shows whether a tokenizer keeps capitals, accents and other scripts.
_PROBE = "Hello WORLD, naïve Ærøskøbing \u2460 東京"


def tensors_fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Fingerprint of the types, shapes and values of named tensors. Every value counts; the device makes no difference.

    For each tensor, the sum of the values' bit patterns and an evenly spaced sample are hashed. The bit patterns are
    added as integers, so the sum does not depend on the order in which a device adds.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        bits = tensor.detach().contiguous().view(_INTEGERS[tensor.element_size()]).flatten()
        sample = bits[:: max(1, len(bits) // _SAMPLE)].to(torch.int64)
        values = torch.cat([bits.sum(dtype=torch.int64)[None], sample]).cpu().numpy()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode() + values.tobytes())
    return digest.hexdigest()[:16]


def encoder_fingerprint(model: SentenceTransformer) -> str:
    """Fingerprint of the weights of the model's first module, without adapters and poolers.

    Adapters and poolers may be initialised at random each time a script builds the model. A resumed run loads them, and
    the later modules, from the checkpoint.
    """
    adapters = {*adapter_names(model[0])}
    return tensors_fingerprint(
        {
            name.replace("_orig_mod.", ""): weight
            for name, weight in model[0].state_dict(keep_vars=True).items()
            if isinstance(weight, Tensor) and name not in adapters and _POOLER not in f".{name}"
        }
    )


def data_fingerprints(data: Any, argument: str = "train_dataset") -> dict[str, str]:
    """The number and a fingerprint of each dataset's rows, and the name of its transform, by dataset name."""
    named = data if isinstance(data, dict) else {"": data}
    return {f"{argument} {name}".strip(): _describe_rows(part) for name, part in named.items()}


def _describe_rows(data: Any) -> str:
    if not isinstance(data, Dataset):
        return "a stream"
    digest = hashlib.sha256()
    for rows in data.with_format("arrow").iter(10_000):  # without a transform, which may be random
        digest.update(json.dumps(rows.to_pydict(), default=str).encode())
    transform = data.format["format_kwargs"].get("transform")
    named = "" if transform is None else f", transformed by {name_of(transform)}"
    return f"{len(data)} rows ({digest.hexdigest()[:8]}){named}"


def describe_tokenizer(model: SentenceTransformer) -> str | None:
    """The vocabulary's checksum, and a sample of capitals, accents and other scripts after normalisation.

    None if the model has no tokenizer from transformers.
    """
    tokenizer = getattr(model, "tokenizer", None)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return None
    # Calling the tokenizer would change its truncation settings, which are saved with it.
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    normalized = _PROBE if normalizer is None else normalizer.normalize_str(_PROBE)
    return f"{vocabulary_checksum(tokenizer):08x}, {normalized}"


def describe_dropout(model: nn.Module) -> str:
    """The dropout rates, and the number of layers with each rate."""
    rates = Counter(float(module.p) for module in model.modules() if isinstance(module, nn.Dropout))
    return ", ".join(f"{rate:g} in {count} layers" for rate, count in sorted(rates.items())) or "none"


def name_of(value: Any) -> str:
    """The name of a class or function, without its address in memory."""
    return str(getattr(value, "__qualname__", type(value).__qualname__))
