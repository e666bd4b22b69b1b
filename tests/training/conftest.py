from __future__ import annotations

import pytest
import torch
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator

from st_contrastive.training import ContrastiveTrainer
from tests.methods import every_method, method_of

#: Options of the loss, and text columns.
CASES = every_method(twins={"queue_batches": 2}, infocse={"mlm_weight": 0.1})


class ByStep(SentenceEvaluator):
    """Scores a step with a function of its number."""

    def __init__(self, score):
        super().__init__()
        self.score, self.primary_metric = score, "score"

    def __call__(self, model, output_path=None, epoch=-1, steps=-1):
        return {"score": float(self.score(steps))}


def arguments_of(folder, **changes):
    """Of a run of six steps with a checkpoint every second one."""
    options = {
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
    return SentenceTransformerTrainingArguments(str(folder), **options)


@pytest.fixture
def arguments(tmp_path):
    """``arguments(**changes)``: those of a run in ``tmp_path / "run"``."""
    return lambda **changes: arguments_of(changes.pop("output_dir", tmp_path / "run"), **changes)


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
def trainer(made, arguments):
    """``trainer(method, **arguments)``, each with a new loss that begins alike; ``evaluator`` goes to the Trainer."""

    def build(method="conisi", evaluator=None, callbacks=None, **changes):
        loss, data = made(method)
        return ContrastiveTrainer(
            loss.model, arguments(**changes), data, loss=loss, evaluator=evaluator, callbacks=callbacks
        )

    return build


def state_of(loss) -> dict[str, torch.Tensor]:
    """All of a loss's state, the encoder's too."""
    return {name: value.clone() for name, value in loss.state_dict().items()}


def assert_equal(first, second):
    assert len(first) > 10
    assert set(first) == set(second)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
