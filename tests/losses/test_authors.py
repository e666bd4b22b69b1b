"""The losses against what the authors' own code gave (authors.json, whose fields say how): terms and gradients of the
same weights, batches, dropout and masks, in float64."""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from transformers import BertConfig, BertModel, BertTokenizer

from st_contrastive import AuxiliaryMLMPretrainingLoss, InfoCSELoss, MomentumContrastLoss, SimCSELoss
from st_contrastive.encoder.rows import CorruptedTokens

GOLD = json.loads(Path(__file__).with_name("authors.json").read_text(encoding="utf-8"))
EXPECTED = {**GOLD["equal"], **GOLD["targets"]}
SPECIAL = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
#: How names of our parameters begin, and how the same begin in the authors' code. The longest that fits is taken.
NAMES = {"model.0.model.": "bert.", "head.linear.": "mlp.dense.", "head.outer.": "mlp.net.3."}
NAMES |= {
    "head.inner.": "mlp.net.0.",
    "head.inner_norm.": "mlp.net.1.",
    "mlm_head.network.cls.predictions.": "lm_head.",
}
NAMES |= {"momentum_encoder.copies.0.model.": "momentum_model."}
for part in ("auxiliary", "network"):  # of the joint stage and of stage 1
    NAMES |= {f"{part}.network.": "mlm.bert.", f"{part}.head.network.cls.predictions.": "lm_head."}
    NAMES |= {f"{part}.network.encoder.layer.{i}.": f"c_head.{i - 1}." for i in (1, 2)}
NETWORKS = {"split_layer": 1, "extra_layers": 2}

pytestmark = pytest.mark.filterwarnings("ignore:.*takes the encoder's dropout as its only")


def authors_name(name):
    start = max((start for start in NAMES if name.startswith(start)), key=len)
    return NAMES[start] + name.removeprefix(start).replace("decoder.bias", "bias")


def numbers(name, shape):
    """The formula: numbers from -0.5 to 0.5 that follow from a name."""
    n = torch.arange(1, math.prod(shape) + 1)
    k = zlib.crc32(name.encode()) % 9973 + 17
    return ((k * n * n % 10007).double() / 10007 - 0.5).view(shape)


class FixedDropout(nn.Module):
    """Dropout of the embeddings, whose masks for each view and sentence are the formula's. Rows come view by view."""

    def forward(self, states):
        keep = (numbers("dropout", (2, 4, 16, 32)) > -0.45).double() / 0.95
        return states * keep[: len(states) // 4, :, : states.shape[1]].flatten(0, 1) if self.training else states


class FixedMasks(nn.Module):
    """In place of a loss's masking: the batch's masks for the first ``copies`` copies."""

    def __init__(self, batch, copies):
        super().__init__()
        ids = features(batch["ids"])["input_ids"].repeat(copies, 1, 1)
        chosen = torch.zeros_like(ids, dtype=torch.bool)
        for place in (mask for mask in batch["masks"] if mask[0] < copies):
            ids[tuple(place[:3])], chosen[tuple(place[:3])] = place[3], True
        self.tokens = CorruptedTokens(ids.flatten(0, 1), chosen.flatten(0, 1))

    def forward(self, input_ids, attention_mask):
        return self.tokens


def features(rows):
    ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "token_type_ids": torch.zeros_like(ids)}


@pytest.fixture
def as_the_authors(tmp_path):
    """A loss with the formula's weights and dropout, and with all rows in one pass, in their order."""

    def make(kind, **options):
        BertModel(BertConfig(**GOLD["model"])).save_pretrained(tmp_path)
        BertTokenizer(vocab={SPECIAL.get(i, f"token{i}"): i for i in range(120)}).save_pretrained(tmp_path)
        modules = [Transformer(str(tmp_path)), Pooling(32, "cls")]
        loss = kind(SentenceTransformer(modules=modules, device="cpu").double().train(), **options).double()
        loss.group_by_length = False
        with torch.no_grad():
            for name, parameter in loss.named_parameters():
                theirs = authors_name(name)
                norm = theirs.endswith("LayerNorm.weight") or theirs == "mlp.net.1.weight"
                parameter.copy_(0.8 * numbers(theirs, tuple(parameter.shape)) + float(norm))
        loss.model[0].model.embeddings.dropout = FixedDropout()
        return loss

    return make


