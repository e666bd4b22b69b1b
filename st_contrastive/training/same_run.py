"""The record of a run in its checkpoints, and the check that a resumed run is the same run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from sentence_transformers import SentenceTransformer
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from st_contrastive import distributed
from st_contrastive._checks import warn
from st_contrastive.training.fingerprints import describe_dropout, describe_tokenizer, encoder_fingerprint, name_of
from st_contrastive.training.loss_state import load_record
from st_contrastive.training.prompts import simplest
from st_contrastive.training.run_parts import by_name, module_settings

#: Arguments that a resumed run may raise to train longer.
MAY_GROW = frozenset(("max_steps", "num_train_epochs"))
#: Arguments that a resumed run may change. They concern output folders, logging, saving, evaluation and devices, and do
#: not change the result of a step.
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
    """The training arguments, the data and the model of a run, as JSON values."""
    prompts = trainer.args.prompts
    arguments = {
        **trainer.args.to_dict(),
        "max_length": trainer.max_length or trainer.model.max_seq_length,
        "prompts": simplest(trainer.prompts_by_dataset(trainer.train_dataset)) if prompts is None else prompts,
    }
    if distributed.world_size() > 1:
        arguments.pop("dataloader_drop_last")  # sentence-transformers sets it for several processes
    record = {
        "arguments": arguments,
        "data": trainer.data_read,
        # Environment variables and accelerate's configuration can set these two without a training argument.
        "mixed_precision": str(trainer.accelerator.mixed_precision),
        "compiler": trainer.accelerator.state.dynamo_plugin.backend.value,
        "modules": module_settings(trainer.model),
        "tokenizer": describe_tokenizer(trainer.model),
        "dropout": describe_dropout(trainer.model),
        "initial_weights": trainer.initial_weights,
        "weights": encoder_fingerprint(trainer.model),
        "fault_at_start": trainer.fault_at_start,
        "best_by": _describe_scores(trainer),
    }
    return json.loads(json.dumps(record, default=name_of))  # type: ignore[no-any-return]


def require_initial_weights(model: SentenceTransformer, checkpoint: Path) -> None:
    """Raise a ValueError if a model is not the one that the run of a checkpoint started from."""
    record = load_record(checkpoint)
    if record and record["initial_weights"] != encoder_fingerprint(model):
        raise ValueError(
            f"model has other weights than the start of the run that resume_from_checkpoint {checkpoint} continues. "
            "The score before training and the mixture need the initial weights: name that model."
        )


def require_same_run(trainer: Any, saved: dict[str, Any], checkpoint: Path) -> None:
    """Raise a ValueError if arguments, data, model or initial weights differ from those of the checkpoint's run."""
    now = describe_run(trainer)
    epoch = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME)).epoch or 0
    if epoch > 1 and not all(isinstance(data, Dataset) for data in by_name(trainer.train_dataset).values()):
        warn(
            f"{checkpoint} was saved after the first epoch of a stream. The resumed run will read different rows than "
            "an uninterrupted run."
        )
    same = saved["arguments"].keys() & now["arguments"].keys()
    if min(run["arguments"]["max_steps"] for run in (saved, now)) > 0:
        same.remove("num_train_epochs")  # max_steps overrides it
    arguments = [{name: run["arguments"][name] for name in same} for run in (saved, now)]
    changes = [
        f"{name} is {new!r}, and was {old!r}"
        for changed in (refused_changes(*arguments), refused_changes(saved["data"], now["data"]))
        for name, (old, new) in changed.items()
    ]
    if now["modules"] != saved["modules"]:
        changes.append(f"model has the modules {now['modules']}, and had {saved['modules']}")
    facts = ("mixed_precision", "compiler", "tokenizer", "dropout")
    changes += [f"{name} is {now[name]!r}, and was {saved[name]!r}" for name in facts if now[name] != saved[name]]
    if now["initial_weights"] not in (saved["initial_weights"], saved["weights"]):
        changes.append(
            "model has other weights than at the start of the run or in the checkpoint (load the initial weights, "
            f"or use SentenceTransformer({str(checkpoint)!r}))"
        )
    if trainer.args.load_best_model_at_end:  # scores of different evaluators can't be compared
        old, new = saved.get("best_by", {}), now["best_by"]
        known = [name for name in old if None not in (old[name], new[name])]
        changes += [f"{name} is {new[name]}, and was {old[name]}" for name in known if new[name] != old[name]]
    if changes:
        raise ValueError(
            f"resume_from_checkpoint {checkpoint}: these settings must match the checkpoint: {'; '.join(changes)}. "
            "Restore these settings, or start a new run from the model in that folder without resume_from_checkpoint."
        )


def refused_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The old and new values of the arguments that differ, except arguments that a resumed run may change."""
    changed = {name: (before.get(name), now.get(name)) for name in sorted(before.keys() | now.keys())}
    return {
        name: (old, new)
        for name, (old, new) in changed.items()
        if old != new and name not in MAY_CHANGE and not (name in MAY_GROW and _limit(old) <= _limit(new))
    }


def _limit(value: float | None) -> float:
    """The number of steps or epochs; None and -1 set no limit."""
    return math.inf if value is None or value < 0 else value


def _describe_scores(trainer: Any) -> dict[str, Any]:
    """The evaluators and the metric that choose the best checkpoint."""
    evaluators = getattr(trainer.evaluator, "evaluators", [trainer.evaluator])
    configs: list[Any] = [getattr(evaluator, "get_config_dict", dict)() for evaluator in evaluators]
    metric = {name: getattr(trainer.args, name) for name in ("metric_for_best_model", "greater_is_better")}
    return {"evaluator": configs if any(configs) else None, "eval_dataset": trainer.eval_data_read, **metric}
