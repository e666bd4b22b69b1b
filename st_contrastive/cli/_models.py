"""Load encoders for the commands."""

from __future__ import annotations

import logging
import os
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sentence_transformers import SentenceTransformer

from st_contrastive import recipes
from st_contrastive._checks import first_line, warn
from st_contrastive._files import is_path
from st_contrastive.cli._arguments import UserError


def load_model(name: str, *, pooling: str = "keep", max_length: int | None = None) -> SentenceTransformer:
    """A model by folder or hub name, under its own pooling ("keep") or another, reading at most ``max_length`` tokens.

    Raises:
        UserError: it can't be loaded, or is not a text encoder.
    """
    missing: list[str] = []
    try:
        if is_path(folder := os.path.expanduser(name)) and not Path(folder).exists():
            raise ValueError("there is no such folder.")
        with _noting_missing_weights(missing):
            model = recipes.load_model(name, None if pooling == "keep" else pooling, method=None)
    except Exception as error:  # a damaged file or a refused pickle may raise anything
        raise UserError(f"{name} can't be loaded: {_reason(folder, error)}") from error
    if missing:
        warn(
            f"{name} lacks {len(missing)} of its encoder's weights, such as {missing[0]}, which are now random: the "
            "checkpoint is incomplete, or was saved by another model's class."
        )
    if max_length is not None:
        longest = model.max_seq_length
        if longest is not None and max_length > longest:
            raise UserError(f"--max-length {max_length}: {name} reads at most {longest} tokens.")
        model.max_seq_length = max_length
    return model


@contextmanager
def _noting_missing_weights(names: list[str]) -> Iterator[None]:
    """Add the weights that transformers draws at random; its log is the only place where it says so.

    A pooler is not used, and language models come without one.
    """

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found = re.findall(r"^(\S+) *\| MISSING", record.getMessage(), re.MULTILINE)
            names.extend(name for name in found if "pooler" not in name)

    logger, notes = logging.getLogger("transformers"), Notes(logging.WARNING)
    level, handlers, propagate = logger.level, logger.handlers, logger.propagate
    try:
        if logger.getEffectiveLevel() > logging.WARNING:  # let the report through to nothing but the notes
            logger.handlers, logger.propagate = [], False
            logger.setLevel(logging.WARNING)
        logger.addHandler(notes)
        yield
    finally:
        logger.removeHandler(notes)
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def _reason(folder: str, error: Exception) -> str:
    """The error in one line, with the remedy for what is refused on purpose."""
    text = str(error)
    if isinstance(error.__cause__, pickle.UnpicklingError):  # torch advises to run it
        return "its weights are a pickle that holds more than tensors, and the code of a pickle is never run."
    if "safetensors" in text and "no file named" in text:
        saving = f"SentenceTransformer({folder!r}).save_pretrained(FOLDER)"
        return f"{first_line(error)} Its weights must be safetensors; to convert them: {saving}."
    if "trust_remote_code" in text:
        return f"{first_line(error)} The commands run no code of a checkpoint; the losses in Python can."
    return first_line(error)
