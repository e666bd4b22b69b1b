"""ContrastiveTrainer, and the callback in sentence-transformers' own Trainer."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import signal
import warnings
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformerTrainer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from torch.utils.data import DataLoader
from transformers import TrainerCallback

import st_contrastive as stc
from st_contrastive.training import (
    ContrastiveTrainer,
    LossStateCallback,
    LossStateError,
    load_loss_state,
    save_loss_state,
)
from tests.selection import crossed
from tests.training.conftest import CASES

pytestmark = [
    pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument"),
]


def assert_equal(first, second):
    assert len(first) > 10
    assert set(first) == set(second)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def trainer_of(kind, loss, data, arguments, **options):
    """The two that keep the state of a loss."""
    if kind == "trainer":
        return ContrastiveTrainer(loss.model, arguments, data, loss=loss, **options)
    callbacks = [*options.pop("callbacks", []), LossStateCallback(loss)]
    return SentenceTransformerTrainer(loss.model, arguments, data, loss=loss, callbacks=callbacks, **options)


@pytest.mark.parametrize(
    ("method", "kind"),
    crossed(CASES, ["trainer", "callback"], quick=lambda method, kind: kind == "trainer" or method == "twins"),
)
def test_resumed_equals_uninterrupted(made, arguments, ended, method, kind):
    loss, data = made(method)
    trainer_of(kind, loss, data, arguments()).train()
    expected = ended(loss)
    loss, data = made(method)
    folder = Path(arguments().output_dir)
    shutil.rmtree(folder / "checkpoint-6")
    trainer = trainer_of(kind, loss, data, arguments())
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-4"))
    assert trainer.state.global_step == 6
    assert_equal(expected, ended(loss))


def test_without_it_a_resumed_run_is_another_and_says_so_once(made, arguments, ended):
    loss, data = made()
    SentenceTransformerTrainer(loss.model, arguments(), data, loss=loss).train()
    expected = ended(loss)
    loss, data = made()
    checkpoint = str(Path(arguments().output_dir) / "checkpoint-4")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SentenceTransformerTrainer(loss.model, arguments(), data, loss=loss).train(resume_from_checkpoint=checkpoint)
    messages = [str(warning.message) for warning in caught if "resumed at step 4" in str(warning.message)]
    assert len(messages) == 1
    assert "ConIsILoss" in messages[0]
    assert "ContrastiveTrainer" in messages[0]
    assert not torch.equal(expected["head.linear.weight"], ended(loss)["head.linear.weight"])


@pytest.mark.parametrize("kind", ["trainer", "callback"])
def test_no_warning_where_the_state_is_kept_or_none_is_owned(made, arguments, kind):
    for method, options in (("conisi", {}), ("simcse", {"head": False})):
        loss, data = made(method, **options)
        trainer = trainer_of(kind, loss, data, arguments())
        checkpoint = str(Path(trainer.args.output_dir) / "checkpoint-4")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "'pin_memory'")
            trainer.train()
            trainer.train(resume_from_checkpoint=checkpoint)
        plain = SentenceTransformerTrainer(loss.model, arguments(), data, loss=loss)
        if method == "simcse":
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.filterwarnings("ignore", "'pin_memory'")
                plain.train(resume_from_checkpoint=checkpoint)


def test_a_run_that_ended_is_not_trained_on(made, arguments, ended):
    """Killed after its last checkpoint, in mid-epoch: the trainer alone would make one more step."""
    for method in ("conisi", "twins"):
        loss, data = made(method)
        options = {"max_steps": 5, "lr_scheduler_type": "constant", "output_dir": f"{arguments().output_dir}-{method}"}
        ContrastiveTrainer(loss.model, arguments(**options), data, loss=loss).train()
        expected = ended(loss)
        loss, data = made(method)
        again = ContrastiveTrainer(loss.model, arguments(**options), data, loss=loss)
        assert again.train(resume_from_checkpoint=True).global_step == 5
        assert again.state.global_step == 5
        assert_equal(expected, ended(loss))
        fewer = ContrastiveTrainer(loss.model, arguments(**{**options, "max_steps": 3}), data, loss=loss)
        with pytest.raises(ValueError, match="is at step 5, max_steps is 3"):
            fewer.train(resume_from_checkpoint=True)


def test_another_runs_checkpoints_in_the_folder(made, arguments):
    loss, data = made("conisi")
    ContrastiveTrainer(loss.model, arguments(), data, loss=loss).train()
    folder = Path(arguments().output_dir)
    for entry in folder.iterdir():
        os.utime(entry, (0, 0))  # transformers goes by the folders' times
    options = arguments(max_steps=4, save_total_limit=1)
    ContrastiveTrainer(loss.model, options, data, loss=loss).train()
    assert [entry.name for entry in folder.iterdir()] == ["checkpoint-4"]
    ContrastiveTrainer(loss.model, arguments(max_steps=8), data, loss=loss).train()
    for state in folder.glob("checkpoint-*/trainer_state.json"):
        os.utime(state, (1, 1))  # older than what follows, also where times are whole seconds
    trainer = ContrastiveTrainer(loss.model, arguments(max_steps=4), data, loss=loss)
    trainer.train()
    with pytest.raises(ValueError, match=r"checkpoint-4 was written after checkpoint-8.*name one as resume_from"):
        trainer.train(resume_from_checkpoint=True)


@pytest.mark.parametrize("inside", ["replaced", "made"])
def test_killed_between_the_two_renames(made, arguments, inside):
    loss, data = made("conisi")
    trainer = ContrastiveTrainer(loss.model, arguments(max_steps=2), data, loss=loss)
    trainer.train()
    folder = Path(trainer.args.output_dir)
    work = folder / "_checkpoint_in_work" / ("replaced" if inside == "replaced" else "")
    work.mkdir(parents=True)
    (folder / "checkpoint-2").rename(work / "checkpoint-2")
    trainer = ContrastiveTrainer(loss.model, arguments(max_steps=3), data, loss=loss)
    assert trainer.train(resume_from_checkpoint=True).global_step == 3
    assert sorted(entry.name for entry in folder.iterdir()) == ["checkpoint-2", "checkpoint-3"]


def test_a_refused_resume_leaves_the_encoder(made, arguments, ended):
    loss, data = made("conisi")
    ContrastiveTrainer(loss.model, arguments(), data, loss=loss).train()
    other, data = made("conisi", temperature=0.5)
    before = ended(other)
    with pytest.raises(LossStateError, match="temperature"):
        ContrastiveTrainer(other.model, arguments(), data, loss=other).train(resume_from_checkpoint=True)
    assert_equal(before, ended(other))


def test_a_loss_that_was_trained_is_warned_of_again_when_it_is_resumed(made, arguments):
    loss, data = made("twins")
    trainer = SentenceTransformerTrainer(loss.model, arguments(), data, loss=loss)
    checkpoint = str(Path(trainer.args.output_dir) / "checkpoint-4")
    trainer.train()
    with pytest.warns(UserWarning, match="resumed at step 4 without the state that TwinsLoss owns"):
        trainer.train(resume_from_checkpoint=checkpoint)


def test_the_callback_goes_with_one_trainer_and_its_losses(made, arguments):
    loss, data = made("conisi")
    other, _ = made("conisi")
    for callbacks, message in (
        ([LossStateCallback(loss), LossStateCallback(loss)], "more than one LossStateCallback"),
        ([LossStateCallback(other)], "was given ConIsILoss, but the trainer trains ConIsILoss"),
    ):
        for trainer_class in (SentenceTransformerTrainer, ContrastiveTrainer):
            trainer = trainer_class(loss.model, arguments(), data, loss=loss, callbacks=callbacks)
            with pytest.raises(ValueError, match=message):
                trainer.train()


@pytest.mark.parametrize("kind", ["trainer", "callback"])
def test_batches_of_one_sentence_need_a_queue(made, arguments, kind):
    loss, data = made("conisi")
    with pytest.raises(ValueError, match="per_device_train_batch_size 1 leaves no other sentence"):
        trainer_of(kind, loss, data, arguments(per_device_train_batch_size=1)).train()
    loss.gather_across_devices = True  # of which there is one
    with pytest.raises(ValueError, match="per_device_train_batch_size 1 leaves no other sentence"):
        trainer_of(kind, loss, data, arguments(per_device_train_batch_size=1)).train()
    loss, data = made("twins")
    trained = trainer_of(kind, loss, data, arguments(per_device_train_batch_size=1, max_steps=2)).train()
    assert trained.global_step == 2


def test_the_callback_brings_the_best_models_loss_state(made, arguments, sentences):
    loss, data = made("twins")
    states = {}

    class Keeps(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            states[state.global_step] = loss.queue.keys.clone()

    evaluator = EmbeddingSimilarityEvaluator(sentences[:2], sentences[2:4], [0.1, 0.9], show_progress_bar=False)
    options = arguments(eval_strategy="steps", eval_steps=2, load_best_model_at_end=True)
    options.metric_for_best_model = "eval_spearman_cosine"
    trainer = trainer_of("callback", loss, data, options, callbacks=[Keeps()], evaluator=evaluator)
    trainer.train()
    best = int(trainer.state.best_model_checkpoint.rsplit("-", 1)[1])
    assert torch.equal(loss.queue.keys, states[best])


def test_uploads_are_made_of_the_finished_checkpoint(made, arguments, monkeypatch):
    loss, data = made("conisi")
    trainer = ContrastiveTrainer(loss.model, arguments(max_steps=2), data, loss=loss)
    trainer.args.push_to_hub = True
    seen = []
    monkeypatch.setattr(
        SentenceTransformerTrainer,
        "_push_from_checkpoint",
        lambda self, folder: seen.append((Path(folder).name, sorted(entry.name for entry in Path(folder).iterdir()))),
    )
    monkeypatch.setattr(trainer, "init_hf_repo", lambda *_, **__: None)
    trainer.train()
    assert [name for name, _ in seen] == ["checkpoint-2"]
    assert {"loss_state.safetensors", "trainer_state.json"} <= set(seen[0][1])


class Gradients(TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        groups = optimizer.param_groups
        self.seen.append([p.grad.clone() for g in groups for p in g["params"] if p.grad is not None])


def norm(gradients):
    return torch.stack([gradient.norm() for gradient in gradients]).norm().item()


@pytest.mark.parametrize("kind", ["trainer", "callback"])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_all_gradients_are_clipped_in_one_norm(made, arguments, kind, accumulated):
    """Before the callback nothing is clipped; behind it, encoder and loss by the one factor."""
    most = 0.01
    options = {"max_steps": 2, "gradient_accumulation_steps": accumulated, "save_strategy": "no"}
    loss, data = made("conisi")
    before, after = Gradients(), Gradients()
    trainer = trainer_of(kind, loss, data, arguments(max_grad_norm=most, **options), callbacks=[before])
    trainer.add_callback(after)
    trainer.train()
    assert trainer.args.max_grad_norm == most
    loss, data = made("conisi")
    unclipped = Gradients()
    trainer_of(kind, loss, data, arguments(max_grad_norm=0, **options), callbacks=[unclipped]).train()
    assert len(before.seen) == len(after.seen) == 2
    assert len(before.seen[0]) > 70
    for plain, raw in zip(unclipped.seen[0], before.seen[0], strict=True):
        assert torch.equal(plain, raw)
    for raw, clipped in zip(before.seen, after.seen, strict=True):
        assert norm(raw) > 2 * most
        factor = most / (norm(raw) + 1e-6)
        for whole, part in zip(raw, clipped, strict=True):
            torch.testing.assert_close(part, whole * factor, rtol=1e-5, atol=1e-12)


def test_sentence_transformers_alone_does_not_clip_what_a_loss_owns(made, arguments):
    """The reason for the callback: when this fails, sentence-transformers clips it itself."""
    loss, data = made("conisi")
    seen = Gradients()
    options = {"max_steps": 1, "max_grad_norm": 1e-3, "save_strategy": "no"}
    SentenceTransformerTrainer(loss.model, arguments(**options), data, loss=loss, callbacks=[seen]).train()
    assert norm(seen.seen[0]) > 1e-2


@pytest.mark.parametrize("kind", ["trainer", "callback"])
def test_a_step_that_fails_takes_no_limit_away(made, arguments, kind):
    loss, data = made("conisi")
    options = arguments(max_grad_norm=0.07, save_strategy="no", max_steps=2)

    class Fails(TrainerCallback):
        def on_pre_optimizer_step(self, *_, **__):
            raise RuntimeError("no memory")

    trainer = trainer_of(kind, loss, data, options)
    trainer.callback_handler.callbacks.insert(0, Fails())
    with pytest.raises(RuntimeError, match="no memory"):
        trainer.train()
    if kind == "trainer":
        assert options.max_grad_norm == 0.07
        assert not loss._state_is_kept
    seen = Gradients()
    trainer = trainer_of(kind, loss, data, options)
    trainer.add_callback(seen)
    trainer.train()
    assert [norm(gradients) for gradients in seen.seen] == pytest.approx([0.07] * 2, rel=1e-3)
    assert options.max_grad_norm == 0.07


def test_a_limit_below_zero_is_none(made, arguments):
    """As in transformers."""
    found = []
    for limit in (0, -1):
        loss, data = made("conisi")
        seen = Gradients()
        trainer = ContrastiveTrainer(
            loss.model, arguments(max_grad_norm=limit, max_steps=2, save_strategy="no"), data, loss=loss
        )
        trainer.add_callback(seen)
        trainer.train()
        found.append([norm(gradients) for gradients in seen.seen])
    assert found[0] == found[1]


def test_float16_with_a_gradient_scaler(made, arguments, ended):
    """accelerate keeps float16 off CPUs; its scaler works on them, and is put in."""
    weights, norms = [], []
    for half in (False, True):
        loss, data = made("conisi", family="bert-mlm")
        seen = Gradients()
        options = arguments(max_steps=3, max_grad_norm=0.05, save_strategy="no", learning_rate=1e-4)
        trainer = ContrastiveTrainer(loss.model, options, data, loss=loss)
        trainer.add_callback(seen)
        if half:
            accelerator = trainer.accelerator
            accelerator.scaler, accelerator.native_amp = torch.amp.GradScaler("cpu", init_scale=2.0**12), True
            accelerator.state._mixed_precision = "fp16"
        try:
            trainer.train()
        finally:
            trainer.accelerator.state._mixed_precision = "no"
        weights.append(ended(loss))
        norms += [norm(gradients) for gradients in seen.seen]
    assert len(norms) == 6
    assert norms == pytest.approx([0.05] * 6, rel=1e-3)
    assert not torch.equal(weights[0]["head.linear.weight"], weights[1]["head.linear.weight"])
    for name in ("head.linear.weight", "model.0.model.encoder.layer.0.attention.self.query.weight"):
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=0, atol=1e-3)


def test_lazily_made_losses_and_one_a_dataset(build, sentences, arguments):
    model = build()
    trainer = ContrastiveTrainer(model, arguments(), stc.twins_dataset(sentences, sentences), loss=stc.TwinsLoss)
    trainer.train()
    datasets = {"a": stc.text_dataset(sentences), "b": stc.conisi_dataset(sentences)}
    losses = {"a": stc.SimCSELoss(model), "b": stc.ConIsILoss}
    trainer = ContrastiveTrainer(model, arguments(), datasets, loss=losses)
    trainer.train()
    expected = trainer.loss["b"].head.linear.weight.detach().clone()
    again = ContrastiveTrainer(build(), arguments(), datasets, loss={"a": stc.SimCSELoss, "b": stc.ConIsILoss})
    again.train(resume_from_checkpoint=True)
    assert torch.equal(again.loss["b"].head.linear.weight, expected)
    with pytest.raises(TypeError, match="function that makes the loss goes with ContrastiveTrainer"):
        LossStateCallback(stc.TwinsLoss)


def test_checkpoints_are_complete_and_their_number_is_kept(made, arguments):
    loss, data = made("twins")
    trainer = ContrastiveTrainer(loss.model, arguments(save_total_limit=2), data, loss=loss)
    trainer.train()
    folder = Path(trainer.args.output_dir)
    assert sorted(entry.name for entry in folder.iterdir()) == ["checkpoint-4", "checkpoint-6"]
    names = {entry.name for entry in (folder / "checkpoint-6").iterdir()}
    assert names >= {"loss_state.safetensors", "trainer_state.json", "optimizer.pt", "scheduler.pt", "modules.json"}
    # A model loads from a checkpoint as from any folder.
    from sentence_transformers import SentenceTransformer

    assert SentenceTransformer(str(folder / "checkpoint-6"), device="cpu").encode("rain").shape == (32,)


def test_the_best_model_comes_with_its_loss_state(made, arguments, sentences, tmp_path):
    loss, data = made("pretraining")

    class Falls(EmbeddingSimilarityEvaluator):
        """Scores fall, so that the first checkpoint is the best."""

        calls = 0

        def __call__(self, *args, **kwargs):
            self.calls += 1
            return {"score": -self.calls}

    evaluator = Falls(sentences[:2], sentences[2:4], [0.1, 0.9], show_progress_bar=False)
    options = arguments(
        eval_strategy="steps", eval_steps=2, load_best_model_at_end=True, metric_for_best_model="eval_score",
        greater_is_better=True, save_total_limit=1,
    )  # fmt: skip
    trainer = ContrastiveTrainer(loss.model, options, data, loss=loss, evaluator=evaluator)
    trainer.train()
    folder = Path(options.output_dir)
    assert trainer.state.best_model_checkpoint == str(folder / "checkpoint-2")
    # Only transformers' last tidying-up, with a limit of one, takes the newest away.
    assert [entry.name for entry in folder.glob("checkpoint-*")] == ["checkpoint-2"]
    state = json.loads((folder / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == str(folder / "checkpoint-2")
    best, _ = made("pretraining")
    load_loss_state(best, folder / "checkpoint-2")
    for name, parameter in best.network.named_parameters():
        assert torch.equal(parameter, dict(loss.network.named_parameters())[name]), name


def test_what_can_not_be_resumed_is_refused_with_the_remedy(made, arguments, tmp_path):
    loss, data = made("conisi")
    SentenceTransformerTrainer(loss.model, arguments(), data, loss=loss).train()
    folder = Path(arguments().output_dir)
    trainer = ContrastiveTrainer(loss.model, arguments(), data, loss=loss)
    with pytest.raises(FileNotFoundError, match=r"no complete checkpoint.*incomplete: checkpoint-6, checkpoint-4"):
        trainer.train(resume_from_checkpoint=True)
    shutil.rmtree(folder)
    trainer.train()
    (folder / "checkpoint-6" / "optimizer.pt").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"has no optimizer.pt\. .*Complete in .*: checkpoint-4, checkpoint-2\."
    ):
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-6"))
    with pytest.raises(FileNotFoundError, match="is not a folder"):
        trainer.train(resume_from_checkpoint="checkpoint-17")
    (folder / "checkpoint-4" / "trainer_state.json").write_text("{")
    trainer.train(resume_from_checkpoint=True)  # from checkpoint-2
    with pytest.raises(FileNotFoundError, match="holds no complete checkpoint to resume from"):
        ContrastiveTrainer(loss.model, arguments(output_dir=str(tmp_path / "new")), data, loss=loss).train(
            resume_from_checkpoint=True
        )
    other, data = made("conisi", temperature=0.2)
    with pytest.raises(ValueError, match=r"temperature is 0.2, saved with 0.1"):
        ContrastiveTrainer(other.model, arguments(), data, loss=other).train(resume_from_checkpoint=True)


def test_the_callback_finds_its_checkpoint_or_says_that_it_can_not(made, arguments, tmp_path, ended):
    loss, data = made("conisi")
    trainer_of("callback", loss, data, arguments()).train()
    expected = ended(loss)
    folder = Path(arguments().output_dir)
    moved = tmp_path / "elsewhere"
    shutil.move(folder / "checkpoint-4", moved)
    loss, data = made("conisi")
    with pytest.raises(FileNotFoundError, match=r"resume_from=.*ContrastiveTrainer"):
        trainer_of("callback", loss, data, arguments()).train(resume_from_checkpoint=str(moved))
    # Another run's checkpoint of the same step is not taken for it.
    shutil.copytree(folder / "checkpoint-2", folder / "checkpoint-4")
    with pytest.raises(FileNotFoundError, match="is not the checkpoint that it was resumed from"):
        trainer_of("callback", loss, data, arguments()).train(resume_from_checkpoint=str(moved))
    loss, data = made("conisi")
    care = LossStateCallback(loss, resume_from=moved)
    SentenceTransformerTrainer(loss.model, arguments(), data, loss=loss, callbacks=[care]).train(
        resume_from_checkpoint=str(moved)
    )
    assert_equal(expected, ended(loss))
    (folder / "checkpoint-2" / "loss_state.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no loss_state.*Complete in .*: checkpoint-6"):
        trainer_of("callback", loss, data, arguments()).train(resume_from_checkpoint=str(folder / "checkpoint-2"))


def test_a_folder_that_is_not_ours_is_left_alone(made, arguments, tmp_path):
    loss, data = made("conisi")
    mine = tmp_path / "run" / "checkpoint-2"
    mine.mkdir(parents=True)
    (mine / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="exists and is not a checkpoint"):
        ContrastiveTrainer(loss.model, arguments(), data, loss=loss).train()
    assert [entry.name for entry in (tmp_path / "run").rglob("*")] == ["checkpoint-2", "notes.txt"]
    options = arguments(output_dir=str(tmp_path / "file"))
    trainer = ContrastiveTrainer(loss.model, options, data, loss=loss)
    (tmp_path / "file").rmdir()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match=r"output_dir .*can't be written"):
        trainer.train()
    assert (tmp_path / "file").read_text() == "mine"


def test_an_earlier_runs_checkpoint_is_replaced_whole(made, arguments):
    for method in ("conisi", "twins"):
        loss, data = made(method)
        ContrastiveTrainer(loss.model, arguments(), data, loss=loss).train()
    again, _ = made("twins")
    load_loss_state(again, Path(arguments().output_dir) / "checkpoint-6")


def test_a_full_disk_leaves_the_checkpoints_before(made, arguments, ended):
    """A limit on the size of files stands in for the disk: the writes fail the same way."""
    loss, data = made("conisi")

    class Fills(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 4:
                resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))

    limits, old = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    trainer = ContrastiveTrainer(loss.model, arguments(), data, loss=loss, callbacks=[Fills()])
    try:
        with pytest.raises(OSError, match=r"checkpoint-4 could not be saved .*Complete checkpoints: checkpoint-2\."):
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)
    folder = Path(trainer.args.output_dir)
    assert [entry.name for entry in folder.iterdir()] == ["checkpoint-2"]
    loss, data = made("conisi")
    resumed = ContrastiveTrainer(loss.model, arguments(), data, loss=loss)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 6


def test_sharding_is_refused(made, arguments, monkeypatch, tmp_path):
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    loss, data = made("conisi")
    trainer = ContrastiveTrainer(loss.model, arguments(save_strategy="no"), data, loss=loss)
    monkeypatch.setattr(trainer.args, "deepspeed_plugin", object(), raising=False)
    with pytest.raises(ValueError, match="DeepSpeed shards"):
        trainer.state_callback.on_train_begin(trainer.args, trainer.state, trainer.control, model=loss.model)
    monkeypatch.undo()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for layer in loss.model[0].model.encoder.layer:
            fully_shard(layer, mesh=dist.device_mesh.init_device_mesh("cpu", (1,)))
        with pytest.raises(ValueError, match=r"FSDP shards.*Train under plain DDP"):
            trainer.state_callback.on_train_begin(trainer.args, trainer.state, trainer.control, model=loss.model)
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fit_resumes_through_the_two_functions(made, sentences, tmp_path, ended, monkeypatch):
    """As the docstring of load_loss_state has it: fit's own callback saves, and the loss is loaded before."""
    monkeypatch.chdir(tmp_path)
    examples = stc.twins_examples(sentences[:8], sentences[:0:-1][:8])
    evaluator = EmbeddingSimilarityEvaluator(sentences[:3], sentences[3:6], [0.1, 0.5, 0.9], show_progress_bar=False)

    def fit(loss, epochs, resume):
        def keep(score, epoch, step):
            if step % 3 == 0:
                save_loss_state(loss, f"checkpoints/checkpoint-{step}")

        loss.model.fit(
            [(DataLoader(examples, batch_size=4), loss)],
            evaluator=evaluator,
            epochs=epochs,
            evaluation_steps=3,
            callback=keep,
            checkpoint_path="checkpoints",
            checkpoint_save_steps=3,
            resume_from_checkpoint=resume,
            warmup_steps=0,
            scheduler="constantlr",
            optimizer_params={"lr": 1e-3},
            show_progress_bar=False,
        )

    loss, _ = made("twins")
    fit(loss, 3, resume=False)  # six steps
    expected = ended(loss)
    shutil.rmtree("checkpoints/checkpoint-6")
    loss, _ = made("twins")
    load_loss_state(loss, "checkpoints/checkpoint-3")
    assert len(loss.queue) > 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(loss, 3, resume=True)
    assert not any("resumed at step" in str(warning.message) for warning in caught)
    assert_equal(expected, ended(loss))
    shutil.rmtree("checkpoints/checkpoint-6")
    loss, _ = made("twins")
    with pytest.warns(UserWarning, match="resumed at step 3 .* with fit, call load_loss_state"):
        fit(loss, 3, resume=True)


