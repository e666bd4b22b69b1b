"""Mixtures of trained and untrained weights, by hand values and at the end of a run."""

from __future__ import annotations

import math

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator
from torch import nn

from st_contrastive.training import KeepBest, choose_share, mix_weights
from st_contrastive.training.mixing import mixture
from tests.filters import TRAINING
from tests.training.test_keep_best import Given, Stop, flat, trainer

pytestmark = [*TRAINING]


class Nearest(SentenceEvaluator):
    """How near the weights' mean is to a goal, as a number that is best at 0."""

    def __init__(self, goal):
        super().__init__()
        self.goal, self.primary_metric, self.seen = goal, "nearness", []

    def __call__(self, model, output_path=None, epoch=-1, steps=-1):
        self.seen.append(flat(model).mean().item())
        return {"nearness": -abs(self.seen[-1] - self.goal), "nothing": math.nan}


@pytest.fixture
def pair(build):
    """Two models of one start, the first with 1 added to every weight."""
    start = build()
    trained = build()
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(1)
    return trained, start


def test_by_hand():
    trained = {"w": torch.tensor([4.0, -2.0]), "mask": torch.tensor([-math.inf, 0.0]), "n": torch.tensor([7, 8])}
    start = {"w": torch.tensor([0.0, 2.0]), "mask": torch.tensor([-math.inf, 1.0]), "n": torch.tensor([1, 2])}
    mixed = mixture(trained, start, 0.25)
    assert mixed["w"].tolist() == [1.0, 1.0]
    assert mixed["mask"].tolist() == [-math.inf, 0.75]
    assert mixed["n"].tolist() == [7, 8]
    for share, ends in ((0, start), (1, trained)):
        assert torch.equal(mixture(trained, start, share)["w"], ends["w"])
        assert mixture(trained, start, share)["mask"].tolist() == ends["mask"].tolist()
    half = mixture({"w": torch.tensor([1.0]).bfloat16()}, {"w": torch.tensor([2.0])}, 0.5)["w"]
    assert half.dtype == torch.bfloat16
    assert half.item() == 1.5


def test_a_new_model_and_the_two_as_they_were(pair):
    trained, start = pair
    before = flat(trained), flat(start)
    mixed = mix_weights(trained, start, 0.5)
    torch.testing.assert_close(flat(mixed), flat(start) + 0.5)
    assert torch.equal(flat(trained), before[0])
    assert torch.equal(flat(start), before[1])
    assert not mixed.training
    assert trained.training
    for share, model in ((0, start), (1, trained)):
        own, other = flat(mix_weights(trained, start, share)), flat(model)
        assert torch.equal(own, other)
    assert mixed.encode(["rain falls"]).shape == (1, 32)


def test_a_mixture_is_saved_and_loaded(pair, tmp_path):
    mixed = mix_weights(*pair, 0.5)
    mixed.save_pretrained(str(tmp_path))
    again = SentenceTransformer(str(tmp_path), device="cpu")
    assert (again.encode("rain falls") == mixed.encode("rain falls")).all()


def test_what_is_refused(pair, build):
    trained, start = pair
    for share in (-0.1, 1.5, math.nan, "half", True):
        with pytest.raises(ValueError, match="share must be a number from 0 to 1"):
            mix_weights(trained, start, share)
    other = build("distilbert")
    with pytest.raises(ValueError, match=r"trained and start differ in \d+ weight\(s\), such as '0\."):
        mix_weights(trained, other, 0.5)
    longer = build()
    longer[0].model.resize_token_embeddings(200)
    with pytest.raises(ValueError, match=r"word_embeddings.weight' has the shape \(200, 32\) in trained and"):
        mix_weights(longer, start, 0.5)
    for shares in ((), 0.5, (0, 2)):
        with pytest.raises(ValueError, match="shares must be"):
            choose_share(trained, start, Nearest(0), shares)
    with pytest.raises(ValueError, match="metric 'spearman' is not among the evaluator's: nearness, nothing"):
        choose_share(trained, start, Nearest(0), metric="spearman")
    with pytest.raises(ValueError, match="nothing is NaN for all shares"):
        choose_share(trained, start, Nearest(0), metric="nothing")


def test_adapters_are_refused(pair):
    peft = pytest.importorskip("peft")
    trained, start = pair
    trained.add_adapter(peft.LoraConfig(r=2, target_modules=["query"]))
    with pytest.raises(ValueError, match=r"trained has adapters \(PEFT\).*merge_and_unload"):
        mix_weights(trained, start, 0.5)
    with pytest.raises(ValueError, match="start has adapters"):
        mix_weights(start, trained, 0.5)


