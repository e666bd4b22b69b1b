"""Mixtures of trained and untrained weights, by hand values and at the end of a run."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator, SequentialEvaluator
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch import nn
from transformers import TrainerCallback

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
        return {
            "nearness": -abs(self.seen[-1] - self.goal),
            "far_loss": abs(self.seen[-1] - self.goal),
            "nothing": math.nan,
        }


class Stored(Nearest):
    """One that keeps what it measured last, as evaluators do in the model card."""

    stored = None

    def __call__(self, model, output_path=None, epoch=-1, steps=-1):
        metrics = super().__call__(model)
        self.stored = metrics["nearness"]
        return metrics


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
    trained._model_card_text = "of the trained model"
    for parameter in trained.parameters():
        parameter.grad = torch.ones_like(parameter)
    mixed = mix_weights(trained, start, 0.5)
    torch.testing.assert_close(flat(mixed), flat(start) + 0.5)
    assert torch.equal(flat(trained), before[0])
    assert torch.equal(flat(start), before[1])
    assert not mixed.training
    assert all(parameter.grad is None for parameter in mixed.parameters())
    assert mixed._model_card_text is None
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
    with pytest.raises(ValueError, match="have the same weights in memory"):
        mix_weights(trained, trained, 0.5)
    with pytest.raises(ValueError, match="start has no PyTorch weights"):
        mix_weights(trained, SentenceTransformer(modules=[nn.Identity()], device="cpu"), 0.5)
    quantised = build()
    quantised[0].model.is_quantized = True
    with pytest.raises(ValueError, match="trained has quantised weights"):
        mix_weights(quantised, start, 0.5)
    with pytest.raises(ValueError, match=r"word_embeddings.weight' has the shape \(200, 32\) in trained and"):
        mix_weights(longer, start, 0.5)
    for shares in ((), 0.5, (0, 2)):
        with pytest.raises(ValueError, match="shares must be"):
            choose_share(trained, start, Nearest(0), shares)
    with pytest.raises(ValueError, match="metric 'spearman' is not among the evaluator's: nearness, far_loss, nothing"):
        choose_share(trained, start, Nearest(0), metric="spearman")
    with pytest.raises(ValueError, match="nothing is NaN for all shares"):
        choose_share(trained, start, Nearest(0), metric="nothing")


def test_adapters_are_refused(pair):
    peft = pytest.importorskip("peft")
    trained, start = pair
    trained.add_adapter(peft.LoraConfig(r=2, target_modules=["query"]))
    with pytest.raises(ValueError, match=r"trained has adapters \(PEFT\).*merge_and_unload"):
        mix_weights(trained, start, 0.5)
    best = KeepBest("value", shares=(0, 1), evaluator=Given(0.1))
    with pytest.raises(ValueError, match=r"With shares, the model has adapters"):
        best.on_train_begin(SimpleNamespace(auto_find_batch_size=False), None, None, model=trained)
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
    steps = torch.tensor(evaluator.seen[:5]) - before[1].mean()
    torch.testing.assert_close(steps, torch.tensor([0, 0.25, 0.5, 0.75, 1]), atol=1e-4, rtol=0)
    assert f"weights: {share:g}" in str(choice)
    assert torch.equal(flat(trained), before[0])
    assert torch.equal(flat(start), before[1])
    # The other way round the worst is best.
    worst = 1 if beyond < 0.5 else 0
    assert choose_share(trained, start, evaluator, greater_is_better=False).share == worst
    assert choose_share(trained, start, evaluator, metric="far_loss").share == choice.share


class Value(SentenceEvaluator):
    """A number, as evaluators may give."""

    def __call__(self, model, output_path=None, epoch=-1, steps=-1):
        return 0.5


def test_of_equal_values_the_smallest_share(pair):
    choice = choose_share(*pair, Value(), (1, 0.5))
    assert (choice.share, choice.metric, choice.values) == (0.5, "evaluator", {0.5: 0.5, 1.0: 0.5})


def test_an_evaluator_that_gives_a_number(build, sentences, tmp_path):
    """Its value is called "evaluator" in the Trainer's logs, and so in KeepBest and in the choice."""
    best = KeepBest("evaluator", shares=(0, 1), evaluator=Value())
    trainer(build, sentences, tmp_path, Value(), best, max_steps=1).train()
    assert (best.value, best.choice.values) == (0.5, {0.0: 0.5, 1.0: 0.5})


