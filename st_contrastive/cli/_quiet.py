"""Switch off the libraries' progress bars, hints and warnings while a command runs."""

from __future__ import annotations

import argparse
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Libraries whose hints and warnings are not for the user; their errors still come through.
_LOGGERS = ("sentence_transformers", "transformers", "datasets", "huggingface_hub", "accelerate")


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """Add the option that leaves them on."""
    parser.add_argument("--verbose", action="store_true", help="show the libraries' own progress bars and warnings")


@contextmanager
def quiet() -> Iterator[None]:
    """Switch off the libraries' progress bars and log messages, and print warnings as one line.

    A Python warning is shown as "Warning: " and its message, without the source line that raised it. The warning that
    pinned memory has no GPU is left out. Everything is set back afterwards.
    """
    import datasets
    import huggingface_hub.utils
    import transformers.utils.logging

    hub: Any = huggingface_hub.utils  # two modules without complete types
    transformers_logging: Any = transformers.utils.logging
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    bars = (transformers_logging.is_progress_bar_enabled(), datasets.is_progress_bar_enabled())
    hub_bars = not hub.are_progress_bars_disabled()
    forks = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # otherwise tokenizers warn of a fork
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    hub.disable_progress_bars()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    format_before = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*pin_memory.*")
            yield
    finally:
        warnings.formatwarning = format_before
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