def test_logged_terms_continue_between_two_logs(made, arguments):
    """The checkpoint of step 2 falls between the logs of steps 0 and 3."""
    loss, data = made("infocse")
    trainer = ContrastiveTrainer(loss.model, arguments(logging_steps=3), data, loss=loss)
    trainer.train()
    expected = [log for log in trainer.state.log_history if "loss" in log]
    loss, data = made("infocse")
    again = ContrastiveTrainer(loss.model, arguments(logging_steps=3), data, loss=loss)
    metrics = again.train(resume_from_checkpoint=str(Path(trainer.args.output_dir) / "checkpoint-2")).metrics
    found = [log for log in again.state.log_history if "loss" in log]
    assert [log["step"] for log in found] == [3, 6]
    assert found == expected
    assert {"contrastive", "mlm"} <= set(found[0])
    assert math.isfinite(metrics["train_loss"])


@pytest.mark.parametrize("method", ["SimCSELoss", "TwinsLoss", "InfoCSELoss"])
def test_each_run_of_a_search_starts_with_the_loss_as_it_was_given(build, sentences, arguments, method):
    def anew():
        torch.manual_seed(0)
        return build()

    data = stc.text_dataset(sentences)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TwinsLoss was given one column")
        trainer = ContrastiveTrainer(
            args=arguments(save_strategy="no", logging_steps=1), train_dataset=data, loss=getattr(stc, method),
            model_init=anew,
        )  # fmt: skip
        logs = []
        for _ in range(2):
            trainer.train()
            logs.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert len(logs[0]) == 6
    assert logs[0] == logs[1]
    assert len(set(logs[0])) > 1
