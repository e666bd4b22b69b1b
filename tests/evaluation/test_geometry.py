from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from st_contrastive import TwinsLoss
from st_contrastive.evaluation import (
    EvaluationDataError,
    STSPairs,
    dropout_views,
    evaluate_geometry,
    plot_similarity_by_score,
    similarity_by_score,
    twins_information,
)
from tests.conftest import Standardised
from tests.evaluation.encoders import Letters

PAIRS = STSPairs(("a", "ab", "a", "c"), ("aab", "ab", "c", "b"), (5.0, 4.5, 4.0, 0.0))


def test_geometry_by_hand():
    report = evaluate_geometry(Letters(), PAIRS)
    # The pairs above 4: a and aab (cosine 2 / sqrt(5)), ab and itself.
    assert report.value("stsb", "dev", "alignment") == pytest.approx((2 - 2 * 2 / math.sqrt(5)) / 2)
    sentences = ["a", "ab", "c", "aab", "b"]
    vectors = np.array([[text.count(letter) for letter in "abc"] for text in sentences], dtype=float)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    kernel = [
        math.exp(-2 * ((x - y) ** 2).sum()) for i, x in enumerate(vectors) for j, y in enumerate(vectors) if i != j
    ]
    assert report.value("stsb", "dev", "uniformity") == pytest.approx(math.log(np.mean(kernel)))
    assert 0 < report.value("stsb", "dev", "information") <= math.log(2)
    assert [score.size for score in report.scores] == [2, 5, 2]
    assert report.scores[0].shown == "0.106"  # as it is, not x 100
    with pytest.raises(EvaluationDataError, match="scale the scores to 0 to 5"):
        evaluate_geometry(Letters(), PAIRS, above_score=5)


