"""The losses against what the authors' own code gave (authors.json) for a tiny BERT, whose weights are a formula."""

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
from torch.nn.utils.rnn import pad_sequence
from transformers import BertConfig, BertForMaskedLM, BertModel, BertTokenizer

from st_contrastive import AuxiliaryMLMPretrainingLoss, DiffCSELoss, InfoCSELoss, MomentumContrastLoss, SimCSELoss
from st_contrastive.encoder.token_batch import CorruptedTokens

AUTHORS = json.loads(Path(__file__).with_name("authors.json").read_text(encoding="utf-8"))
SPECIAL = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]"}
HEAD, DECODER = "network.cls.predictions.", "detector.generator_head.network.cls.predictions.decoder.weight"
#: How our parameters' names begin, and how the same begin in the authors' code. The longest that fits is taken.
NAMES = {
    "model.0.model.": "bert.", "head.linear.": "mlp.dense.", "head.inner.": "mlp.net.0.",
    "head.inner_norm.": "mlp.net.1.", "head.outer.": "mlp.net.3.", f"mlm_head.{HEAD}": "lm_head.",
    "momentum_encoder.copies.0.model.": "momentum_model.", "detector.discriminator.encoder.": "discriminator.",
    "detector.classifier.": "electra_head.", "detector.generator.": "generator.bert.",
    f"detector.generator_head.{HEAD}": "generator.cls.predictions.",
    DECODER: "generator.bert.embeddings.word_embeddings.weight",
}  # fmt: skip
for part in ("auxiliary.", "network."):  # of the joint stage and of stage 1
    NAMES |= {f"{part}encoder.": "mlm.bert.", f"{part}head.{HEAD}": "lm_head."}
    NAMES |= {f"{part}encoder.encoder.layer.{layer}.": f"c_head.{layer - 1}." for layer in (1, 2)}
STAGES = {"split_layer": 1, "extra_layers": 2}
CASES = {  # the loss, its options, the weights of its terms, and how many copies are masked
    "SimCSE": (SimCSELoss, {}, {}, 0),
    "SimCSE, two columns": (SimCSELoss, {}, {}, 0),
    "SimCSE with MLM": (SimCSELoss, {"mlm_weight": 0.1}, {"mlm": 0.1}, 2),
    "InfoCSE, lambda 1e-05": (InfoCSELoss, {"head": "projector", "mlm_weight": 1e-5, **STAGES}, {"mlm": 1e-5}, 2),
    "InfoCSE, lambda 0.1": (InfoCSELoss, {"head": "projector", "mlm_weight": 0.1, **STAGES}, {"mlm": 0.1}, 2),
    "InfoCSE stage 1": (AuxiliaryMLMPretrainingLoss, STAGES, {}, 1),
    "ESimCSE, momentum encoder of its own numbers": (MomentumContrastLoss, {}, {}, 0),  # as theirs starts
    "ESimCSE, momentum encoder starts as the encoder": (MomentumContrastLoss, {}, {}, 0),
    "DiffCSE, lambda 0.005": (DiffCSELoss, {"rtd_weight": 0.005}, {"rtd": 0.005}, 2),
    "DiffCSE, lambda 0.5": (DiffCSELoss, {"rtd_weight": 0.5}, {"rtd": 0.5}, 2),
}


def authors_name(name):
    start = max((start for start in NAMES if name.startswith(start)), key=len)
    return NAMES[start] + name.removeprefix(start).replace("decoder.bias", "bias")


def numbers(name, shape):
    """The formula: numbers from -0.5 to 0.5 that follow from a name, in whole numbers but for the last division."""
    n = torch.arange(1, math.prod(shape) + 1)
    return (((zlib.crc32(name.encode()) % 9973 + 17) * n * n % 10007).double() / 10007 - 0.5).view(shape)


def weight(name, shape):
    values = numbers(name, shape) * (0.2 if name.startswith("generator.bert.encoder.") else 0.8)
    values = values + float(name.endswith("LayerNorm.weight") or name == "mlp.net.1.weight")
    copies = name == "generator.cls.predictions.transform.dense.weight"  # so that many tokens stay
    return values + 2 * torch.eye(*shape).double() if copies else values


def dropped(states):
    """Dropout behind the embeddings, whose masks for each view and sentence are the formula's."""
    keep = (numbers("dropout", (2, 4, 16, 32)) > -0.45).double() / 0.95
    return states * keep[: len(states) // 4, :, : states.shape[1]].flatten(0, 1)


def column(rows):
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "token_type_ids": torch.zeros_like(ids)}