@pytest.mark.parametrize(("beyond", "share"), [(0.3, 0.25), (0.9, 1.0), (-3.0, 0.0)])
def test_the_share_that_is_best(pair, beyond, share):
    trained, start = pair
    evaluator = Nearest(flat(start).mean().item() + beyond)
    before = flat(trained), flat(start)
    choice = choose_share(trained, start, evaluator)
    assert choice.share == share
    assert list(choice.values) == [0, 0.25, 0.5, 0.75, 1]
    steps = torch.tensor(evaluator.seen) - before[1].mean()
    torch.testing.assert_close(steps, torch.tensor([0, 0.25, 0.5, 0.75, 1]), atol=1e-4, rtol=0)
    assert f"weights: {share:g}" in str(choice)
    assert torch.equal(flat(trained), before[0])
    assert torch.equal(flat(start), before[1])
    # The other way round the worst is best.
    assert choose_share(trained, start, evaluator, greater_is_better=False).share == (1 if beyond < 0.5 else 0)


class Value(SentenceEvaluator):
    """A number, as evaluators may give."""

    def __call__(self, model, output_path=None, epoch=-1, steps=-1):
        return 0.5


def test_of_equal_values_the_smallest_share(pair):
    choice = choose_share(*pair, Value(), (1, 0.5))
    assert (choice.share, choice.metric, choice.values) == (0.5, "score", {0.5: 0.5, 1.0: 0.5})


def test_at_the_end_of_a_run(build, sentences, tmp_path):
    # Of the evaluations in training the second is best; then of the shares 0, 0.5 and 1 the half.
    values = (0.1, 0.5, 0.2, 0.3, 0.6, 0.4)
    evaluator = Given(*values)
    best = KeepBest("value", shares=(1, 0, 0.5), evaluator=evaluator)
    run = trainer(build, sentences, tmp_path / "a", evaluator, best, max_steps=3)
    start = flat(run.model)
    run.train()
    assert (best.step, best.value) == (2, 0.5)
    assert best.choice.share == 0.5
    assert best.choice.values == {0.0: 0.3, 0.5: 0.6, 1.0: 0.4}
    assert str(best.choice) == "Share of the trained weights: 0.5, by value (0: 0.3000, 0.5: 0.6000, 1: 0.4000)."
    assert torch.equal(evaluator.weights[4], start)
    assert torch.equal(evaluator.weights[6], evaluator.weights[2])
    torch.testing.assert_close(flat(run.model), (start + evaluator.weights[2]) / 2)
    # Cut short and resumed, the start is the run's and not the checkpoint's.
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    first = trainer(build, sentences, tmp_path / "b", Given(*values), KeepBest("value"), Stop(2), **saving)
    first.train()
    rest = Given(*values[2:])
    without = KeepBest("value", shares=(1, 0, 0.5), evaluator=rest)
    with pytest.raises(FileNotFoundError, match=r"start.safetensors is not there: .* Leave shares out"):
        trainer(build, sentences, tmp_path / "b", rest, without, **saving).train(resume_from_checkpoint=True)
    kept = Given(*values[:2], 0.0, 0.0, 0.0)
    cut = KeepBest("value", shares=(1, 0, 0.5), evaluator=kept)
    trainer(build, sentences, tmp_path / "c", kept, cut, Stop(2), **saving).train()
    again = KeepBest("value", shares=(1, 0, 0.5), evaluator=rest)
    resumed = trainer(build, sentences, tmp_path / "c", rest, again, **saving)
    resumed.train(resume_from_checkpoint=True)
    assert (again.step, again.choice) == (2, best.choice)
    assert torch.equal(flat(resumed.model), flat(run.model))


def test_shares_and_evaluator_come_together():
    with pytest.raises(ValueError, match="shares comes without evaluator"):
        KeepBest("value", shares=(0, 1))
    with pytest.raises(ValueError, match="evaluator comes without shares"):
        KeepBest("value", evaluator=Nearest(0))
    with pytest.raises(ValueError, match="shares must be a number from 0 to 1, got 2"):
        KeepBest("value", shares=(0, 2), evaluator=Nearest(0))


def test_integer_buffers_are_the_trained_models(pair):
    trained, start = pair
    for model, count in ((trained, 5), (start, 3)):
        model.append(nn.Module())
        model[-1].register_buffer("count", torch.tensor(count))
        model[-1].register_buffer("scale", torch.tensor(float(count)))
    mixed = mix_weights(trained, start, 0.5)
    assert (mixed[-1].count.item(), mixed[-1].scale.item()) == (5, 4.0)
