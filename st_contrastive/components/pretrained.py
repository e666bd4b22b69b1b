"""Loads parts of pre-trained checkpoints by folder or hub name, without running their code."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from st_contrastive._checks import first_line
from st_contrastive._files import checkpoint_name


def load_tokenizer(name: str | os.PathLike[str], argument: str, **options: Any) -> PreTrainedTokenizerBase:
    """Load a checkpoint's tokenizer. ``argument`` is its name in errors; ``options`` go to transformers."""
    with _loading(name, argument) as checkpoint:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False, **options)
    return cast(PreTrainedTokenizerBase, tokenizer)


def load_embeddings(name: str | os.PathLike[str], argument: str, **options: Any) -> Tensor:
    """Load a checkpoint's input embeddings (V, w). Arguments are as in :func:`load_tokenizer`."""
    with _loading(name, argument) as checkpoint:
        model, report = AutoModel.from_pretrained(
            checkpoint, trust_remote_code=False, use_safetensors=True, output_loading_info=True, **options
        )
    matrix = model.get_input_embeddings().weight
    saved = {key for key, parameter in model.named_parameters() if parameter is matrix}
    if not saved or saved & set(report["missing_keys"]):
        raise OSError(f"{argument} {name} holds no input embeddings. Name a checkpoint that was trained on text.")
    return cast(Tensor, matrix.detach())


def load_masked_lm(name: str | os.PathLike[str], argument: str, **options: Any) -> PreTrainedModel | None:
    """Load a checkpoint as a masked-LM model; None if it has no trained masked-LM head.

    Arguments are as in :func:`load_tokenizer`.
    """
    with _loading(name, argument) as checkpoint:
        model, report = AutoModelForMaskedLM.from_pretrained(
            checkpoint, trust_remote_code=False, use_safetensors=True, output_loading_info=True, **options
        )
    has_head = all(key.startswith(f"{model.base_model_prefix}.") for key in report["missing_keys"])
    return cast(PreTrainedModel, model) if has_head else None


def vocabulary_checksum(tokenizer: PreTrainedTokenizerBase) -> int:
    """A 31-bit checksum of a tokenizer's tokens and their ids."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    text = "\n".join(f"{token_id} {token}" for token, token_id in vocabulary)
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) & 0x7FFFFFFF


@contextmanager
def _loading(name: str | os.PathLike[str], argument: str) -> Iterator[str]:
    """Context with a checkpoint's folder or name, in which transformers is silent and errors name the argument."""
    checkpoint, verbosity = checkpoint_name(name, argument), transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.CRITICAL)  # else it lists each unused weight
    try:
        yield checkpoint
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise OSError(f"{argument} {name} can't be loaded: {first_line(error)}") from error
    finally:
        transformers_logging.set_verbosity(verbosity)
