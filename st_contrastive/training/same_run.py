"""What a checkpoint records of its run, and the check that a resumed run is the same run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch import nn
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from st_contrastive import distributed
from st_contrastive._checks import warn
from st_contrastive.training.allowed_changes import refused_changes
from st_contrastive.training.prompts import simplest
from st_contrastive.training.start import by_name, module_settings

#: How many values of a model's first weight tell it from others.
_VALUES = 4096


def describe_run(trainer: Any) -> dict[str, Any]:
    """The training arguments, the data and the model of a run, as JSON holds them."""
    prompts = trainer.args.prompts
    arguments = {
        **trainer.args.to_dict(),
        "max_length": trainer.max_length or trainer.model.max_seq_length,
        "prompts": simplest(trainer.prompts_by_dataset(trainer.train_dataset)) if prompts is None else prompts,
    }
    if distributed.world_size() > 1:
        arguments.pop("dataloader_drop_last")  # sentence-transformers sets it there
    record = {
        "arguments": arguments,
        "data": trainer.data_read,
        "modules": module_settings(trainer.model),
        "start": trainer.start,
        "weights": describe_weights(trainer.model),
        "fault_at_start": trainer.fault_at_start,
        "best_by": _describe_scores(trainer),
    }
    return json.loads(json.dumps(record, default=_name))  # type: ignore[no-any-return]


def require_same_run(trainer: Any, saved: dict[str, Any], checkpoint: Path) -> None:
    """Refuse to continue a checkpoint's run with changes that would be ignored, or make it another run.

    Raises:
        ValueError: an argument that a resumed run may not change, the data or the model differ.
    """
    now = describe_run(trainer)
    epoch = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME)).epoch or 0
    if epoch > 1 and not all(isinstance(data, Dataset) for data in by_name(trainer.train_dataset).values()):
        warn(
            f"{checkpoint} is of a later epoch than the first of a stream: the rows that follow are not those that an "
            "uninterrupted run would read."
        )
    same = saved["arguments"].keys() & now["arguments"].keys()
    if min(run["arguments"]["max_steps"] for run in (saved, now)) > 0:
        same.remove("num_train_epochs")  # which then sets no limit
    arguments = [{name: run["arguments"][name] for name in same} for run in (saved, now)]
    changes = [
        f"{name} is {new!r}, and was {old!r}"
        for changed in (refused_changes(*arguments), refused_changes(saved["data"], now["data"]))
        for name, (old, new) in changed.items()
    ]
    if now["modules"] != saved["modules"]:
        changes.append(f"model has the modules {now['modules']}, and had {saved['modules']}")
    if now["start"] not in (saved["start"], saved["weights"]):
        changes.append("model has other weights than the run began with, and than the checkpoint")
    if trainer.args.load_best_model_at_end:  # what the best score so far was by
        by, new = saved.get("best_by", {}), now["best_by"]
        both = [name for name in by if None not in (by[name], new[name])]
        changes += [f"{name} is {new[name]}, and was {by[name]}" for name in both if new[name] != by[name]]
    if changes:
        raise ValueError(
            f"resume_from_checkpoint {checkpoint} continues a run that can't be changed: {'; '.join(changes)}. Give "
            "what the run had, or train anew from the model in that folder, without resume_from_checkpoint."
        )


def _describe_scores(trainer: Any) -> dict[str, Any]:
    """The evaluators and the metric that the best checkpoint is chosen by."""
    evaluators = getattr(trainer.evaluator, "evaluators", [trainer.evaluator])
    configs: list[Any] = [getattr(evaluator, "get_config_dict", dict)() for evaluator in evaluators]
    metric = {name: getattr(trainer.args, name) for name in ("metric_for_best_model", "greater_is_better")}
    return {"evaluator": configs if any(configs) else None, "eval_dataset": trainer.eval_data_read, **metric}


def describe_weights(model: nn.Module) -> str:
    """A hash of some values of the model's first weight, which in an encoder is that of the token embeddings."""
    values = next((weight.detach().flatten()[:_VALUES] for weight in model.parameters()), None)
    return "" if values is None else hashlib.sha256(values.float().cpu().numpy().tobytes()).hexdigest()[:16]


def describe_data(data: Any, argument: str = "train_dataset") -> dict[str, str]:
    """The size of each dataset, and a hash of its rows."""
    return {f"{argument} {name}".strip(): _describe_rows(part) for name, part in by_name(data).items()}


def _describe_rows(data: Any) -> str:
    if not isinstance(data, Dataset):
        return "a stream"
    digest = hashlib.sha256()
    for rows in data.with_format("arrow").iter(10_000):  # without what a transform draws anew
        digest.update(json.dumps(rows.to_pydict(), default=str).encode())
    return f"{len(data)} rows ({digest.hexdigest()[:8]})"


def _name(value: Any) -> str:
    """The name of a class or function, without its address in memory."""
    return getattr(value, "__qualname__", type(value).__qualname__)
