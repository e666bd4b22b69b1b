"""Sentences, cases of each loss, and helpers for several test files."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator

from st_contrastive import (
    AuxiliaryMLMPretrainingLoss,
    ConIsILoss,
    DiffCSELoss,
    InfoCSELoss,
    MomentumContrastLoss,
    SimCSELoss,
    TwinsLoss,
)
from st_contrastive.encoder.token_batch import CorruptedTokens
from st_contrastive.methods import METHODS, Method

SENTENCES = [
    "the small cat sleeps on a warm chair",
    "two dogs run along the river",
    "rain falls",
    "a man reads the old book in his garden while the sun goes down",
    "she buys bread and milk",
    "the train is late again",
    "birds sing in the morning",
    "a child paints a blue house with a red door",
    "we walk to the station",
    "the lake is cold in winter",
]
WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})
SMALL = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
#: Class, options, number of text columns and terms of each case. ``make test-long`` runs all cases, other targets only
#: the first case of each class.
CASES = {
    "simcse": (SimCSELoss, {}, 1, ["contrastive"]),
    "simcse-mlm-pairs": (SimCSELoss, {"mlm_weight": 0.1, "head": "projector"}, 2, ["contrastive", "mlm"]),
    "conisi": (ConIsILoss, {}, 1, ["contrastive", "interactive"]),
    "conisi-given": (ConIsILoss, {"strategy": "given", "interaction_dim": 1}, 2, ["contrastive", "interactive"]),
    "twins": (TwinsLoss, {}, 2, ["identical", "fraternal", "twins"]),
    "twins-embeddings": (
        TwinsLoss, {"train_pooling": "cls", "margin_from": "embeddings", "unpaired_tokens": "weighted"}, 2,
        ["identical", "fraternal", "twins"],
    ),
    "twins-momentum": (TwinsLoss, {"key_momentum": 0.9}, 1, ["identical"]),
    "momentum": (MomentumContrastLoss, {"queue_size": 7}, 1, ["contrastive"]),
    "momentum-moco": (MomentumContrastLoss, {"positives": "momentum", "head": None}, 2, ["contrastive"]),
    "infocse": (InfoCSELoss, {"mlm_weight": 0.1, "head": "projector", "rtd_weight": 0.1}, 1,
                ["contrastive", "mlm", "rtd"]),
    "infocse-live": (InfoCSELoss, {"mlm_weight": 0.1, "detach": False, "masked_views": "first"}, 1,
                     ["contrastive", "mlm"]),
    "diffcse": (DiffCSELoss, {"rtd_weight": 0.1}, 1, ["contrastive", "rtd"]),
    "diffcse-no-head": (DiffCSELoss, {"rtd_weight": 0.1, "head": None}, 1, ["contrastive", "rtd"]),
    "pretraining": (AuxiliaryMLMPretrainingLoss, {}, 1, ["mlm", "auxiliary_mlm"]),
}  # fmt: skip
CLASSES = list(dict.fromkeys(case[0] for case in CASES.values()))
ONE_OF_EACH = tuple(next(name for name, case in CASES.items() if case[0] is kind) for kind in CLASSES)
LOSSES = [method.loss_class for method in METHODS.values()]


def build_loss(name, model, **options):
    loss_class, case_options, _, _ = CASES[name]
    return loss_class(model, **{**case_options, **options})


def columns(model, sentences, name, **options):
    return [model.preprocess(list(part), **options) for part in (sentences, sentences[::-1])[: CASES[name][2]]]


def every_method(**options: dict[str, Any]) -> dict[str, tuple[dict[str, Any], int]]:
    """Loss options and the number of text columns of each method. A translation is a second column."""
    assert options.keys() <= METHODS.keys()
    return {
        name: (options.get(name, {}), 2 if "translation" in method.columns else 1) for name, method in METHODS.items()
    }


#: Loss options and numbers of text columns in the tests of training.
TRAINED_CASES = every_method(twins={"queue_batches": 2}, infocse={"mlm_weight": 0.1})


def method_of(case: str) -> Method:
    """The method with which a case's name begins: "twins" for "twins-german"."""
    return METHODS[case.partition("-")[0]]


def crossed(*columns: Iterable[Any], quick: Callable[..., bool]) -> list[Any]:
    """All combinations as parameters of a test. Those that are not ``quick`` get the mark ``long``."""
    return [
        pytest.param(*values, marks=() if quick(*values) else pytest.mark.long)
        for values in itertools.product(*columns)
    ]


def switch_off_dropout(module: torch.nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0


def half_of(model, batch):
    """A fixed corruption of every second ordinary token."""
    ids, mask = batch["input_ids"], batch["attention_mask"].bool()
    special = torch.isin(ids, torch.tensor(model.tokenizer.all_special_ids))
    chosen = mask & ~special & (torch.arange(ids.shape[1]) % 2 == 1)
    return CorruptedTokens(torch.where(chosen, model.tokenizer.mask_token_id, ids), chosen)


def info_nce_in_a_loop(anchors, positives, negatives=(), temperature=0.05):
    """InfoNCE row by row: the mean of the cross-entropies."""
    total = 0.0
    for row, anchor in enumerate(anchors):
        logits = [torch.cosine_similarity(anchor, key, dim=0) / temperature for key in (*positives, *negatives)]
        total = total + torch.logsumexp(torch.stack(logits), dim=0) - logits[row]
    return total / len(anchors)


class Standardised(torch.nn.Module):
    """A user's module with BatchNorm, whose output for a row depends on the other rows."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(32)

    def forward(self, features):
        return {**features, "sentence_embedding": self.norm(features["sentence_embedding"])}


def with_encoder(model, encoder):
    model[0].model = encoder
    return model.train()


@contextmanager
def without_the_package() -> Iterator[None]:
    """Context in which importing st_contrastive fails as if it were not installed."""
    modules = [name for name in sys.modules if name.partition(".")[0] == "st_contrastive"]
    with mock.patch.dict(sys.modules, dict.fromkeys(modules)):
        yield


class ByStep(SentenceEvaluator):
    """An evaluator whose score is a function of the step's number."""

    def __init__(self, score):
        super().__init__()
        self.score, self.primary_metric = score, "score"

    def __call__(self, model, output_path=None, epoch=-1, steps=-1):
        return {"score": float(self.score(steps))}


def arguments_of(folder, **changes):
    """Arguments of a run with six steps and a checkpoint at every second step."""
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


def state_of(loss) -> dict[str, torch.Tensor]:
    """A copy of the loss's whole state, including the encoder's."""
    return {name: value.clone() for name, value in loss.state_dict().items()}


def assert_equal(first, second):
    assert len(first) > 10
    assert set(first) == set(second)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
