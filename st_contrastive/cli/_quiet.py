"""Hide the libraries' progress bars, hints and warnings while a command runs.

sentence-transformers, transformers, datasets and the hub have one switch each. All are restored afterwards, because
``main`` is also called inside other programs.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from st_contrastive.cli._user_errors import as_options

#: The hints and warnings of these libraries do not help the user. Their errors are still shown.
_LOGGERS = ("sentence_transformers", "transformers", "datasets", "huggingface_hub", "accelerate", "torch", "mteb")


def add_verbose(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--verbose``."""
    parser.add_argument("--verbose", action="store_true", help="show the progress bars and warnings of the libraries")


@contextmanager
def quiet(*, warnings_shown: bool = True) -> Iterator[None]:
    """Hide the libraries' progress bars and log messages, and print each Python warning as one line.

    Three kinds of warnings are ignored: warnings about future versions of a library, about pinned memory without a
    GPU, and about a newer version of an MTEB task.

    Args:
        warnings_shown: False hides all warnings, as in all but the first of several processes.
    """
    import datasets
    import huggingface_hub.utils
    import transformers.utils.logging

    hub: Any = huggingface_hub.utils  # both modules are untyped
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
        restore.callback(setattr, warnings, "formatwarning", warnings.formatwarning)
        warnings.formatwarning = lambda message, *_, **__: f"Warning: {as_options(str(message))}\n"
        warnings.filterwarnings("ignore", message=".*pin_memory.*|.*is superseded by")
        warnings.filterwarnings("ignore", category=FutureWarning)  # from one library about another
        if not warnings_shown:
            warnings.simplefilter("ignore")
        yield