def masked(batch, copies):
    ids = column(batch["ids"])["input_ids"].repeat(copies, 1, 1)
    chosen = torch.zeros_like(ids, dtype=torch.bool)
    for *place, token in (drawn for drawn in batch["masks"] if drawn[0] < copies):
        ids[tuple(place)], chosen[tuple(place)] = token, True
    return CorruptedTokens(ids.flatten(0, 1), chosen.flatten(0, 1))


def made(name, folder):
    """The loss with the formula's weights and dropout, and with all rows in one pass."""
    kind, options, _, _ = CASES[name]
    BertModel(BertConfig(**AUTHORS["model"])).save_pretrained(folder)
    BertTokenizer(vocab={SPECIAL.get(i, f"token{i}"): i for i in range(120)}).save_pretrained(folder)
    model = SentenceTransformer(modules=[Transformer(str(folder)), Pooling(32, "cls")], device="cpu").double().train()
    if kind is DiffCSELoss:
        generator = BertForMaskedLM(BertConfig(**{**AUTHORS["model"], "num_hidden_layers": 2})).double()
        options = {**options, "generator": generator}
    loss = kind(model, **options).double()
    loss.group_by_length = False
    with torch.no_grad():
        for key, parameter in loss.named_parameters():
            parameter.copy_(weight(authors_name(key), tuple(parameter.shape)))
    model[0].model.embeddings.dropout.forward = dropped
    if name.endswith("starts as the encoder"):
        loss.momentum_encoder.copies[0].load_state_dict(model[0].state_dict())
    return loss


@pytest.mark.parametrize("name", CASES)
def test_terms_gradients_and_queue(tmp_path, monkeypatch, name):
    loss, (kind, _, weights, copies) = made(name, tmp_path), CASES[name]
    optimizer = torch.optim.SGD([p for p in loss.parameters() if p.requires_grad], lr=0.01)
    for batch, expected in zip(AUTHORS["batches"], AUTHORS["methods"][name]["batches"], strict=True):
        if kind is DiffCSELoss:
            as_diffcse(loss.detector, expected["generated"], monkeypatch)
        if copies:
            masking, tokens = (loss.detector if kind is DiffCSELoss else loss).masking, masked(batch, copies)
            monkeypatch.setattr(masking, "forward", lambda *_, tokens=tokens: tokens)
        loss.zero_grad()
        two = kind is MomentumContrastLoss or "two columns" in name
        terms = loss([column(batch[key]) for key in ("ids", "second_ids")[: 1 + two]])
        terms.backward()
        wanted = {key: weights.get(key, 1.0) * value for key, value in expected["terms"].items()}
        assert {key: term.item() for key, term in terms.items()} == pytest.approx(wanted, rel=1e-9)
        assert terms.item() == pytest.approx(expected["total"], rel=1e-9)
        gradients = {authors_name(key): p.grad for key, p in loss.named_parameters() if p.grad is not None}
        for group in AUTHORS["groups"]:
            parts = {key: gradient for key, gradient in gradients.items() if key.startswith(group)}
            assert bool(parts) == (group in expected["gradients"]), group
            if parts:
                norm, along = expected["gradients"][group]
                found = sum((g * numbers(f"{key}.direction", tuple(g.shape))).sum().item() for key, g in parts.items())
                assert math.hypot(*(g.norm().item() for g in parts.values())) == pytest.approx(norm, rel=1e-9), group
                assert found == pytest.approx(along, abs=1e-9 * norm), group
        if kind is MomentumContrastLoss:  # whose second batch meets the queue, after a step
            optimizer.step()
            keys, norm = loss.queue.keys.flip(0), expected["queue_norm"]
            assert keys.norm().item() == pytest.approx(norm, rel=1e-9)
            along = (keys * numbers("queue.direction", tuple(keys.shape))).sum().item()
            assert along == pytest.approx(expected["queue_along"], abs=1e-9 * norm)


def as_diffcse(detector, generated, monkeypatch):
    """DiffCSE's authors fill in every place, with special tokens too, and count padding as not replaced."""

    def replace(texts, tokens):
        ids = tokens.input_ids
        filled = detector._fill({**texts, "input_ids": ids}, torch.arange(ids.numel())).argmax(1).view_as(ids)
        filled[:, 0] = 101
        assert (filled * texts["attention_mask"]).tolist() == [row for view in generated for row in view]
        return filled * texts["attention_mask"]

    def mean_over_all(rows, masked, vectors):
        scores, replaced = detector(rows.token_tensors, vectors, masked)
        mean = torch.nn.functional.cross_entropy(scores.flatten(0, 1), replaced.flatten().long())
        return mean * rows.mask.sum(), rows.mask.sum()

    monkeypatch.setattr(detector, "replace", replace)
    monkeypatch.setattr(detector, "summed_losses", mean_over_all)