def test_at_the_end_of_a_run(build, sentences, tmp_path):
    # After one before training, the second evaluation in training is best; then of the shares 0, 0.5 and 1 the half,
    # which is evaluated again, for the model card.
    values = (0.9, 0.1, 0.5, 0.2, 0.3, 0.6, 0.4, 0.6)
    evaluator = Given(*values)
    best = KeepBest("value", shares=(1, 0, 0.5), evaluator=evaluator)
    run = trainer(build, sentences, tmp_path / "a", evaluator, best, max_steps=3)
    start = flat(run.model)
    run.train()
    assert (best.step, best.value) == (2, 0.5)
    assert best.choice.share == 0.5
    assert best.choice.values == {0.0: 0.3, 0.5: 0.6, 1.0: 0.4}
    assert str(best.choice) == "Share of the trained weights: 0.5, by value (0: 0.3, 0.5: 0.6, 1: 0.4)."
    assert torch.equal(evaluator.weights[1], start)
    assert torch.equal(evaluator.weights[5], start)
    assert torch.equal(evaluator.weights[7], evaluator.weights[3])
    torch.testing.assert_close(flat(run.model), (start + evaluator.weights[3]) / 2)
    assert torch.equal(flat(run.model), evaluator.weights[8])
    # Cut short and resumed, the start is the run's and not the checkpoint's.
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    first = trainer(build, sentences, tmp_path / "b", Given(*values[1:]), KeepBest("value"), Stop(2), **saving)
    first.train()
    rest = Given(0.0, *values[3:])
    without = KeepBest("value", shares=(1, 0, 0.5), evaluator=rest)
    with pytest.raises(FileNotFoundError, match=r"start.safetensors is not there. .* leave shares out"):
        trainer(build, sentences, tmp_path / "b", rest, without, **saving).train(resume_from_checkpoint=True)
    kept = Given(*values[:3], 0.0, 0.0, 0.0, 0.0)
    cut = KeepBest("value", shares=(1, 0, 0.5), evaluator=kept)
    trainer(build, sentences, tmp_path / "c", kept, cut, Stop(2), **saving).train()
    rest = Given(0.0, *values[3:])
    again = KeepBest("value", shares=(1, 0, 0.5), evaluator=rest)
    resumed = trainer(build, sentences, tmp_path / "c", rest, again, **saving)
    resumed.train(resume_from_checkpoint=True)
    assert (again.step, again.choice) == (2, best.choice)
    assert torch.equal(flat(resumed.model), flat(run.model))
    # A run without shares in the same folder leaves nothing that a resumed one could take for its start.
    trainer(build, sentences, tmp_path / "c", Given(*values), KeepBest("value"), Stop(1), **saving).train()
    assert not (tmp_path / "c" / "start.safetensors").exists()


def test_the_worst_is_best(build, sentences, tmp_path):
    best = KeepBest("value", greater_is_better=False, shares=(0, 1), evaluator=Given(0.0, 0.1, 0.2, 0.1))
    run = trainer(build, sentences, tmp_path, Given(0.3, 0.2), best, max_steps=2)
    start = flat(run.model)
    run.train()
    assert (best.step, best.choice.share) == (2, 0.0)
    assert torch.equal(flat(run.model), start)


class Broken(TrainerCallback):
    """Makes the weights NaN after a step."""

    def on_step_end(self, args, state, control, **kwargs):
        with torch.no_grad():
            next(kwargs["model"].parameters()).fill_(math.nan)


class Finite(SentenceEvaluator):
    """1 if all weights are finite, else NaN."""

    def __call__(self, model, output_path=None, epoch=-1, steps=-1):
        return {"finite": 1.0 if flat(model).isfinite().all() else math.nan}


@pytest.mark.parametrize("strategy", ["steps", "no"])
def test_a_run_that_broke_keeps_the_start(build, sentences, tmp_path, strategy):
    """Without a number from any evaluation the last weights are tried, beside those before training."""
    best = KeepBest("finite", shares=(0, 0.5, 1), evaluator=Finite())
    run = trainer(build, sentences, tmp_path, Finite(), best, Broken(), max_steps=1, eval_strategy=strategy)
    start = flat(run.model)
    with pytest.warns(UserWarning, match="the trained model is that of the last step"):
        run.train()
    assert best.choice.share == 0
    assert [math.isnan(value) for value in best.choice.values.values()] == [False, True, True]
    assert torch.equal(flat(run.model), start)


