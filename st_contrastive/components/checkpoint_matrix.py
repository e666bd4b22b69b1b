"""Reads the input-embedding matrix of a checkpoint: no layer is loaded, and no code of the checkpoint is run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from st_contrastive._checks import first_line
from st_contrastive._files import checkpoint_name


def read_tokenizer_and_matrix(name_or_path: str, **options: Any) -> tuple[PreTrainedTokenizerBase, Tensor]:
    """The tokenizer and the (vocabulary, width) matrix of a checkpoint, by folder or hub name.

    Args:
        name_or_path: folder or hub name.
        options: as in transformers: ``revision``, ``subfolder``, ``token``, ``cache_dir``, ``local_files_only``.

    Raises:
        OSError: there is no such checkpoint, or it has no safetensors file.
        TypeError: it is no name.
        ValueError: it needs code of its own, or has no input-embedding matrix.
    """
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise TypeError(f"name_or_path must be a folder or a hub name, got {type(name_or_path).__name__}.")
    name = checkpoint_name(name_or_path, "fraternal checkpoint")
    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False, **options)
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **options)
    except Exception as error:  # a damaged file can raise anything
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(f"fraternal checkpoint {name} can't be loaded: {first_line(error)}") from error
    with torch.device("meta"):  # without weights, to find the name of the matrix in this family
        model = AutoModel.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    layer = model.get_input_embeddings()
    own_name = next((key for key, parameter in model.named_parameters() if parameter is layer.weight), None)
    if own_name is None:
        raise ValueError(f"fraternal checkpoint {name}: {type(model).__name__} has no input-embedding matrix.")
    names = [own_name, f"{model.base_model_prefix}.{own_name}"]
    return tokenizer, _tensor(name, names, tuple(layer.weight.shape), options)


def _tensor(name: str, keys: list[str], shape: tuple[int, ...], options: dict[str, Any]) -> Tensor:
    """The first of ``keys`` that the checkpoint's safetensors files hold."""
    missing: dict[str, Any] = {
        "_raise_exceptions_for_missing_entries": False,
        "_raise_exceptions_for_gated_repo": True,
        "_raise_exceptions_for_connection_errors": True,
    }
    index = cached_file(name, "model.safetensors.index.json", **options, **missing)
    file_name: str | None = "model.safetensors"
    if index is not None:
        try:
            files = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
            file_name = next((files[key] for key in keys if key in files), None)
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(f"fraternal checkpoint {name}: {index} is damaged ({error}).") from error
    path = cached_file(name, file_name, **options, **missing) if file_name is not None else None
    if path is None and index is None:
        raise OSError(
            f"fraternal checkpoint {name} has no model.safetensors. Save it as one: "
            f"AutoModel.from_pretrained({name!r}).save_pretrained(folder), and its tokenizer with it."
        )
    if path is None and file_name is not None:
        raise OSError(f"fraternal checkpoint {name} lacks {file_name}, which its index names.")
    if path is not None:
        try:
            with safe_open(path, framework="pt") as tensors:
                for key in keys:
                    if key in tensors.keys():  # noqa: SIM118 - not a dict
                        matrix: Tensor = tensors.get_tensor(key)
                        return matrix
                # A tied matrix may be saved under the head's name only, and is then found by its shape.
                alike = [key for key in tensors.keys() if tuple(tensors.get_slice(key).get_shape()) == shape]  # noqa: SIM118
                if len(alike) == 1:
                    return tensors.get_tensor(alike[0])  # type: ignore[no-any-return]
        except SafetensorError as error:
            raise OSError(f"fraternal checkpoint {name}: {path} is damaged ({error}).") from error
    raise ValueError(f"fraternal checkpoint {name} holds no tensor {keys[0]}, its input-embedding matrix.")
