"""The lines of a training run: step, loss and its terms, time left, and the score of an evaluation."""

from __future__ import annotations

import time
from typing import Any

from transformers import TrainerCallback, TrainerState

#: Entries of the Trainer's log that are not terms of the loss.
_NO_TERMS = ("loss", "grad_norm", "learning_rate", "epoch")


class Progress(TrainerCallback):
    """Prints a line for each of the Trainer's logs.

    Args:
        metric: the evaluator's metric in the log; None without an evaluator.

    Example:
        >>> Progress(None).line(TrainerState(global_step=5, max_steps=20), {"loss": 0.5, "learning_rate": 3e-5})
        'step 5/20  loss 0.5'
    """

    def __init__(self, metric: str | None) -> None:
        self.metric = metric
        self.has_begun = False
        self._started, self._first = 0.0, 0

    def line(self, state: TrainerState, logs: dict[str, Any]) -> str:
        """The line of a log; "" where it has neither a loss nor a score."""
        parts = []
        if "loss" in logs:
            terms = {name: value for name, value in logs.items() if name not in _NO_TERMS and isinstance(value, float)}
            parts.append(f"loss {logs['loss']:.4g}")
            parts += [f"{name} {value:.4g}" for name, value in terms.items()] if len(terms) > 1 else []
            done = state.global_step - self._first
            if self._started and done:
                left = (time.monotonic() - self._started) / done * (state.max_steps - state.global_step)
                parts.append(f"{left / 60:.0f} min left" if left > 120 else f"{left:.0f} s left")
        if self.metric in logs:
            parts.append(f"score {100 * logs[self.metric]:.2f}")
        return "  ".join([f"step {state.global_step}/{state.max_steps}", *parts]) if parts else ""

    def on_step_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        if not self.has_begun:
            self.has_begun, self._started, self._first = True, time.monotonic(), state.global_step

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Print the line; the scores before and after training are the caller's."""
        text = self.line(state, logs or {})
        if text and self.has_begun and state.is_world_process_zero:
            print(text, flush=True)
