"""A resumed run equals an uninterrupted run, only complete checkpoints count, and the best model is loaded."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.evaluation import SequentialEvaluator
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.utils.data import DataLoader
from transformers import TrainerCallback

import st_contrastive as stc
from st_contrastive import SimCSELoss
from st_contrastive.training import ContrastiveTrainer, LossStateError, load_loss_state, save_loss_state
from st_contrastive.training.fingerprints import data_fingerprints
from tests.cases import TRAINED_CASES, ByStep, assert_equal, crossed, state_of, switch_off_dropout


@pytest.fixture
def finished_run(trainer, tmp_path):
    """Folder of a run of SimCSE that ended."""
    trainer("simcse", output_dir=str(tmp_path / "finished_run")).train()
    return str(tmp_path / "finished_run")


@pytest.mark.parametrize("method", crossed(TRAINED_CASES, quick=("twins", "infocse").__contains__))
def test_a_resumed_run_equals_an_uninterrupted_one(trainer, method):
    """Weights, and what the loss owns."""
    whole = trainer(method, logging_steps=3)
    start = state_of(whole.loss)
    whole.train()
    end = state_of(whole.loss)
    changed = [name for name, value in start.items() if not torch.equal(value, end[name])]
    assert any(name.startswith("model.") for name in changed)
    owned = [name for name in start if not name.startswith("model.")]
    assert not owned or any(name in changed for name in owned)
    shutil.rmtree(Path(whole.args.output_dir) / "checkpoint-6")
    resumed = trainer(method, logging_steps=3)
    metrics = resumed.train(resume_from_checkpoint=True).metrics
    assert_equal(end, state_of(resumed.loss))
    assert [log["step"] for log in resumed.state.log_history if "loss" in log] == [3, 6]
    assert metrics["train_loss"] > 0


def test_resuming_from_another_folder_with_gradient_accumulation_and_evaluations(trainer, tmp_path):
    """The arguments name the checkpoint; to evaluate more often changes no weight."""
    options = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
    whole = trainer("twins", **options)
    whole.train()
    shutil.move(tmp_path / "run" / "checkpoint-2", tmp_path / "elsewhere")
    options |= {"eval_strategy": "steps", "eval_steps": 1, "resume_from_checkpoint": str(tmp_path / "elsewhere")}
    resumed = trainer("twins", ByStep(float), output_dir=str(tmp_path / "other"), **options)
    resumed.train()
    assert_equal(state_of(whole.loss), state_of(resumed.loss))


@pytest.mark.parametrize(
    "file",
    crossed(["loss_state.safetensors", "optimizer.pt", "trainer_state.json", "cut short"], quick="cut short".__eq__),
)
def test_an_incomplete_checkpoint_is_skipped(trainer, file):
    whole = trainer("twins")
    whole.train()
    folder = Path(whole.args.output_dir)
    if file == "cut short":
        file = "trainer_state.json"
        text = (folder / "checkpoint-6" / file).read_text()
        (folder / "checkpoint-6" / file).write_text(text[:-5])
    else:
        (folder / "checkpoint-6" / file).unlink()
    with pytest.raises(FileNotFoundError, match=rf"checkpoint-6 has no {file}.*checkpoint-4, checkpoint-2"):
        trainer("twins").train(resume_from_checkpoint=str(folder / "checkpoint-6"))
    seen = []

    class FirstStep(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            seen.append(state.global_step)

    resumed = trainer("twins", callbacks=[FirstStep()])
    resumed.train(resume_from_checkpoint=True)
    assert seen == [4, 5]
    assert_equal(state_of(whole.loss), state_of(resumed.loss))


def test_a_checkpoint_is_incomplete_while_another_run_replaces_it(trainer, monkeypatch):
    trainer("twins", max_steps=2).train()
    second = trainer("twins", max_steps=2)

    def killed(*args, **kwargs):
        raise RuntimeError("killed")

    monkeypatch.setattr(torch, "save", killed)  # the optimizer's state
    with pytest.raises(RuntimeError, match="killed"):
        second.train()
    with pytest.raises(FileNotFoundError, match=r"none of the 1 checkpoints .* is complete"):
        trainer("twins").train(resume_from_checkpoint=True)


def test_without_a_complete_checkpoint_resuming_is_refused(trainer, made, arguments, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none of the 0 checkpoints .* is complete"):
        trainer(output_dir=str(tmp_path / "new")).train(resume_from_checkpoint=True)
    loss, data = made()
    SentenceTransformerTrainer(loss.model, arguments(max_steps=2), data, loss=loss).train()
    with pytest.raises(FileNotFoundError, match=r"none of the 1 checkpoints .* is complete"):
        trainer().train(resume_from_checkpoint=True)
    with pytest.raises(FileNotFoundError, match="checkpoint-17 does not exist"):
        trainer().train(resume_from_checkpoint="checkpoint-17")


def test_another_loss_is_refused_and_nothing_is_changed(trainer, made, arguments):
    trainer().train()
    loss, data = made(temperature=0.5)
    before = state_of(loss)
    with pytest.raises(LossStateError, match=r"temperature is 0.5, saved with 0.1"):
        ContrastiveTrainer(loss.model, arguments(), data, loss=loss).train(resume_from_checkpoint=True)
    assert_equal(before, state_of(loss))


def test_changed_arguments_are_refused(finished_run, trainer):
    default = trainer("simcse").args.to_dict()["optim"]  # not fused before torch 2.8
    changes = {
        "learning_rate": (0.001, 1e-5), "weight_decay": (0.0, 0.5), "lr_scheduler_type": ("linear", "constant"),
        "optim": (default, "sgd"), "per_device_train_batch_size": (4, 2), "seed": (42, 7),
        "gradient_accumulation_steps": (1, 2), "max_grad_norm": (1.0, 0.5), "prompts": (None, "a cat"),
    }  # fmt: skip
    run = trainer("simcse", output_dir=finished_run, **{name: now for name, (_, now) in changes.items()})
    before = state_of(run.loss)
    with pytest.raises(ValueError, match="checkpoint-6: these settings must match") as caught:
        run.train(resume_from_checkpoint=True)
    for name, (was, now) in changes.items():
        assert f"{name} is {now!r}, and was {was!r}" in str(caught.value)
    assert_equal(before, state_of(run.loss))


def test_other_prompts_of_the_model_are_refused(finished_run, trainer):
    run = trainer("simcse", output_dir=finished_run)
    run.model.prompts, run.model.default_prompt_name = {"all": "a cat"}, "all"
    run = ContrastiveTrainer(run.model, run.args, run.train_dataset, loss=run.loss)
    with pytest.raises(ValueError, match=r"prompts is 'a cat', and was None\."):
        run.train(resume_from_checkpoint=True)


def test_other_data_and_another_model_are_refused(finished_run, made, arguments, build):
    loss, data = made("simcse")

    def resume(model=loss.model, data=data, **options):
        loss = SimCSELoss(model)
        run = ContrastiveTrainer(model, arguments(output_dir=finished_run), data, loss=loss, **options)
        run.train(resume_from_checkpoint=f"{finished_run}/checkpoint-4")

    for other in (data.select(range(8)), data.shuffle(seed=1)):
        with pytest.raises(ValueError, match=r"train_dataset is '\d+ rows .*, and was '10 rows"):
            resume(data=other)
    with pytest.raises(ValueError, match="max_length is 8, and was 64"):
        resume(max_length=8)
    shorter = build()
    shorter.max_seq_length = 8
    with pytest.raises(ValueError, match="max_length is 8, and was 64"):
        resume(shorter)
    with pytest.raises(ValueError, match=r"model has the modules .*'mean'.*, and had .*'cls'"):
        resume(build(pooling="mean"))
    with pytest.raises(ValueError, match="model has other weights than at the start of the run"):
        resume(build("roberta"))
    resume(SentenceTransformer(f"{finished_run}/checkpoint-4", device="cpu"))  # the checkpoint's own


def change_one_weight(model):
    with torch.no_grad():
        model[0].model.encoder.layer[3].output.dense.weight[5, 7] += 1e-6


@pytest.mark.parametrize("change", ["fine-tuned", "one weight", "a bias"])
def test_another_fine_tune_of_the_encoder_is_refused(build, arguments, sentences, tmp_path, change):
    """The first tokens of a real vocabulary occur in no text, so training does not change their embeddings."""

    def run(model, **options):
        return ContrastiveTrainer(model, arguments(**options), stc.text_dataset(sentences), loss=SimCSELoss(model))

    run(build("bert-30k")).train()
    other = build("bert-30k")
    if change == "fine-tuned":
        run(other, output_dir=tmp_path / "other", save_strategy="no", max_steps=2).train()
    elif change == "one weight":
        change_one_weight(other)
    else:
        with torch.no_grad():
            other[0].model.encoder.layer[0].attention.self.query.bias[0] += 1.0
    with pytest.raises(ValueError, match="model has other weights than at the start of the run"):
        run(other).train(resume_from_checkpoint=True)
    run(build("bert-30k")).train(resume_from_checkpoint=True)


def test_a_random_pooler_does_not_prevent_resuming(arguments, sentences, checkpoint):
    """transformers draws a new one in each process."""

    def run():
        modules = [Transformer(str(checkpoint("bert-mlm"))), Pooling(32, "cls")]
        model = SentenceTransformer(modules=modules, device="cpu")
        torch.nn.init.normal_(model[0].model.pooler.dense.weight)
        return ContrastiveTrainer(model, arguments(), stc.text_dataset(sentences), loss=SimCSELoss(model))

    run().train()
    run().train(resume_from_checkpoint=True)


@pytest.mark.parametrize("kind", ["LoraConfig", "LoHaConfig"])
def test_random_adapters_do_not_prevent_resuming(arguments, sentences, build, kind):
    peft = pytest.importorskip("peft")

    def run(seed):
        model = build()
        torch.manual_seed(seed)
        model.add_adapter(getattr(peft, kind)(task_type="FEATURE_EXTRACTION", r=2, target_modules=["query"]))
        return ContrastiveTrainer(model, arguments(), stc.text_dataset(sentences), loss=SimCSELoss(model))

    run(1).train()
    run(2).train(resume_from_checkpoint=True)


def test_precision_tokenizer_and_dropout_are_part_of_the_run(finished_run, made, arguments, monkeypatch):
    def resume(change):
        loss, data = made("simcse")
        change(loss.model)
        run = ContrastiveTrainer(loss.model, arguments(output_dir=finished_run), data, loss=loss)
        run.train(resume_from_checkpoint=f"{finished_run}/checkpoint-4")

    def keep_capitals(model):
        model.tokenizer.backend_tokenizer.normalizer.lowercase = False

    changes = {
        "dropout is '0 in 13 layers', and was '0.1 in 13 layers'": switch_off_dropout,
        "tokenizer is '.*WORLD.*', and was '.*world": keep_capitals,
    }
    for message, change in changes.items():
        with pytest.raises(ValueError, match=message):
            resume(change)
    for name, value, message in (
        ("ACCELERATE_MIXED_PRECISION", "bf16", "mixed_precision is 'bf16', and was 'no'"),
        ("ACCELERATE_DYNAMO_BACKEND", "EAGER", "compiler is 'EAGER', and was 'NO'"),
    ):
        with monkeypatch.context() as environment:
            environment.setenv(name, value)
            with pytest.raises(ValueError, match=message):
                resume(lambda model: None)


def test_the_fingerprint_of_data_names_the_transform():
    def as_it_is(rows):
        return rows

    def in_capitals(rows):
        return {"sentence": [text.upper() for text in rows["sentence"]]}

    data = Dataset.from_dict({"sentence": ["a cat", "a dog"]})
    described = [data_fingerprints(data.with_transform(each)) for each in (as_it_is, as_it_is, in_capitals)]
    assert described[0] == described[1] != described[2]
    assert "in_capitals" in described[2]["train_dataset"]


@pytest.mark.parametrize("row", [0, 20, 39])
def test_the_fingerprint_of_data_changes_with_any_row(row):
    def described(texts):
        return data_fingerprints(Dataset.from_dict({"sentence": texts}))

    texts = [f"a cat {number}" for number in range(40)]
    assert described(texts) == described(texts)
    assert described(texts) != described([*texts[:row], "a dog", *texts[row + 1 :]])


class Told(ByStep):
    """Says what it scores."""

    def get_config_dict(self):
        return {"set": self.name}


def test_another_evaluator_or_metric_for_the_best_model_is_refused(trainer):
    def build(name="one", **changes):
        evaluator = Told(lambda step: -step)
        evaluator.name = name
        options = {**BEST, "load_best_model_at_end": True, **changes}
        return trainer("simcse", SequentialEvaluator([evaluator]), **options)

    build(max_steps=4).train()
    for change, message in (
        ({"name": "two"}, r"evaluator is \[\{'set': 'two'\}\], and was \[\{'set': 'one'\}\]"),
        ({"greater_is_better": False}, "greater_is_better is False, and was True"),
    ):
        with pytest.raises(ValueError, match=message):
            build(**change).train(resume_from_checkpoint=True)
    build().train(resume_from_checkpoint=True)


def test_resuming_after_the_first_epoch_of_a_stream_gives_a_warning(made, arguments):
    def run(**options):
        loss, data = made("simcse")
        return ContrastiveTrainer(loss.model, arguments(**options), data.to_iterable_dataset(), loss=loss)

    run(max_steps=4).train()  # of three steps an epoch
    with pytest.warns(UserWarning, match="checkpoint-4 was saved after the first epoch"):
        run().train(resume_from_checkpoint=True)
    shutil.rmtree(Path(run().args.output_dir))
    run(max_steps=2).train()
    run().train(resume_from_checkpoint=True)


def test_other_evaluation_data_are_refused_if_their_loss_chooses_the_best_model(made, arguments):
    def run(rows):
        loss, data = made("conisi")
        options = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
        return ContrastiveTrainer(loss.model, arguments(**options), data, data.select(rows), loss)

    run(range(4)).train()
    with pytest.raises(ValueError, match=r"eval_dataset is \{.*4 rows.*\}, and was \{.*4 rows"):
        run(range(4, 8)).train(resume_from_checkpoint=True)
    run(range(4)).train(resume_from_checkpoint=True)


def test_a_checkpoint_without_a_record_resumes(trainer):
    """As one that was saved by ``save_loss_state`` in a callback."""
    run = trainer("simcse")
    run.train()
    folder = Path(run.args.output_dir) / "checkpoint-6"
    save_loss_state(run.loss, folder)
    trainer("simcse", learning_rate=1e-5).train(resume_from_checkpoint=str(folder))


def test_a_finished_run_is_not_trained_further(trainer):
    """The run was killed after its last checkpoint in mid-epoch. transformers would make one more step."""
    options = {"max_steps": 5, "lr_scheduler_type": "constant"}
    ended = trainer("twins", **options)
    ended.train()
    again = trainer("twins", **options)
    assert again.train(resume_from_checkpoint=True).global_step == 5
    assert_equal(state_of(ended.loss), state_of(again.loss))
    with pytest.raises(ValueError, match="max_steps is 3, and was 5"):
        trainer("twins", max_steps=3).train(resume_from_checkpoint=True)


@pytest.mark.long
def test_checkpoints_of_another_run_in_the_folder_are_refused(trainer):
    trainer(max_steps=6).train()
    folder = Path(trainer().args.output_dir)
    for state in folder.glob("checkpoint-*/trainer_state.json"):
        os.utime(state, (1, 1))  # older than what follows, also where times are whole seconds
    trainer(max_steps=4).train()
    with pytest.raises(ValueError, match=r"checkpoint-4 was written after checkpoint-6.*resume_from_checkpoint"):
        trainer().train(resume_from_checkpoint=True)


BEST = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "score", "greater_is_better": True}


def test_the_best_model_comes_with_its_loss_state(trainer):
    """Scores fall, so that the first checkpoint is the best."""
    best = trainer("infocse", ByStep(lambda step: -step), load_best_model_at_end=True, save_total_limit=1, **BEST)
    best.train()
    short = trainer("infocse", max_steps=2, lr_scheduler_type="constant", save_strategy="no")
    folder = Path(best.args.output_dir)
    assert [entry.name for entry in folder.glob("checkpoint-*")] == ["checkpoint-2"]
    load_loss_state(short.loss, folder / "checkpoint-2")
    expected = {name: value for name, value in state_of(short.loss).items() if not name.startswith("model.")}
    owned = {name: value for name, value in state_of(best.loss).items() if not name.startswith("model.")}
    assert_equal(expected, owned)
    weights = SentenceTransformer(str(folder / "checkpoint-2"), device="cpu").state_dict()
    assert_equal(weights, dict(best.model.state_dict()))


@pytest.mark.long
def test_only_better_models_are_saved_and_resumed_from(trainer):
    score = {1: 0.1, 2: 0.3, 3: 0.2, 4: 0.4, 5: 0.0, 6: 0.2}.__getitem__
    options = {**BEST, "eval_steps": 1, "save_strategy": "best", "logging_steps": 3}
    whole = trainer("twins", ByStep(score), **options)
    whole.train()
    names = sorted(entry.name for entry in Path(whole.args.output_dir).glob("checkpoint-*"))
    assert names == ["checkpoint-1", "checkpoint-2", "checkpoint-4"]
    end = state_of(whole.loss)
    resumed = trainer("twins", ByStep(score), **options)
    resumed.train(resume_from_checkpoint=True)
    assert_equal(end, state_of(resumed.loss))


@pytest.mark.long
@pytest.mark.parametrize(("strategy", "steps"), [("steps", 4), ("best", 6)])
@pytest.mark.parametrize("stays", [True, False])
def test_the_best_model_of_a_run_whose_folder_was_moved(trainer, tmp_path, strategy, steps, stays):
    """Resumed at its end, or for steps without a save; also where another run's checkpoint has the old path."""
    options = {**BEST, "load_best_model_at_end": True, "save_strategy": strategy}
    trainer("twins", ByStep(lambda step: -step), **{**options, "max_steps": 4}).train()
    moved = tmp_path / "moved"
    shutil.move(tmp_path / "run", moved)
    if strategy == "best":
        assert [entry.name for entry in moved.glob("checkpoint-*")] == ["checkpoint-2"]
    if stays:
        (tmp_path / "run" / "checkpoint-2").mkdir(parents=True)
    again = trainer(
        "twins", ByStep(lambda step: -step), **{**options, "max_steps": steps, "output_dir": str(moved)}
    )  # fmt: skip
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == steps
    assert again.state.best_model_checkpoint == str(moved / "checkpoint-2")
    weights = SentenceTransformer(str(moved / "checkpoint-2"), device="cpu").state_dict()
    assert_equal(weights, dict(again.model.state_dict()))


