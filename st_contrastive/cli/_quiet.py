"""Switch off the libraries' progress bars, hints and warnings while a command runs."""

from __future__ import annotations

import argparse
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

#: Libraries whose hints and warnings are not for the user; their errors still come through.
_LOGGERS = ("sentence_transformers", "transformers", "datasets", "huggingface_hub", "accelerate", "torch", "mteb")


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """Add the option that leaves them on."""
    parser.add_argument("--verbose", action="store_true", help="show the libraries' own progress bars and warnings")


@contextmanager
def quiet(*, warnings_shown: bool = True) -> Iterator[None]:
    """Switch off the libraries' progress bars and log messages, and print warnings as one line.

    A Python warning is shown as "Warning: " and its message. Warnings of coming versions, that pinned memory has no
    GPU, and that MTEB has a newer task are left out. Everything is set back afterwards.
    """
    import datasets
    import huggingface_hub.utils
    import transformers.utils.logging

    hub: Any = huggingface_hub.utils  # two modules without complete types
    transformers_logging: Any = transformers.utils.logging
    bars = (
        (transformers_logging.is_progress_bar_enabled(), transformers_logging, "progress_bar"),
        (datasets.is_progress_bar_enabled(), datasets, "progress_bars"),
        (not hub.are_progress_bars_disabled(), hub, "progress_bars"),
    )
    with ExitStack() as restore, warnings.catch_warnings():
        for shown, library, bar in bars:
            if shown:
                restore.callback(getattr(library, f"enable_{bar}"))
                getattr(library, f"disable_{bar}")()
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            restore.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        if "TOKENIZERS_PARALLELISM" not in os.environ:  # without it, tokenizers warn of a fork
            restore.callback(os.environ.pop, "TOKENIZERS_PARALLELISM", None)
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        restore.callback(setattr, warnings, "formatwarning", warnings.formatwarning)
        warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"
        warnings.filterwarnings("ignore", message=".*pin_memory.*|.*is superseded by")
        warnings.filterwarnings("ignore", category=FutureWarning)  # of a library about another library
        if not warnings_shown:
            warnings.simplefilter("ignore")
        yield
