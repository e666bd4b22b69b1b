"""Runs of the Trainer: precisions, compilation, accumulation, and exact resumption."""

from __future__ import annotations

import math

import pytest
import torch

from st_contrastive.training import ContrastiveTrainer
from tests.cases import CASES, ONE_OF_EACH, arguments_of, build_loss, method_of
from tests.gpu.cases import CUDA, chosen

# Some warnings only occur on a GPU.
pytestmark = [pytest.mark.filterwarnings("default")] if CUDA else []
SETTINGS = {
    "fp32": {},
    "tf32": {"tf32": True},
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "bf16-accumulating": {"bf16": True, "gradient_accumulation_steps": 2},
    "fp16-accumulating": {"fp16": True, "gradient_accumulation_steps": 2},
    "bf16-compiled": {"bf16": True, "torch_compile": True},
    "bf16-checkpointing": {"bf16": True, "gradient_checkpointing": True},
    "bf16-fused": {"bf16": True, "optim": "adamw_torch_fused"},
}


@pytest.fixture
def training(build, sentences, device, tmp_path):
    """``training(name, folder, resume, **options)``: the trainer after six steps with four sentences, and the state."""

    def run(name, folder, resume=None, **options):
        method = method_of(name)
        columns = [sentences * 4, sentences[::-1] * 4][: CASES[name][2]]
        settings = arguments_of(tmp_path / folder, **{"save_steps": 3, "use_cpu": device.type == "cpu", **options})
        assert settings.device.type == device.type
        settings._n_gpu = min(settings.n_gpu, 1)  # the Trainer would use DataParallel on several GPUs
        torch.manual_seed(0)
        model = build("bert-mlm")
        loss = build_loss(name, model.to(device))
        trainer = ContrastiveTrainer(model, args=settings, train_dataset=method.dataset(*columns), loss=loss)
        trainer.train(resume_from_checkpoint=resume)
        return trainer, {key: value.detach().cpu().clone() for key, value in loss.state_dict().items()}

    return run


@pytest.mark.parametrize("settings", SETTINGS if CUDA else ["bf16-accumulating"])
@pytest.mark.parametrize("name", chosen(ONE_OF_EACH, "simcse"))
def test_the_trainer_trains(training, name, settings):
    trainer, state = training(name, "run", save_strategy="no", **SETTINGS[settings])
    assert trainer.state.global_step == 6
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(logs) == 6
    assert all(math.isfinite(entry["loss"]) for entry in logs)
    assert all(bool(value.isfinite().all()) for value in state.values() if value.is_floating_point())


@pytest.mark.parametrize(
    "precision", ["fp32", "bf16", "fp16"] if CUDA else [pytest.param("fp32", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("name", chosen(ONE_OF_EACH, "twins"))
def test_a_resumed_run_equals_an_uninterrupted_run(training, tmp_path, deterministic_algorithms, name, precision):
    options = SETTINGS[precision]
    _, whole = training(name, "whole", **options)
    _, again = training(name, "again", save_strategy="no", **options)
    _, resumed = training(name, "resumed", resume=str(tmp_path / "whole" / "checkpoint-3"), **options)
    assert len(whole) > 10
    for key, value in whole.items():
        assert torch.equal(again[key], value), f"{key}: two runs differ"
        assert torch.equal(resumed[key], value), f"{key}: the resumed run differs"
