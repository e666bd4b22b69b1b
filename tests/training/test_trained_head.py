"""A checkpoint's model under the head that its loss trained."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from st_contrastive import (
    CombinedLoss,
    ConIsILoss,
    DiffCSELoss,
    InfoCSELoss,
    MomentumContrastLoss,
    SimCSELoss,
    TwinsLoss,
)
from st_contrastive.cli import main
from st_contrastive.evaluation import read_sts, sts_spearman
from st_contrastive.training import LossStateError, save_loss_state, with_trained_head
from tests.evaluation.encoders import write
from tests.filters import TRAINING

pytestmark = [*TRAINING]


def numbers(state, name):
    return state[name].numpy().astype(np.float64)


def normed(x, state, name):
    """BatchNorm by its running statistics."""
    scale = 1 / np.sqrt(numbers(state, f"{name}.running_var") + 1e-5)
    x = (x - numbers(state, f"{name}.running_mean")) * scale
    affine = f"{name}.weight" in state
    return x * numbers(state, f"{name}.weight") + numbers(state, f"{name}.bias") if affine else x


def by_hand(state, x):
    """The three heads, as their papers write them."""
    if "inner.weight" in state:
        hidden = np.maximum(normed(x @ numbers(state, "inner.weight").T, state, "inner_norm"), 0)
        return normed(hidden @ numbers(state, "outer.weight").T, state, "outer_norm")
    x = x @ numbers(state, "linear.weight").T + numbers(state, "linear.bias")
    if "norm.weight" not in state:
        return np.tanh(x)
    x = normed(x, state, "norm")
    return np.where(x > 0, x, np.expm1(x))


def head_of(loss):
    """The head's module, wherever the loss has it."""
    return next(part for name, part in loss.named_children() if name in ("head", "projector"))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SimCSELoss, {}),
        (MomentumContrastLoss, {}),
        (ConIsILoss, {"interaction_dim": 1}),
        (InfoCSELoss, {}),
        (DiffCSELoss, {}),
        (CombinedLoss, {}),
        (CombinedLoss, {"positives": "dropout", "interaction_weight": 0}),
    ],
)
def test_the_head_on_top_of_the_embeddings(build, sentences, tmp_path, kind, options):
    model = build("bert-mlm" if kind is DiffCSELoss else "bert")
    loss = kind(model, **options)
    optimizer = torch.optim.SGD([p for p in loss.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):  # weights, and BatchNorm's running statistics, are no longer those of the start
        loss([model.preprocess(sentences)]).total.backward()
        optimizer.step()
    save_loss_state(loss, tmp_path)
    model.eval()
    plain = model.encode(sentences)
    headed = with_trained_head(model, tmp_path)
    expected = by_hand(head_of(loss).state_dict(), plain.astype(np.float64))
    np.testing.assert_allclose(headed.encode(sentences), expected, atol=1e-5, rtol=1e-4)
    assert not np.allclose(expected, plain, atol=1e-2)
    np.testing.assert_array_equal(model.encode(sentences), plain)  # the model itself stays as it is
    assert headed.get_embedding_dimension() == model.get_embedding_dimension()


@pytest.mark.filterwarnings("ignore:TwinsLoss was given one column")
def test_what_has_no_head_is_refused(build, tmp_path):
    model = build()
    with pytest.raises(FileNotFoundError, match=r"no loss_state\.safetensors, which has the head: name a checkpoint"):
        with_trained_head(model, tmp_path)
    for name, loss in (("twins", TwinsLoss(model)), ("without", SimCSELoss(model, head=False))):
        save_loss_state(loss, tmp_path / name)
        with pytest.raises(LossStateError, match=f"holds no head: {type(loss).__name__} contrasts the embeddings"):
            with_trained_head(model, tmp_path / name)
    save_loss_state({"a": SimCSELoss(model), "b": SimCSELoss(model)}, tmp_path / "two")
    with pytest.raises(LossStateError, match="holds the losses named 'a', 'b'"):
        with_trained_head(model, tmp_path / "two")
    loss = SimCSELoss(model)
    loss.head = torch.nn.Module()
    loss.head.linear = torch.nn.Linear(48, 48)
    save_loss_state(loss, tmp_path / "other")
    with pytest.raises(LossStateError, match="a head on 48 dimensions, and the model has 32"):
        with_trained_head(model, tmp_path / "other")


@pytest.mark.parametrize("method", ["simcse", "infocse"])
def test_a_checkpoint_is_scored_with_its_head_and_without(checkpoint, sentences, tmp_path, capsys, method):
    rows = [
        {"sentence1": a, "sentence2": b, "score": (3 * place + len(b)) % 6}
        for place, a in enumerate(sentences)
        for b in sentences[place + 1 :]
    ]
    sts = write(tmp_path / "sts" / "tiny" / "test.jsonl", rows).parents[1]
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(sentences), encoding="utf-8")
    words = [
        "train",
        "--method",
        method,
        "--model",
        str(checkpoint("bert")),
        "--data",
        str(corpus),
        "--learning-rate",
        "1e-2",
    ]
    words += ["--output", str(tmp_path / "out"), "--checkpoints", str(tmp_path / "run"), "--batch-size", "4"]
    assert main([*words, "--max-steps", "4"]) == 0
    made = str(tmp_path / "run" / "checkpoint-4")
    found = {}
    for name, more in (("cls_before_pooler", []), ("cls", ["--head"])):
        report = tmp_path / f"{name}.json"
        words = ["evaluate", made, "--eval-data", str(sts), "--splits", "test", "--json", str(report), *more]
        capsys.readouterr()
        assert main(words) == 0
        note = f"{made} is scored under the head that its loss trained."
        assert (note in capsys.readouterr().out) == bool(more)
        written = json.loads(report.read_text())
        assert written["notes"] == ([note] if more else written["notes"])
        found[name] = written["scores"][0]["value"]
    pairs = read_sts(sts / "tiny" / "test.jsonl")
    model = SentenceTransformer(made, device="cpu")
    assert found["cls_before_pooler"] == pytest.approx(sts_spearman(model, pairs))
    assert found["cls"] == pytest.approx(sts_spearman(with_trained_head(model, made), pairs))
    assert found["cls"] != found["cls_before_pooler"]


def test_the_command_names_what_is_missing(build, checkpoint, sts, tmp_path, capsys):
    build().save_pretrained(str(tmp_path / "model"))
    words = ["evaluate", str(tmp_path / "model"), "--eval-data", str(sts), "--head"]
    assert main(words) == 2
    assert "--head: " in (error := capsys.readouterr().err)
    assert "name a checkpoint of a training run" in error
    assert main([*words, "--pooling", "mean"]) == 2
    assert "leave --pooling mean out" in capsys.readouterr().err


def test_a_half_precision_model_has_its_head_in_full_precision(build, sentences, tmp_path):
    model = build()
    save_loss_state(SimCSELoss(model), tmp_path)
    expected = with_trained_head(model, tmp_path).encode(sentences)
    found = with_trained_head(model.bfloat16(), tmp_path).encode(sentences)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=0.05)


def test_it_is_in_evaluation_mode(build, tmp_path):
    model = build()
    save_loss_state(InfoCSELoss(model, head="projector"), tmp_path)
    assert not any(module.training for module in with_trained_head(model.train(), tmp_path).modules())