def test_the_start_is_no_trained_model(build, sentences, tmp_path):
    """An evaluation before the first step, better than all others, does not stand for what was trained."""
    best = KeepBest("value", shares=(0, 1), evaluator=Given(0.0, 0.1, 0.2, 0.2))
    evaluator = Given(0.9, 0.1)
    run = trainer(build, sentences, tmp_path, evaluator, best, max_steps=1, eval_on_start=True)
    run.train()
    assert (best.step, best.choice.share) == (1, 1.0)
    assert torch.equal(flat(run.model), evaluator.weights[2])


def test_an_error_costs_no_training(build, sentences, tmp_path):
    """An unknown metric is refused before the first step; after an error at the end the trained weights stay."""
    steps = []

    class Steps(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            steps.append(state.global_step)

    wrong = KeepBest("value", shares=(0, 1), evaluator=Nearest(0))
    with pytest.raises(ValueError, match="metric 'value' is not among the evaluator's: nearness"):
        trainer(build, sentences, tmp_path, Given(0.1), wrong, Steps(), max_steps=1).train()
    assert steps == []
    short, evaluator = Given(0.0, 0.1), Given(0.1)
    run = trainer(build, sentences, tmp_path, evaluator, KeepBest("value", shares=(0, 1), evaluator=short), max_steps=1)
    with pytest.raises(IndexError):
        run.train()
    assert torch.equal(flat(run.model), evaluator.weights[1])


def test_a_batch_that_did_not_fit(build, sentences, tmp_path):
    """The Trainer begins again with half the batch; the weights before training are those before its first try."""

    class Full(TrainerCallback):
        tries = 0

        def on_step_end(self, args, state, control, **kwargs):
            self.tries += 1
            if self.tries == 1:
                raise RuntimeError("CUDA out of memory.")

    best = KeepBest("value", shares=(0, 1), evaluator=Given(0.0, 0.2, 0.1, 0.2))
    run = trainer(build, sentences, tmp_path, Given(0.1), best, Full(), max_steps=1, auto_find_batch_size=True)
    start = flat(run.model)
    run.train()
    assert best.choice.share == 0
    assert torch.equal(flat(run.model), start)


def test_shares_and_evaluator_come_together():
    with pytest.raises(ValueError, match="shares comes without evaluator"):
        KeepBest("value", shares=(0, 1))
    with pytest.raises(ValueError, match="evaluator comes without shares"):
        KeepBest("value", evaluator=Nearest(0))
    with pytest.raises(ValueError, match="shares must be a number from 0 to 1, got 2"):
        KeepBest("value", shares=(0, 2), evaluator=Nearest(0))


def test_another_pooling_is_said(pair):
    trained, start = pair
    start[1] = Pooling(32, "mean")
    start.append(Normalize())
    own = "trained has the modules Transformer, Pooling of cls, and start Transformer, Pooling of mean, Normalize"
    with pytest.warns(UserWarning, match=own):
        mixed = mix_weights(trained, start, 0)
    assert mixed[1].pooling_mode == "cls"


def test_the_card_has_the_chosen_shares_scores(pair):
    """Also of the evaluators inside another."""
    inner = Stored(flat(pair[1]).mean().item() + 0.5)
    mixed_by = SequentialEvaluator([inner], main_score_function=lambda scores: scores[0])
    choice = choose_share(*pair, mixed_by, metric="sequential_score")
    assert (choice.share, inner.stored) == (0.5, choice.values[0.5])


def test_integer_buffers_are_the_trained_models(pair):
    trained, start = pair
    for model, count in ((trained, 5), (start, 3)):
        model.append(nn.Module())
        model[-1].register_buffer("count", torch.tensor(count))
        model[-1].register_buffer("scale", torch.tensor(float(count)))
    mixed = mix_weights(trained, start, 0.5)
    assert (mixed[-1].count.item(), mixed[-1].scale.item()) == (5, 4.0)
