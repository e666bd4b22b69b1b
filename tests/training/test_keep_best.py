"""The best evaluation's weights come back, also after a run that was cut short."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from sentence_transformers import SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator
from transformers import TrainerCallback

from st_contrastive import SimCSELoss, text_dataset
from st_contrastive.training import ContrastiveTrainer, KeepBest
from tests.filters import TRAINING

pytestmark = [*TRAINING]


class Given(SentenceEvaluator):
    """The values that it was given, in turn; remembers the weights that each came of."""

    def __init__(self, *values):
        super().__init__()
        self.values, self.primary_metric, self.weights = list(values), "value", {}

    def __call__(self, model, output_path=None, epoch=-1, steps=-1):
        value = self.values[len(self.weights)]
        self.weights[len(self.weights) + 1] = flat(model)
        return {"value": value}


class Stop(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


def flat(model):
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def trainer(build, sentences, folder, evaluator, *callbacks, **more):
    torch.manual_seed(0)
    model = build()
    settings = {"save_strategy": "no", "max_steps": 5, "eval_strategy": "steps", "learning_rate": 1e-3, **more}
    args = SentenceTransformerTrainingArguments(
        str(folder), per_device_train_batch_size=2, eval_steps=1,
        report_to="none", use_cpu=True, dataloader_pin_memory=False, disable_tqdm=True, **settings,
    )  # fmt: skip
    data = text_dataset(sentences)
    return ContrastiveTrainer(model, args, data, loss=SimCSELoss(model), evaluator=evaluator, callbacks=[*callbacks])


@pytest.mark.parametrize(("greater", "step"), [(True, 3), (False, 2)])
def test_the_best_and_not_the_last(build, sentences, tmp_path, greater, step):
    evaluator, best = Given(0.2, 0.1, 0.5, float("nan"), 0.4), KeepBest("value", greater_is_better=greater)
    run = trainer(build, sentences, tmp_path, evaluator, best)
    run.train()
    assert (best.step, best.value) == (step, evaluator.values[step - 1])
    assert torch.equal(flat(run.model), evaluator.weights[step])
    assert not torch.equal(flat(run.model), evaluator.weights[5])
    assert json.loads((tmp_path / "best.json").read_text()) == {"metric": "value", "step": step, "value": best.value}
    assert {path.name for path in tmp_path.iterdir()} - {"eval"} == {"best.json", "best.safetensors"}


def test_of_a_loss_the_lowest_is_best(build, sentences, tmp_path):
    best = KeepBest("loss")
    run = trainer(build, sentences, tmp_path, Given(*range(5)), best, learning_rate=1e-2)
    run.eval_dataset = text_dataset(sentences)
    run.train()
    losses = {row["step"]: row["eval_loss"] for row in run.state.log_history if "eval_loss" in row}
    assert len(set(losses.values())) == 5
    assert (best.value, losses[best.step]) == (min(losses.values()),) * 2
    assert not KeepBest("dev_loss", greater_is_better=None).greater_is_better
    assert KeepBest("loss", greater_is_better=True).greater_is_better


def test_a_run_that_was_cut_short(build, sentences, tmp_path):
    values = (0.1, 0.5, 0.2, 0.3, 0.4)
    whole = trainer(build, sentences, tmp_path / "a", Given(*values), KeepBest("value"))
    whole.train()
    saving = {"save_strategy": "steps", "save_steps": 3}
    first = trainer(build, sentences, tmp_path / "b", Given(*values), KeepBest("value"), Stop(3), **saving)
    first.train()
    best = KeepBest("value")
    rest = trainer(build, sentences, tmp_path / "b", Given(*values[3:]), best, **saving)
    rest.train(resume_from_checkpoint=True)
    assert (best.step, best.value) == (2, 0.5)
    assert torch.equal(flat(rest.model), flat(whole.model))
    # Resumed from before the best: what comes later is met again, and nothing is taken from the future.
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    (tmp_path / "c" / "best.json").write_text(json.dumps({"metric": "value", "step": 4, "value": 9.0}))
    shutil.rmtree(tmp_path / "c" / "checkpoint-5", ignore_errors=True)
    later = KeepBest("value")
    trainer(build, sentences, tmp_path / "c", Given(*values[3:]), later, **saving).train(resume_from_checkpoint=True)
    assert (later.step, later.value) == (5, 0.4)


def test_an_earlier_runs_best_is_not_taken_for_this_runs(build, sentences, tmp_path):
    """Both in one folder, the second resumed before its first evaluation."""
    saving = {"save_strategy": "steps", "save_steps": 1}
    trainer(build, sentences, tmp_path, Given(0.9, 0.1), KeepBest("value"), max_steps=2, **saving).train()
    for checkpoint in tmp_path.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    late = {**saving, "eval_delay": 2}
    with pytest.warns(UserWarning, match="There was no evaluation of value"):
        trainer(build, sentences, tmp_path, Given(), KeepBest("value"), Stop(1), **late).train()
    best = KeepBest("value")
    again = trainer(build, sentences, tmp_path, Given(0.2, 0.3, 0.1, 0.1), best, **late)
    again.train(resume_from_checkpoint=True)
    assert best.value < 0.9


def test_a_run_that_was_over_already(build, sentences, tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2}
    first = trainer(build, sentences, tmp_path, Given(0.5, 0.1), KeepBest("value"), **saving)
    first.train()
    again = trainer(build, sentences, tmp_path, Given(), KeepBest("value"), **saving)
    again.train(resume_from_checkpoint=True)
    assert torch.equal(flat(again.model), flat(first.model))


def test_what_is_said(build, sentences, tmp_path):
    with pytest.raises(ValueError, match=r"metric 'values' is not among the evaluation's: .*value"):
        trainer(build, sentences, tmp_path, Given(0.1), KeepBest("values")).train()
    with pytest.raises(ValueError, match="metric 'values' is not among"):  # of the last evaluation too
        trainer(build, sentences, tmp_path, Given(0.1), KeepBest("values"), max_steps=1).train()
    run = trainer(build, sentences, tmp_path, Given(), KeepBest("value"), max_steps=1, eval_strategy="no")
    with pytest.warns(UserWarning, match="model is that of the last step"):
        run.train()


def test_of_several_datasets_one_has_the_evaluator(build, sentences, tmp_path):
    best = KeepBest("value")
    run = trainer(build, sentences, tmp_path, Given(0.2, 0.5, 0.1), best, max_steps=3)
    run.eval_dataset = {"a": text_dataset(sentences[:2]), "b": text_dataset(sentences[2:4])}
    run.train()
    assert (best.step, best.value) == (2, 0.5)


def test_only_evaluations_in_training_count(build, sentences, tmp_path):
    best = KeepBest("value")
    run = trainer(build, sentences, tmp_path, Given(0.2, 0.1, 0.9, 0.9), best, max_steps=2)
    run.train()
    kept = flat(run.model)
    for prefix in ("test", "eval"):
        metrics = run.evaluate(text_dataset(sentences[:2]), metric_key_prefix=prefix)
        assert metrics[f"{prefix}_value"] == 0.9
    assert (best.step, best.value) == (1, 0.2)
    assert torch.equal(flat(run.model), kept)


@pytest.mark.parametrize("lost", ["elsewhere", "weights", "record"])
def test_a_run_resumed_without_what_was_kept(build, sentences, tmp_path, lost):
    saving = {"save_strategy": "steps", "save_steps": 3}
    trainer(build, sentences, tmp_path / "a", Given(0.1, 0.5, 0.2), KeepBest("value"), Stop(3), **saving).train()
    folder = tmp_path / ("b" if lost == "elsewhere" else "a")
    if lost == "weights":
        (folder / "best.safetensors").unlink()
    if lost == "record":
        (folder / "best.json").write_text('{"metric": "val')
    best = KeepBest("value")
    run = trainer(build, sentences, folder, Given(0.3, 0.4), best, **saving)
    with pytest.warns(UserWarning, match=r"holds no weights of the best evaluation up to step 3 .* only later ones"):
        run.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-3"))
    assert (best.step, best.value) == (5, 0.4)


def test_an_evaluation_after_an_interrupted_run_does_not_count(build, sentences, tmp_path):
    class Interrupt(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                raise KeyboardInterrupt

    best = KeepBest("value")
    run = trainer(build, sentences, tmp_path, Given(0.5, 0.9, 0.9), best, Interrupt())
    with pytest.raises(KeyboardInterrupt):
        run.train()
    run.evaluate()
    assert (best.step, best.value) == (1, 0.5)
    assert json.loads((tmp_path / "best.json").read_text())["value"] == 0.5


def test_two_of_them_are_refused(build, sentences, tmp_path):
    run = trainer(build, sentences, tmp_path, Given(0.1), KeepBest("value"), KeepBest("other"))
    with pytest.raises(ValueError, match="more than one KeepBest"):
        run.train()


def test_a_list_of_evaluators(build, sentences, tmp_path):
    evaluators = [Given(*[0.1] * 9), Given(*[0.2, 0.5, 0.3, 0.4, 0.4, 0.9, 0.9, 0.9])]
    best = KeepBest("sequential_score", shares=(0.5, 1), evaluator=list(evaluators))
    run = trainer(build, sentences, tmp_path, list(evaluators), best, max_steps=2)
    run.train()
    assert best.choice.values == {0.5: 0.4, 1.0: 0.4}
    assert len(evaluators[0].weights) == len(evaluators[1].weights)
