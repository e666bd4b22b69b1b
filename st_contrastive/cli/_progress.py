"""The lines of a training run: its time, steps, the loss and its terms, time left, and scores."""

from __future__ import annotations

import time
from typing import Any

from transformers import TrainerCallback, TrainerState

#: Entries of the Trainer's log that are not terms of the loss.
_NO_TERMS = ("loss", "grad_norm", "learning_rate", "epoch")
#: Steps from which the time of a run is estimated.
_TIMED = 10


class Progress(TrainerCallback):
    """Prints a line for each of the Trainer's logs, and how long the run takes when ten steps are made.

    One object serves all stages of a run.

    Args:
        silent: print nothing.

    Attributes:
        has_begun: whether the checks before the first step are over.
        announced: when the texts were described, if the start is scored after that; otherwise None.

    Example:
        >>> Progress().line(TrainerState(global_step=5, max_steps=20), {"loss": 0.5, "learning_rate": 3e-5})
        'step 5/20  loss 0.5'
    """

    def __init__(self, *, silent: bool = False) -> None:
        self.silent = silent
        self.has_begun = False
        self.announced: float | None = None
        self._started, self._first, self._scoring = 0.0, 0, 0.0

    def line(self, state: TrainerState, logs: dict[str, Any], left: float | None = None, metric: str = "") -> str:
        """The line of a log, with the seconds left; "" where it has neither a loss nor a score."""
        parts = []
        if "loss" in logs:
            terms = {name: value for name, value in logs.items() if name not in _NO_TERMS and isinstance(value, float)}
            parts.append(f"loss {logs['loss']:.4g}")
            parts += [f"{name} {value:.4g}" for name, value in terms.items()] if len(terms) > 1 else []
            parts += [f"{_duration(left)} left"] if left is not None else []
        if metric in logs:
            parts.append(f"score {100 * logs[metric]:.2f}")
        return "  ".join([f"step {state.global_step}/{state.max_steps}", *parts]) if parts else ""

    def print_start(self, score: float) -> None:
        """Print the start's score, which takes as long as an evaluation."""
        if self.announced is not None:
            self._scoring = time.monotonic() - self.announced
        print(f"Score before training: {100 * score:.2f}", flush=True)

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self.has_begun, self._started, self._first = True, time.monotonic(), state.global_step

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Say how long the run takes, with its evaluations."""
        left, steps = self._seconds_left(state), state.max_steps - self._first
        if state.global_step == self._first + _TIMED and left:
            evaluations = steps // state.eval_steps if args.eval_strategy == "steps" else 0
            seconds = time.monotonic() - self._started + left + evaluations * self._scoring
            self._print(state, f"{steps} steps take about {_duration(seconds)}.")

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Print the line; the scores before and after training are the caller's."""
        text = self.line(state, logs or {}, self._seconds_left(state), args.metric_for_best_model)
        if text and self.has_begun:
            self._print(state, text)

    def _print(self, state: TrainerState, text: str) -> None:
        if state.is_world_process_zero and not self.silent:
            print(text, flush=True)

    def _seconds_left(self, state: TrainerState) -> float | None:
        """At the pace so far, evaluations included; None before the first step."""
        done, steps = state.global_step - self._first, state.max_steps - state.global_step
        return (time.monotonic() - self._started) / done * steps if self.has_begun and done else None


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 120 else f"{seconds:.0f} s"
