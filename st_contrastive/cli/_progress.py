"""A progress line of a training run: step, loss, learning rate, time left and development score."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress
from typing import Any, TextIO

from transformers import TrainerCallback, TrainerState

#: Entries of the Trainer's log that are not terms of the loss.
NO_TERMS = ("loss", "grad_norm", "learning_rate", "epoch", "step", "seconds", "queue", "fallback_share", "total_flos")


class Progress(TrainerCallback):
    """Writes the line: in place on a terminal, elsewhere a new line at each of the Trainer's logs.

    Args:
        metric: the evaluator's metric, without the Trainer's prefix ``eval_``; None without an evaluator.
        stream: file to write to; None takes the error stream.

    Example:
        >>> Progress(None).line(TrainerState(global_step=5, max_steps=20), {"loss": 0.5, "learning_rate": 3e-5})
        'step 5/20 | loss 0.5 | learning rate 3e-05'
    """

    def __init__(self, metric: str | None, stream: TextIO | None = None) -> None:
        self.metric = metric
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._logs: dict[str, Any] = {}
        self._score: float | None = None
        self._started: float | None = None
        self._first = 0
        self._written = -1.0
        self._width = 0

    def line(self, state: TrainerState, logs: dict[str, Any]) -> str:
        """The line of a step, with the loss and learning rate that were last logged."""
        parts = [f"step {state.global_step:,}/{state.max_steps:,}"]
        if "loss" in logs:
            terms = [f"{name} {value:.4g}" for name, value in logs.items() if name not in NO_TERMS]
            parts.append(f"loss {logs['loss']:.4g}" + (f" ({' '.join(terms)})" if len(terms) > 1 else ""))
        if "learning_rate" in logs:
            parts.append(f"learning rate {logs['learning_rate']:.2g}")
        done = state.global_step - self._first
        if self._started is not None and done > 0:
            left = (time.monotonic() - self._started) / done * (state.max_steps - state.global_step)
            parts.append(f"{_spelled(left)} left")
        if self._score is not None:
            parts.append(f"dev {100 * self._score:.2f}")
        return " | ".join(parts)

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self._started, self._first = time.monotonic(), state.global_step

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Renew the line on a terminal, at most five times a second."""
        if self._terminal and state.is_world_process_zero and time.monotonic() - self._written > 0.2:
            self._renew(state)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Take the loss from the log; write a new line if there is no terminal."""
        if logs is None or "loss" not in logs or not state.is_world_process_zero:
            return
        self._logs = dict(logs)
        if self._terminal:
            self._renew(state)
        else:
            self._put(f"{self.line(state, self._logs)}\n")

    def on_evaluate(self, args: Any, state: TrainerState, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Take the score of an evaluation."""
        if self.metric is not None and metrics:
            self._score = metrics.get(f"eval_{self.metric}", self._score)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """End the line."""
        if self._terminal and state.is_world_process_zero:
            self._renew(state)
            self._put("\n")

    def _renew(self, state: TrainerState) -> None:
        text = self.line(state, self._logs)[: shutil.get_terminal_size().columns - 1]
        self._put(f"\r{text.ljust(self._width)}")
        self._written, self._width = time.monotonic(), len(text)

    def _put(self, text: str) -> None:
        with suppress(OSError):  # nobody reads it any more, which is no reason to end a run
            self._stream.write(text)
            self._stream.flush()


def _spelled(seconds: float) -> str:
    """A time in seconds, minutes from two minutes on, or hours from two hours on.

    Example:
        >>> _spelled(70.4), _spelled(300.0), _spelled(9000.0)
        ('70 s', '5 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