def test_one_lazily_built_loss_for_each_dataset(build, sentences, arguments):
    datasets = {"a": stc.text_dataset(sentences), "b": stc.conisi_dataset(sentences)}

    def run(**options):
        torch.manual_seed(0)
        losses = {"a": stc.SimCSELoss, "b": stc.ConIsILoss}
        return ContrastiveTrainer(build(), arguments(**options), dict(datasets), loss=losses)

    whole = run()
    whole.train()
    shutil.rmtree(Path(whole.args.output_dir) / "checkpoint-6")
    resumed = run()
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 6
    for name, loss in whole.loss.items():
        assert_equal(state_of(loss), state_of(resumed.loss[name]))


def test_fit_resumes_with_save_loss_state_and_load_loss_state(made, sentences, tmp_path, monkeypatch):
    """As the docstring of load_loss_state has it: fit's own callback saves, and the loss is loaded before."""
    monkeypatch.chdir(tmp_path)
    examples = stc.input_examples(stc.twins_dataset(sentences[:8], sentences[:0:-1][:8]))

    def fit(loss, resume):
        loss.model.fit(
            [(DataLoader(examples, batch_size=4), loss)],
            evaluator=ByStep(lambda step: step),
            epochs=3,
            evaluation_steps=3,
            callback=lambda score, epoch, step: step % 3 or save_loss_state(loss, f"saved/checkpoint-{step}"),
            checkpoint_path="saved",
            checkpoint_save_steps=3,
            resume_from_checkpoint=resume,
            warmup_steps=0,
            scheduler="constantlr",
            optimizer_params={"lr": 1e-3},
            show_progress_bar=False,
        )

    whole, _ = made("twins")
    fit(whole, resume=False)  # six steps
    shutil.rmtree("saved/checkpoint-6")
    resumed, _ = made("twins")
    load_loss_state(resumed, "saved/checkpoint-3")
    assert len(resumed.queue) > 0
    fit(resumed, resume=True)
    assert_equal(state_of(whole), state_of(resumed))