def assert_gradients(loss, expected):
    """For each group of parameters the gradient's norm, and its product with a direction that is the formula's."""
    found = {}
    for name, p in ((authors_name(name), p) for name, p in loss.named_parameters() if p.grad is not None):
        for group in (group for group in GOLD["groups"] if name.startswith(group)):
            along = (p.grad * numbers(f"{name}.direction", tuple(p.shape))).sum().item()
            norm, product = found.get(group, (0.0, 0.0))
            found[group] = (math.hypot(norm, p.grad.norm().item()), product + along)
    assert set(found) == set(expected)
    for group, (norm, along) in expected.items():
        assert found[group] == (pytest.approx(norm, rel=1e-9), pytest.approx(along, abs=1e-9 * norm)), group


CASES = {
    "SimCSE": (SimCSELoss, {}, 0, {"contrastive": 1.0}),
    "SimCSE, two columns": (SimCSELoss, {}, 0, {"contrastive": 1.0}),
    "SimCSE with MLM": (SimCSELoss, {"mlm_weight": 0.1}, 2, {"contrastive": 1.0, "mlm": 0.1}),
    "InfoCSE, lambda 1e-05": (InfoCSELoss, {"mlm_weight": 1e-5}, 2, {"contrastive": 1.0, "mlm": 1e-5}),
    "InfoCSE, lambda 0.1": (InfoCSELoss, {"mlm_weight": 0.1}, 2, {"contrastive": 1.0, "mlm": 0.1}),
    "InfoCSE stage 1": (AuxiliaryMLMPretrainingLoss, NETWORKS, 1, {"mlm": 1.0, "auxiliary_mlm": 1.0}),
}


@pytest.mark.parametrize("name", CASES)
def test_terms_and_gradients(as_the_authors, name):
    kind, options, copies, weights = CASES[name]
    options = {"head": "projector", **NETWORKS, **options} if kind is InfoCSELoss else options
    loss = as_the_authors(kind, **options)
    for batch, expected in zip(GOLD["batches"], EXPECTED[name]["batches"], strict=True):
        loss.masking = FixedMasks(batch, copies)
        loss.zero_grad()
        columns = ("ids", "second_ids") if name == "SimCSE, two columns" else ("ids",)
        terms = loss([features(batch[column]) for column in columns])
        terms.backward()
        assert set(terms) == set(weights) == set(expected["terms"])
        for term, value in expected["terms"].items():
            assert terms[term].item() == pytest.approx(weights[term] * value, rel=1e-9)
        assert terms.item() == pytest.approx(expected["total"], rel=1e-9)
        assert_gradients(loss, expected["gradients"])


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.startswith("ESimCSE")])
def test_esimcse(as_the_authors, name):
    """Two steps: the keys pass through the live head; the momentum encoder starts at random, or as the encoder."""
    loss = as_the_authors(MomentumContrastLoss)
    if "starts as the encoder" in name:
        loss.momentum_encoder.copies[0].load_state_dict(loss.model[0].state_dict())
    sgd = torch.optim.SGD([p for p in loss.parameters() if p.requires_grad], lr=0.01)
    for batch, expected in zip(GOLD["batches"], EXPECTED[name]["batches"], strict=True):
        loss.zero_grad()
        terms = loss([features(batch["ids"]), features(batch["second_ids"])])
        terms.backward()
        keys = loss.queue.keys.flip(0)
        along = (keys * numbers("queue.direction", tuple(keys.shape))).sum().item()
        assert terms.item() == pytest.approx(expected["total"], rel=1e-9)
        assert keys.norm().item() == pytest.approx(expected["queue_norm"], rel=1e-9)
        assert along == pytest.approx(expected["queue_along"], abs=1e-9 * expected["queue_norm"])
        assert_gradients(loss, expected["gradients"])
        sgd.step()
