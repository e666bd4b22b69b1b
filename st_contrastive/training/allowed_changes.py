"""Arguments that a resumed run may change; a change of any other would make it another run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

#: May grow: training goes on for longer.
MAY_GROW = frozenset(("max_steps", "num_train_epochs"))
#: Say where results go, what is logged, saved and scored, and on which device; none changes what a step computes.
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
