"""Load encoders for the commands."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer

from st_contrastive import recipes
from st_contrastive._checks import first_line, warn
from st_contrastive.cli._arguments import UserError


def load_model(name: str, *, pooling: str = "keep", max_length: int | None = None) -> SentenceTransformer:
    """A model by folder or hub name, under its own pooling ("keep") or another, reading at most ``max_length`` tokens.

    Raises:
        UserError: it can't be loaded, or is not a text encoder.
    """
    missing: list[str] = []
    try:
        with _noting_missing_weights(missing):
            model = recipes.load_model(name, None if pooling == "keep" else pooling, method=None)
    except (OSError, ValueError) as error:
        raise UserError(first_line(error)) from error
    if missing:
        warn(
            f"{name} lacks {len(missing)} of its encoder's weights, such as {missing[0]}, which are now random: the "
            "checkpoint is incomplete, or was saved by another model's class."
        )
    if max_length is not None:
        if not isinstance(model[0], Transformer):
            raise UserError(f"--max-length: {name} starts with {type(model[0]).__name__}, which has no such limit.")
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
