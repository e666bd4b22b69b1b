from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from st_contrastive import FraternalEmbedding, TwinsLoss
from st_contrastive.evaluation import (
    EvaluationDataError,
    STSPairs,
    dropout_views,
    evaluate_information,
    fraternal_views,
)
from tests.evaluation.encoders import Letters

GERMAN = ["die katze", "zwei hunde", "regen", "ein mann", "brot", "der zug", "morgen", "ein kind", "wir", "der see"]


def by_hand(first, second, temperature):
    """Eq. 10 of the Twins paper, row by row."""
    first, second = (np.asarray(part, dtype=np.float64) for part in (first, second))
    first, second = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (first, second))
    total = 0.0
    for i, h in enumerate(first):
        own = math.exp(h @ second[i] / temperature)
        total += math.log(own / sum(math.exp(h @ other / temperature) for other in second))
    return math.log(len(first)) + total / len(first)


def test_the_tasks_information_by_hand():
    pairs = STSPairs(("a", "ab", "b", "a"), ("aab", "ab", "c", "b"), (5.0, 5.0, 4.5, 0.0))
    # Of a with aab and of ab with itself: cosines 2/sqrt(5), 1/sqrt(2) | 3/sqrt(10), 1.
    for temperature in (0.05, 0.5):
        rows = [
            (2 / math.sqrt(5), [2 / math.sqrt(5), 1 / math.sqrt(2)]),
            (1.0, [3 / math.sqrt(10), 1.0]),
        ]
        logs = [own / temperature - math.log(sum(math.exp(x / temperature) for x in row)) for own, row in rows]
        report = evaluate_information(Letters(), pairs, temperature=temperature)
        (score,) = report.scores  # an encoder of vectors alone has no dropout
        assert (score.task, score.split, score.metric, score.size) == ("stsb", "dev", "task-information", 2)
        assert score.value == pytest.approx(math.log(2) + sum(logs) / 2, abs=1e-6)
        assert score.shown == f"{score.value:.3f}"
        assert report.settings == {"suite": "information", "temperature": temperature, "min_score": 5.0}
    letters = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0]]), np.array([[2, 1, 0], [1, 1, 0], [0, 0, 1]])
    lower = evaluate_information(Letters(), pairs, min_score=4.5)
    assert lower.value("stsb", "dev") == pytest.approx(by_hand(*letters, 0.05), abs=1e-6)
    assert lower.scores[0].size == 3
    with pytest.raises(EvaluationDataError, match=r"No pair has a score of 6\.0 or more: .*--min-score"):
        evaluate_information(Letters(), pairs, min_score=6.0)


def test_dropout_views_read_as_encode_does(build, sentences):
    """The default prompt is read, left out of the pooling, and the dimensions are cut."""
    model = build(pooling="mean").eval()
    model[1].include_prompt = False
    model.prompts["sts"], model.default_prompt_name, model.truncate_dim = "the cat ", "sts", 8
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    for view in dropout_views(model, sentences, batch_size=3):
        np.testing.assert_allclose(view.numpy(), model.encode(sentences), atol=1e-6)
    model.default_prompt_name = None
    assert not np.allclose(dropout_views(model, sentences)[0].numpy(), model.encode(sentences, prompt_name="sts"))


