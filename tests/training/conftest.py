from __future__ import annotations

import pytest
import torch
from sentence_transformers import SentenceTransformerTrainingArguments

import st_contrastive as stc

METHODS = {
    "simcse": (stc.SimCSELoss, {}, stc.simcse_dataset, 1),
    "conisi": (stc.ConIsILoss, {}, stc.conisi_dataset, 1),
    "twins": (stc.TwinsLoss, {"queue_batches": 2}, stc.twins_dataset, 2),
    "infocse": (stc.InfoCSELoss, {"mlm_weight": 0.1}, stc.infocse_dataset, 1),
    "diffcse": (stc.DiffCSELoss, {}, stc.simcse_dataset, 1),
    "pretraining": (stc.AuxiliaryMLMPretrainingLoss, {}, stc.infocse_dataset, 1),
}


@pytest.fixture
def arguments(tmp_path):
    """``arguments(**changes)`` of a run of six steps with a checkpoint every second one."""

    def make(**changes):
        options = {
            "output_dir": str(tmp_path / "run"),
            "per_device_train_batch_size": 4,
            "max_steps": 6,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "save_steps": 2,
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            "dataloader_pin_memory": False,
            **changes,
        }
        return SentenceTransformerTrainingArguments(**options)

    return make


@pytest.fixture
def made(build, sentences):
    """``made(method, **options)``: loss, and dataset."""

    def make(method="conisi", family="bert-mlm", **changes):
        loss_class, options, dataset, columns = METHODS[method]
        torch.manual_seed(0)
        loss = loss_class(build(family), **{**options, **changes})
        return loss, dataset(*[sentences, sentences[::-1]][:columns])

    return make


@pytest.fixture
def ended():
    """``ended(loss)``: all its state, the encoder's too, to compare with."""
    return lambda loss: {name: value.clone() for name, value in loss.state_dict().items()}
