"""What a checkpoint records of its run, and the check that a resumed run is the same run."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch import nn
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from st_contrastive import distributed
from st_contrastive._checks import warn
from st_contrastive.training.prompts import simplest
from st_contrastive.training.run_parts import by_name, module_settings

#: How many values of a model's first weight tell it from others.
_VALUES = 4096
#: Arguments that a resumed run may raise: training goes on for longer.
MAY_GROW = frozenset(("max_steps", "num_train_epochs"))
#: Those that it may change. They say where results go, what is logged, saved and scored, and on which device; none
#: changes what a step computes.
MAY_CHANGE = frozenset(
    (
        "output_dir resume_from_checkpoint ignore_data_skip restore_callback_states_from_checkpoint "
        "logging_strategy logging_steps logging_first_step logging_nan_inf_filter log_on_each_node log_level "
        "log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id "
        "trackio_static_space_id include_num_input_tokens_seen skip_memory_metrics debug "
        "save_strategy save_steps save_total_limit save_only_model save_on_each_node enable_jit_checkpoint "
        "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision "
        "eval_strategy eval_steps eval_delay eval_on_start eval_do_concat_batches eval_use_gather_object "
        "eval_accumulation_steps per_device_eval_batch_size prediction_loss_only batch_eval_metrics "
        "include_for_metrics bf16_full_eval fp16_full_eval "
        "load_best_model_at_end metric_for_best_model greater_is_better "
        "use_cpu dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers "
        "dataloader_prefetch_factor dataloader_multiprocessing_context "
        "gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing "
        "activation_checkpointing_kwargs torch_empty_cache_steps "
        "ddp_backend ddp_timeout ddp_bucket_cap_mb local_rank do_train do_eval do_predict"
    ).split()
)


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
    """Refuse to continue a checkpoint's run with changes that would be ignored, or make it another run."""
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


def refused_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Of two runs' arguments, the values before and now of those that a resumed run may not change."""
    changed = {name: (before.get(name), now.get(name)) for name in sorted(before.keys() | now.keys())}
    return {
        name: (old, new)
        for name, (old, new) in changed.items()
        if old != new and name not in MAY_CHANGE and not (name in MAY_GROW and _limit(old) <= _limit(new))
    }


def _limit(value: float | None) -> float:
    """Of steps or epochs; none and -1 set no limit."""
    return math.inf if value is None or value < 0 else value


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
