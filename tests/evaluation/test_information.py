"""Eq. 10 of the Twins paper, row by row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from st_contrastive import FraternalEmbedding, TwinsLoss
from st_contrastive.evaluation import STSPairs, evaluate_information
from st_contrastive.evaluation.analyses import dropout_views
from tests.cases import Standardised
from tests.evaluation.encoders import Letters

GERMAN = ["die katze", "zwei hunde", "regen", "ein mann", "brot", "der zug", "morgen", "ein kind", "wir", "der see"]


def by_hand(first, second, temperature):
    first, second = (np.asarray(part, dtype=np.float64) for part in (first, second))
    first, second = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (first, second))
    total = 0.0
    for i, h in enumerate(first):
        wanted = math.exp(h @ second[i] / temperature)
        total += math.log(wanted / sum(math.exp(h @ other / temperature) for other in second))
    return math.log(len(first)) + total / len(first)


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_task_information_by_hand(temperature):
    pairs = STSPairs(("a", "ab", "b", "a"), ("aab", "ab", "c", "b"), (5.0, 5.0, 4.5, 0.0))
    # Of a with aab and of ab with itself: cosines 2/sqrt(5), 1/sqrt(2) | 3/sqrt(10), 1.
    rows = [(2 / math.sqrt(5), [2 / math.sqrt(5), 1 / math.sqrt(2)]), (1.0, [3 / math.sqrt(10), 1.0])]
    logs = [wanted / temperature - math.log(sum(math.exp(x / temperature) for x in row)) for wanted, row in rows]
    report = evaluate_information(Letters(), pairs, temperature=temperature)
    (score,) = report.scores  # this encoder has no dropout
    assert (*score.key, score.size) == ("stsb", "dev", "task-information", 2)
    assert score.value == pytest.approx(math.log(2) + sum(logs) / 2, abs=1e-6)
    letters = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0]]), np.array([[2, 1, 0], [1, 1, 0], [0, 0, 1]])
    three = STSPairs(pairs.first, pairs.second, (5.0, 5.0, 5.0, 0.0))
    lower = evaluate_information(Letters(), three, temperature=temperature)
    assert lower.value("stsb", "dev") == pytest.approx(by_hand(*letters, temperature), abs=1e-6)


def test_twins_of_a_model_by_hand(build, sentences):
    model = build(pooling="mean")
    loss = TwinsLoss(model, fusion_rate=0.3)
    pairs = STSPairs(tuple(sentences[:6]), tuple(sentences[4:]), (5.0,) * 5 + (1.0,))
    model.eval()
    state, modes = torch.random.get_rng_state(), {name: part.training for name, part in model.named_modules()}
    report = evaluate_information(model, pairs, loss=loss, translated=(sentences, GERMAN), batch_size=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert {name: part.training for name, part in model.named_modules()} == modes
    assert [score.metric for score in report.scores] == [
        "task-information", "identical-information", "fraternal-information",
    ]  # fmt: skip
    assert {score.size for score in report.scores} == {5}  # as many twins as pairs: log N is the same
    anchors, identical, fraternal = dropout_views(model, [sentences[:5], GERMAN[:5]], loss=loss, batch_size=3)
    for name, others in (("identical", identical), ("fraternal", fraternal)):
        value = report.value("stsb", "dev", f"{name}-information")
        assert value == pytest.approx(by_hand(anchors, others, 0.05), abs=1e-5)
    vectors = model.eval().encode([*sentences[:5], *sentences[4:9]])
    assert report.value("stsb", "dev", "task-information") == pytest.approx(
        by_hand(vectors[:5], vectors[5:], 0.05), abs=1e-5
    )


@pytest.mark.parametrize("train_pooling", [None, "cls"])
def test_fraternal_views_are_those_of_the_loss(build, train_pooling):
    """Without dropout, h and h+ are the model's vectors, and h- follows from both texts by eq. 3."""
    model = build(pooling="mean", dropout=False)
    with pytest.warns(UserWarning, match="dropout"):
        loss = TwinsLoss(model, fusion_rate=0.25, train_pooling=train_pooling)
    one, other = "the lake is cold", "rain falls in winter"
    anchors, identical, fraternal = dropout_views(model, [[one], [other]], loss=loss)
    assert torch.equal(anchors, identical)
    columns = [model.preprocess([text]) for text in (one, other)]
    assert columns[0]["input_ids"].shape == columns[1]["input_ids"].shape
    with torch.no_grad():
        embed = model[0].model.get_input_embeddings()
        fused = 0.25 * embed(columns[0]["input_ids"]) + 0.75 * embed(columns[1]["input_ids"])
        states = model[0].model(inputs_embeds=fused)[0].mean(dim=1)
    torch.testing.assert_close(fraternal, states, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(anchors.numpy(), model.eval().encode([one]), atol=1e-5, rtol=1e-4)


def test_a_fraternal_embedding_reads_the_translations(build, sentences):
    model = build(pooling="mean")
    weight = model[0].model.get_input_embeddings().weight.detach().clone()
    fraternal = FraternalEmbedding(model.tokenizer, weight, model, align="none")
    columns = [sentences, sentences[::-1]]
    views = dropout_views(model, columns, loss=TwinsLoss(model))
    theirs = dropout_views(model, columns, loss=TwinsLoss(model, fraternal=fraternal))
    for one, two in zip(views, theirs, strict=True):  # the same tokenizer and embeddings, by the other way
        torch.testing.assert_close(one, two)


def test_views_differ_only_by_dropout_and_change_no_running_average(build, sentences):
    first, second = dropout_views(build(), [sentences], batch_size=3)
    assert first.shape == second.shape == (len(sentences), 32)
    cosines = torch.nn.functional.cosine_similarity(first, second)
    assert ((cosines < 1 - 1e-6) & (cosines > 0.3)).all()
    model = build(dropout=False)
    model.append(Standardised())
    before = {name: value.clone() for name, value in model.named_buffers()}
    assert any("running_mean" in name for name in before)
    first, second = dropout_views(model.train(), [sentences])
    assert torch.equal(first, second)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    pairs = STSPairs(tuple(sentences), tuple(sentences[::-1]), (5.0,) * 10)
    assert [score.metric for score in evaluate_information(model, pairs).scores] == ["task-information"]


def test_missing_translations_and_collapsed_vectors(build, sentences):
    pairs = STSPairs(tuple(sentences), tuple(sentences[::-1]), (5.0,) * 10)
    model = build()
    loss = TwinsLoss(model)
    with pytest.raises(ValueError, match=r"translated .* 10"):
        evaluate_information(model, pairs, loss=loss, translated=(sentences[:4], GERMAN[:4]))
    for arguments in ({"loss": loss}, {"translated": (sentences, GERMAN)}):
        with pytest.raises(ValueError, match="loss"):
            evaluate_information(model, pairs, **arguments)
    for temperature in (0, float("inf")):
        with pytest.raises(ValueError, match="temperature"):
            evaluate_information(model, pairs, temperature=temperature)
