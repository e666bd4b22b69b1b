"""Checks after training that different texts still have different vectors."""

from __future__ import annotations

import itertools
import math
from typing import Any

from torch.nn.functional import normalize

from st_contrastive._checks import warn
from st_contrastive.losses.base import TextLoss
from st_contrastive.training.preflight import remedy_of_collapse
from st_contrastive.training.run_parts import tokenised_columns

#: If all cosines are closer to 1 than this, the vectors count as equal at any usual temperature.
TOLERANCE = 2e-3
#: With fewer logs than this, a high loss may still be the initial loss. Logged values are rounded.
_LOGS, _ROUNDING = 10, 1e-3


def find_collapse(trainer: Any) -> str | None:
    """Warn if the run collapsed, and return the sentence that describes it; None if it did not collapse."""
    sentence = _collapse(trainer)
    if sentence is not None:
        remedy = (
            f"Start a new run with a lower learning_rate than {trainer.args.learning_rate:g}, or with warmup. A "
            "resumed run keeps its learning rate."
        )
        sentence = f"The run collapsed: {sentence} {remedy_of_collapse(trainer) or remedy}"
        warn(sentence)
    return sentence


def _collapse(trainer: Any) -> str | None:
    history = trainer.state.log_history
    losses = [log["loss"] for log in history if "loss" in log]
    if losses and not math.isfinite(losses[-1]):
        return f"the last logged loss is {losses[-1]}."
    for name, level in _chance_levels(trainer).items():
        values = [log[name] for log in history if name in log]
        last = sum(values[-3:]) / 3
        if len(values) >= _LOGS and last >= (1 - _ROUNDING) * level:
            return f"its {name} loss ends at {last:.3g} (mean of three logs), and equal vectors have {level:.3g}."
    fault = find_vector_fault(trainer)
    return None if fault == trainer.fault_at_start else fault


def _chance_levels(trainer: Any) -> dict[str, float]:
    """The chance levels of a single loss; empty for several losses, because the logs add up their terms."""
    size = trainer.args.per_device_train_batch_size
    return trainer.loss.chance_levels(size) if isinstance(trainer.loss, TextLoss) else {}


def find_vector_fault(trainer: Any) -> str | None:
    """A sentence about a fault in the vectors of some training texts; None if they are finite and differ."""
    # Masked-LM training without a contrastive term may leave the vectors close to each other.
    if isinstance(trainer.loss, TextLoss) and not _chance_levels(trainer):
        return None
    texts = _distinct_texts(trainer)
    if not texts:
        return None
    truncation = (
        {} if trainer.max_length is None else {"processing_kwargs": {"text": {"max_length": trainer.max_length}}}
    )
    was_training = trainer.model.training
    vectors = trainer.model.encode(texts, convert_to_tensor=True, show_progress_bar=False, **truncation).float()
    trainer.model.train(was_training)
    if not vectors.isfinite().all():
        return "the model's vectors are not finite."
    units = normalize(vectors)
    are_equal = bool((vectors == vectors[0]).all()) or (units @ units.T).min().item() > 1 - TOLERANCE
    return f"the vectors of {len(texts)} different texts are equal." if are_equal and len(texts) > 1 else None


def _distinct_texts(trainer: Any) -> list[str]:
    """The distinct first texts of the (first) dataset: as many rows as a batch has, at most 64. Empty without texts."""
    data, count = trainer.train_dataset, min(max(2, trainer.args.per_device_train_batch_size), 64)
    if trainer.is_deepspeed_enabled:  # no process has the whole model
        return []
    if isinstance(data, dict):
        data = next(iter(data.values()))
    rows = list(itertools.islice(data, count))
    columns = tokenised_columns(trainer, rows[0]) if rows else []
    cells = [row[columns[0]] for row in rows] if columns else []
    return list(dict.fromkeys(cells)) if all(isinstance(cell, str) for cell in cells) else []  # or images
