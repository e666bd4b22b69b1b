from __future__ import annotations

import pytest
import torch
from sentence_transformers import SentenceTransformerTrainingArguments

from tests.methods import every_method, method_of

#: Options of the loss, and text columns.
CASES = every_method(twins={"queue_batches": 2}, infocse={"mlm_weight": 0.1})


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
        options, columns = CASES[method]
        torch.manual_seed(0)
        loss = method_of(method).loss_class(build(family), **{**options, **changes})
        return loss, method_of(method).dataset(*[sentences, sentences[::-1]][:columns])

    return make


@pytest.fixture
def ended():
    """``ended(loss)``: all its state, the encoder's too, to compare with."""
    return lambda loss: {name: value.clone() for name, value in loss.state_dict().items()}
