"""Fingerprints of weights, data and tokenizers: short texts that differ where the things themselves differ."""

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

from st_contrastive.components.pretrained import fingerprint as vocabulary_checksum

#: How many values of each weight are hashed in addition to the sum of all.
_SAMPLE = 64
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: Parts of an encoder's names of weights that are drawn anew when a script builds the model again: adapters, and the
#: pooler of a checkpoint that has none, which no sentence vector depends on.
_DRAWN_ANEW = (".pooler.", "lora_", ".adapter")
#: Shows whether a tokenizer keeps capitals, accents and other scripts.
_PROBE = "Hello WORLD, naïve Ærøskøbing \u2460 東京"


def tensors_fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Fingerprint of named tensors: of their types, shapes and values. Every value counts; devices make no difference.

    Of each tensor, the sum of the values' bit patterns and a sample at equal distances are hashed. The sum is of
    integers, so it does not depend on the order in which a device adds.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        bits = tensor.detach().contiguous().view(_INTEGERS[tensor.element_size()]).flatten()
        sample = bits[:: max(1, len(bits) // _SAMPLE)].to(torch.int64)
        values = torch.cat([bits.sum(dtype=torch.int64)[None], sample]).cpu().numpy()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode() + values.tobytes())
    return digest.hexdigest()[:16]


def encoder_fingerprint(model: SentenceTransformer) -> str:
    """Fingerprint of all weights of the model's first module, without those that a script draws when it builds the
    model again. A resumed run takes these, and the modules behind the encoder, from the checkpoint."""
    weights = {name.replace("_orig_mod.", ""): weight for name, weight in model[0].state_dict(keep_vars=True).items()}
    return tensors_fingerprint(
        {
            name: weight
            for name, weight in weights.items()
            if isinstance(weight, Tensor) and not any(part in f".{name}" for part in _DRAWN_ANEW)
        }
    )


def data_fingerprints(data: Any, argument: str = "train_dataset") -> dict[str, str]:
    """The size and a fingerprint of each dataset's rows, and the name of its transform, by the dataset's name."""
    named = data if isinstance(data, dict) else {"": data}
    return {f"{argument} {name}".strip(): _describe_rows(part) for name, part in named.items()}


def _describe_rows(data: Any) -> str:
    if not isinstance(data, Dataset):
        return "a stream"
    digest = hashlib.sha256()
    for rows in data.with_format("arrow").iter(10_000):  # a transform draws its rows anew
        digest.update(json.dumps(rows.to_pydict(), default=str).encode())
    transform = data.format["format_kwargs"].get("transform")
    named = "" if transform is None else f", transformed by {name_of(transform)}"
    return f"{len(data)} rows ({digest.hexdigest()[:8]}){named}"


def describe_tokenizer(model: SentenceTransformer) -> str | None:
    """The vocabulary's checksum, and what the tokenizer makes of capitals, accents and other scripts; None where the
    model has no tokenizer of transformers."""
    tokenizer = getattr(model, "tokenizer", None)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        return None
    # Calling the tokenizer would change how it truncates, which is saved with it.
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    normalized = _PROBE if normalizer is None else normalizer.normalize_str(_PROBE)
    return f"{vocabulary_checksum(tokenizer):08x}, {normalized}"


def describe_dropout(model: nn.Module) -> str:
    """How many dropout layers have which rate."""
    rates = Counter(float(module.p) for module in model.modules() if isinstance(module, nn.Dropout))
    return ", ".join(f"{rate:g} in {count} layers" for rate, count in sorted(rates.items())) or "none"


def name_of(value: Any) -> str:
    """The name of a class or function, without its address in memory."""
    return str(getattr(value, "__qualname__", type(value).__qualname__))
