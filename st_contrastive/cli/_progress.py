"""Prints the progress of a training run: its duration, steps, loss terms, remaining time and scores."""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import TrainerCallback, TrainerState

#: Entries of the Trainer's log that are not terms of the loss.
_NOT_TERMS = ("loss", "grad_norm", "learning_rate", "epoch")
#: The step at which the time of a run is estimated.
_TIMED_STEP = 10
#: Writing speed of a slow disk, to estimate the time for checkpoints (the weights and the two moments of Adam).
_BYTES_PER_SECOND = 2e8


class Progress(TrainerCallback):
    """Prints a line for each of the Trainer's logs and, after ten steps, how long the run will take.

    One object is used for all stages of a run, and for all runs of a soup.

    Args:
        is_silent: print nothing.
        is_scored: whether the result of training is scored.

    Attributes:
        has_begun: whether the checks before the first step are over.

    Example:
        >>> Progress().line(TrainerState(global_step=5, max_steps=20), {"loss": 0.5, "learning_rate": 3e-5})
        'step 5/20  loss 0.5'
    """

    def __init__(self, *, is_silent: bool = False, is_scored: bool = False) -> None:
        self.is_silent, self.is_scored = is_silent, is_scored
        self.has_begun = False
        self._trainer: Any = None
        self._is_last, self._runs_after = True, 0
        self._started, self._first_step, self._scoring = 0.0, 0, 0.0
        self._terms: dict[str, torch.Tensor] = {}

    @property
    def is_watching(self) -> bool:
        """Whether a stage has been passed to :meth:`watch`."""
        return self._trainer is not None

    def watch(self, trainer: Any, *, is_last: bool = True, runs_after: int = 0) -> None:
        """Print the lines of this Trainer from now on.

        Args:
            is_last: False if another stage follows.
            runs_after: how many runs of a soup follow, with as many steps.
        """
        self._trainer, self._terms, self._is_last, self._runs_after = trainer, {}, is_last, runs_after
        trainer.add_callback(self)

    def line(self, state: TrainerState, logs: dict[str, Any], left: float | None = None, metric: str = "") -> str:
        """The line for a log entry, with the time left. "" if the entry has neither a loss nor a score."""
        parts = []
        if "loss" in logs:
            terms = {name: value for name, value in logs.items() if name not in _NOT_TERMS and isinstance(value, float)}
            parts.append(f"loss {logs['loss']:.4g}")
            parts += (
                [f"{name} {self._exact(name, value):.4g}" for name, value in terms.items()] if len(terms) > 1 else []
            )
            parts += [f"{_duration(left)} left"] if left is not None else []
        scored = metric if metric.startswith("eval_") else f"eval_{metric}"  # as transformers completes it
        if scored in logs:
            is_loss = scored.endswith("loss")
            parts.append(f"{scored} {logs[scored]:.4g}" if is_loss else f"score {100 * logs[scored]:.2f}")
        return "  ".join([f"step {state.global_step}/{state.max_steps}", *parts]) if parts else ""

    def print_start(self, score: float, seconds: float) -> None:
        """Print the score of the start, and expect later scores to take as many seconds."""
        self._scoring = seconds
        print(f"Score before training: {100 * score:.2f}", flush=True)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self.has_begun, self._started, self._first_step = True, time.monotonic(), state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Print how long the run will take, with its evaluations and checkpoints."""
        sums = getattr(self._trainer, "accum_loss_components", {}).get("train", {})
        self._terms = {name: value.clone() for name, value in sums.items() if isinstance(value, torch.Tensor)}
        left, steps = self._seconds_left(state), state.max_steps - self._first_step
        if state.global_step == self._first_step + _TIMED_STEP and left:
            scores = steps // state.eval_steps if args.eval_strategy == "steps" else 0
            saves = steps // state.save_steps if args.save_strategy == "steps" else 1
            seconds = time.monotonic() - self._started + left + scores * self._scoring
            if model is not None:
                size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
                seconds += (1 + self._runs_after) * (3 * saves + 1) * size / _BYTES_PER_SECOND
            runs = f"{self._runs_after + 1} runs of " if self._runs_after else ""
            self._print(state, f"{runs}{steps} steps take about {_duration(seconds)}, with scores and checkpoints.")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Print the line. The caller prints the scores before and after training."""
        text = self.line(state, logs or {}, self._seconds_left(state), args.metric_for_best_model or "")
        if text and self.has_begun:
            self._print(state, text)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Announce the last scores, because they take long and print nothing meanwhile."""
        self.has_begun = self._is_last  # the second stage has not been checked yet
        if self._final_scoring > 1 and not self._runs_after:
            self._print(state, f"Scoring the result takes about {_duration(self._final_scoring)}.")

    @property
    def _final_scoring(self) -> float:
        """The seconds for the scores after the last step, which only the last stage has."""
        return self._scoring if self.is_scored and self._is_last else 0.0

    def _exact(self, name: str, logged: float) -> float:
        """The mean of a term since the last log. The logged value is rounded to four decimals."""
        if name not in self._terms or not int(self._terms["steps"]):
            return logged
        mean = float(self._terms[name] / self._terms["steps"])
        return mean if round(mean, 4) == logged else logged  # on several processes, the log has the mean of all

    def _print(self, state: TrainerState, text: str) -> None:
        if state.is_world_process_zero and not self.is_silent:
            print(text, flush=True)

    def _seconds_left(self, state: TrainerState) -> float | None:
        """The seconds until the model is saved, at the pace so far. None before the first step."""
        done = state.global_step - self._first_step
        steps = (1 + self._runs_after) * state.max_steps - state.global_step
        if not self.has_begun or not done:
            return None
        return (time.monotonic() - self._started) / done * steps + self._final_scoring


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 120 else f"{seconds:.0f} s"