@pytest.mark.parametrize("temperature", [0.05, 0.2])
def test_twins_of_a_model_by_hand(build, sentences, temperature):
    model = build(pooling="mean")
    loss = TwinsLoss(model, fusion_rate=0.3)
    pairs = STSPairs(tuple(sentences[:6]), tuple(sentences[4:]), (5.0,) * 5 + (1.0,))
    state = torch.random.get_rng_state()
    report = evaluate_information(
        model, pairs, loss=loss, translated=(sentences, GERMAN), temperature=temperature, batch_size=3
    )
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [score.metric for score in report.scores] == [
        "task-information", "identical-information", "fraternal-information",
    ]  # fmt: skip
    assert {score.size for score in report.scores} == {5}  # as many twins as pairs: log N is the same
    assert not report.notes
    with torch.random.fork_rng():
        torch.manual_seed(0)
        anchors, identical, fraternal = fraternal_views(loss, sentences[:5], GERMAN[:5], batch_size=3)
    for name, others in (("identical", identical), ("fraternal", fraternal)):
        found = report.value("stsb", "dev", f"{name}-information")
        assert found == pytest.approx(by_hand(anchors, others, temperature), abs=1e-5)
    vectors = model.eval().encode([*sentences[:5], *sentences[4:9]])
    assert report.value("stsb", "dev", "task-information") == pytest.approx(
        by_hand(vectors[:5], vectors[5:], temperature), abs=1e-5
    )


def test_fraternal_views_are_the_losss_own(build, sentences, checkpoint):
    """Without dropout: h = h+ = what the model encodes; h- by eq. 3 from the two texts' embeddings."""
    model = build(pooling="mean", dropout=False)
    with pytest.warns(UserWarning, match="dropout"):
        loss = TwinsLoss(model, fusion_rate=0.25)
    modes = {name: module.training for name, module in model.named_modules()}
    one, other = "the lake is cold", "rain falls in winter"
    anchors, identical, fraternal = fraternal_views(loss, [one], [other])
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert torch.equal(anchors, identical)
    columns = [model.preprocess([text]) for text in (one, other)]
    assert columns[0]["input_ids"].shape == columns[1]["input_ids"].shape
    with torch.no_grad():
        embed = model[0].model.get_input_embeddings()
        fused = 0.25 * embed(columns[0]["input_ids"]) + 0.75 * embed(columns[1]["input_ids"])
        states = model[0].model(inputs_embeds=fused)[0].mean(dim=1)
    torch.testing.assert_close(fraternal, states, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(anchors.numpy(), model.eval().encode([one]), atol=1e-5, rtol=1e-4)
    # The same language twice is the identical twin, which without dropout is the sentence.
    again = fraternal_views(loss, sentences, sentences, batch_size=4)
    torch.testing.assert_close(again[2], again[0], atol=1e-5, rtol=1e-4)


def test_a_fraternal_embedding_reads_the_translations(build, sentences):
    model = build(pooling="mean")
    weight = model[0].model.get_input_embeddings().weight.detach().clone()
    fraternal = FraternalEmbedding(model.tokenizer, weight, model, align="none")
    torch.manual_seed(1)
    own = fraternal_views(TwinsLoss(model), sentences, sentences[::-1])
    torch.manual_seed(1)
    theirs = fraternal_views(TwinsLoss(model, fraternal=fraternal), sentences, sentences[::-1])
    for one, two in zip(own, theirs, strict=True):  # the same tokenizer and embeddings, by the other way
        torch.testing.assert_close(one, two)


def test_too_few_translations_are_said(build, sentences):
    model = build()
    pairs = STSPairs(tuple(sentences), tuple(sentences[::-1]), (5.0,) * 10)
    loss = TwinsLoss(model)
    report = evaluate_information(model, pairs, loss=loss, translated=(sentences[:4], GERMAN[:4]))
    assert [score.size for score in report.scores] == [10, 4, 4]
    assert report.notes == (
        "stsb: the twins are 4 sentences and the task has 10 pairs, so their information can't be compared.",
    )
    for given in ({"loss": loss}, {"translated": (sentences, GERMAN)}):
        with pytest.raises(ValueError, match="give both, or neither"):
            evaluate_information(model, pairs, **given)
    with pytest.raises(ValueError, match="translations must be one for each sentence, got 10 sentences and 9"):
        fraternal_views(loss, sentences, GERMAN[:9])
    for temperature in (0, -1, float("inf"), "cold"):
        with pytest.raises(ValueError, match="temperature must be a positive number"):
            evaluate_information(model, pairs, temperature=temperature)
