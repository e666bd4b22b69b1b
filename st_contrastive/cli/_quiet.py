"""The libraries' own bars, hints and warnings, off for the time of a command."""

from __future__ import annotations

import argparse
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Loggers whose hints are about the libraries' inside; errors still come through.
_LOGGERS = ("sentence_transformers", "transformers", "datasets", "huggingface_hub", "accelerate")


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """The option that leaves them on."""
    parser.add_argument("--verbose", action="store_true", help="the libraries' own bars, hints and warnings too")


@contextmanager
def quiet() -> Iterator[None]:
    """Switch them off, and back to what they were.

    These are the bars of weights that are loaded and of datasets that are mapped, the libraries' hints below errors,
    and the warnings that pinned memory has no GPU and that tokenizers were used before a fork. What this package warns
    of is not among them.
    """
    import datasets
    import huggingface_hub.utils
    import transformers.utils.logging

    hub: Any = huggingface_hub.utils  # neither of the two has all its types
    transformers_logging: Any = transformers.utils.logging
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    bars = (transformers_logging.is_progress_bar_enabled(), datasets.is_progress_bar_enabled())
    hub_bars = not hub.are_progress_bars_disabled()
    forks = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    hub.disable_progress_bars()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*pin_memory.*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars[0]:
            transformers_logging.enable_progress_bar()
        if bars[1]:
            datasets.enable_progress_bars()
        if hub_bars:
            hub.enable_progress_bars()
        if forks is None:
            os.environ.pop("TOKENIZERS_PARALLELISM", None)