def test_similarity_by_score_and_its_picture(tmp_path):
    pytest.importorskip("matplotlib").use("Agg")
    found = similarity_by_score(Letters(), PAIRS, bands=5)
    assert found.bands[0] == (0.0, 1.0)
    assert [len(own) for own in found.similarities] == [1, 0, 0, 0, 3]
    assert found.similarities[0] == (0.0,)
    assert math.isnan(found.medians[1])
    assert found.medians[4] == pytest.approx(2 / math.sqrt(5))
    plot_similarity_by_score({"letters": found}, tmp_path / "fig.png")
    assert (tmp_path / "fig.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="bands"):
        similarity_by_score(Letters(), PAIRS, bands=0)


def test_dropout_views_differ_by_dropout_alone(build, sentences):
    model = build(pooling="mean")
    model.train()
    modes = {name: module.training for name, module in model.named_modules()}
    torch.manual_seed(0)
    first, second = dropout_views(model, sentences, batch_size=3)
    assert first.shape == second.shape == (len(sentences), 32)
    cosines = torch.nn.functional.cosine_similarity(first, second)
    assert (cosines < 1 - 1e-6).all()
    assert (cosines > 0.3).all()
    assert {name: module.training for name, module in model.named_modules()} == modes
    alone = build(pooling="mean", dropout=False)  # attention's dropout is no module of its own
    for layer in alone[0].model.encoder.layer:
        attention = layer.attention.self
        attention.dropout.p = alone[0].model.config.attention_probs_dropout_prob = 0.5
    first, second = dropout_views(alone, sentences)
    assert (torch.nn.functional.cosine_similarity(first, second) < 1 - 1e-6).all()
    plain = build(pooling="mean", dropout=False)
    first, second = dropout_views(plain, sentences)
    assert torch.equal(first, second)
    torch.testing.assert_close(first.numpy(), plain.encode(sentences), atol=1e-5, rtol=1e-4)


def test_dropout_views_leave_running_averages(build, sentences):
    model = build()
    model.append(Standardised())
    before = {name: value.clone() for name, value in model.named_buffers()}
    assert any("running_mean" in name for name in before)
    dropout_views(model.train(), sentences)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


@pytest.mark.filterwarnings("ignore:TwinsLoss was given one column")
def test_information_of_twins(build, sentences):
    """Less under more dropout, and log N without; the fraternal twin's is another."""
    found = {}
    for rate in (0.0, 0.1, 0.5):
        model = build(pooling="mean")
        loss = TwinsLoss(model, train_pooling="cls")
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = rate
        torch.manual_seed(0)
        columns = [model.preprocess(texts) for texts in (sentences, sentences[::-1])]
        found[rate] = twins_information(loss, columns)
        one = twins_information(loss, columns[:1])
        assert one.keys() == {"identical"}
        assert found[rate].keys() == {"identical", "fraternal"}
        # Bounded by log N, which is reached where the views are the same and the sentences are not.
        assert found[rate]["identical"] <= math.log(len(sentences)) + 1e-6
    assert found[0.0]["identical"] > found[0.5]["identical"]
    assert found[0.0]["identical"] > found[0.0]["fraternal"]


def test_geometry_of_a_model_has_its_twins(build):
    model = build(pooling="mean").eval()
    pairs = STSPairs(("a cat", "the mat", "it rains"), ("the cat", "a mat", "sleeps"), (5.0, 4.5, 0.0))
    state = torch.random.get_rng_state()
    report = evaluate_geometry(model, pairs)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not model.training
    again = evaluate_geometry(model, pairs)
    assert report.value("stsb", "dev", "twins-information") == again.value("stsb", "dev", "twins-information")
    assert report.scores[-1].size == 2
    assert report.scores[-1].shown == f"{report.scores[-1].value:.3f}"  # nats, and no share of anything
    assert report.value("stsb", "dev", "twins-information") <= math.log(2) + 1e-6


@pytest.mark.parametrize("count", [1, 2])
def test_information_of_twins_is_that_of_what_is_trained(build, sentences, count):
    """The loss trains [CLS], the model is saved with the mean: eq. 10 as loops, at the best temperature."""
    model = build(pooling="mean")
    loss = TwinsLoss(model, train_pooling="cls")
    columns = [model.preprocess(texts) for texts in (sentences, sentences[::-1])][:count]
    names = ["identical", "fraternal"][:count]
    found = {}
    for pooling in ("trained", "cls", "mean", None):
        torch.manual_seed(3)
        found[pooling] = twins_information(loss, columns, pooling=pooling)
        torch.manual_seed(3)
        with torch.no_grad():
            outputs = [model(dict(view)) for view in loss.views(columns)]
        if pooling in ("trained", "cls"):
            views = [output["token_embeddings"][:, 0] for output in outputs]
        else:
            views = [output["sentence_embedding"] for output in outputs]
        anchors, *twins = (torch.nn.functional.normalize(view.double(), dim=1).tolist() for view in views)
        for name, own in zip(names, twins, strict=True):
            bounds = []
            for temperature in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5):
                total = 0.0
                for i, h in enumerate(anchors):
                    scores = [sum(x * y for x, y in zip(h, other, strict=True)) / temperature for other in own]
                    total += scores[i] - math.log(sum(math.exp(score) for score in scores))
                bounds.append(math.log(len(anchors)) + total / len(anchors))
            expected = max(bounds)
            assert found[pooling][name] == pytest.approx(expected, rel=1e-4), (pooling, name)
    torch.manual_seed(3)
    assert twins_information(loss, columns) == found["trained"] == found["cls"]
    assert found["mean"] == pytest.approx(found[None])
    assert all(abs(found["trained"][name] - found["mean"][name]) > 1e-3 for name in names)
    loss.train_pooling = None
    torch.manual_seed(3)
    assert twins_information(loss, columns) == found[None]
    with pytest.raises(ValueError, match="pooling must be one of 'trained'"):
        twins_information(loss, columns, pooling="middle")


@pytest.mark.filterwarnings("ignore:TwinsLoss takes the encoder's dropout")
def test_views_of_columns_padded_on_the_left(build, sentences):
    """A decoder's tokenizer pads on the left: each token is fused with that of the same place in the sentence."""
    model = build("qwen", "mean", dropout=False)
    loss = TwinsLoss(model, train_pooling="mean")
    batch = [model.preprocess(texts) for texts in (sentences, sentences[::-1])]
    assert (batch[0]["attention_mask"][:, 0] == 0).any()
    *_, together = loss.encode_views(batch)
    for row, pair in enumerate(zip(sentences, sentences[::-1], strict=True)):
        *_, alone = loss.encode_views([model.preprocess([text]) for text in pair])
        torch.testing.assert_close(together[row], alone[0], rtol=1e-4, atol=1e-5)
