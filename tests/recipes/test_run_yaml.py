"""run.yaml: it holds in any folder, and is written when training begins; and what a resumed run is compared with."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
from transformers import TrainerCallback

from st_contrastive import recipes
from st_contrastive.cli import main
from st_contrastive.recipes import Recipe, RunPlan
from tests.cases import SENTENCES, assert_equal

RECIPE = Recipe("", "simcse", {})


class KilledError(Exception):
    pass


class KilledAfterSaving(TrainerCallback):
    def on_save(self, *args, **kwargs):
        raise KilledError


def kill_after_saving(trainer):
    trainer.add_callback(KilledAfterSaving())


@pytest.fixture(scope="module")
def killed(checkpoint, tmp_path_factory):
    """A folder with encoder/, corpus.txt and out/, a run of four steps that was killed after two."""
    folder = tmp_path_factory.mktemp("killed")
    shutil.copytree(checkpoint("bert"), folder / "encoder")
    (folder / "corpus.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with pytest.raises(KilledError):
            recipes.run(RECIPE, on_trainer=kill_after_saving, **GIVEN)
    return folder


GIVEN = {
    "model": "encoder", "data": "corpus.txt", "output_dir": "out", "max_steps": 4, "save_steps": 2,
    "per_device_train_batch_size": 4, "logging_steps": 1,
}  # fmt: skip


@pytest.fixture
def folder(killed, tmp_path, monkeypatch):
    """A copy of it, which is the current folder."""
    shutil.copytree(killed, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"learning_rate": 1e-6}, "learning_rate is 1e-06, and was 5e-05"),
        ({"max_steps": 3}, "max_steps is 3, and was 4"),
        ({"temperature": 0.5}, "temperature is 0.5, saved with 0.05"),
        ({"loss": "momentum"}, "the loss is 'MomentumContrastLoss', saved with 'SimCSELoss'"),
        ({"pooling": "mean"}, "model has the modules .*'mean'.*, and had .*'cls'"),
        ({"data": SENTENCES[:5]}, "train_dataset is '5 rows.*10 rows"),
        ({"data": SENTENCES[::-1]}, "train_dataset is '10 rows.*10 rows"),
    ],
)
def test_a_resumed_run_is_the_run(folder, change, match):
    """The trainer compares it, and the loss."""
    before = Path("out", "run.yaml").read_bytes()
    given = {**GIVEN, **change}
    with pytest.raises(ValueError, match=match):
        recipes.run(Recipe("", given.pop("loss", "simcse"), {}), resume_from_checkpoint="true", **given)
    assert Path("out", "run.yaml").read_bytes() == before


def write_dev(name, factor):
    rows = [{"sentence1": text, "sentence2": text[::-1], "score": row * factor} for row, text in enumerate(SENTENCES)]
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_another_test_set_is_refused(checkpoint, tmp_path, monkeypatch):
    """The best score of the checkpoint is that of the first."""
    monkeypatch.chdir(tmp_path)
    write_dev("one.jsonl", 1)
    given = {**GIVEN, "model": str(checkpoint("bert")), "data": SENTENCES, "eval_steps": 2}
    with pytest.raises(KilledError):
        recipes.run(RECIPE, on_trainer=kill_after_saving, dev="one.jsonl", **given)
    Path("one.jsonl").rename("moved.jsonl")
    write_dev("one.jsonl", -1)  # another set of the same name
    with pytest.raises(ValueError, match=r"evaluator is \[\{'pairs': 10, .*\}\], and was \[\{'pairs': 10, "):
        recipes.run(RECIPE, resume_from_checkpoint=True, dev="one.jsonl", **given)
    run = recipes.run(RECIPE, resume_from_checkpoint=True, dev="moved.jsonl", **given)
    assert run.trainer.state.global_step == 4


def test_scores_and_mixtures_need_the_initial_weights(folder):
    """A checkpoint's model would be compared with itself."""
    given = {**GIVEN, "output_dir": "mixed", "mix": 0.5}
    with pytest.raises(KilledError):
        recipes.run(RECIPE, on_trainer=kill_after_saving, **given)
    with pytest.raises(ValueError, match="model has other weights than the start"):
        recipes.run(RECIPE, resume_from_checkpoint=True, **{**given, "model": "mixed/checkpoint-2"})
    assert recipes.run(RECIPE, resume_from_checkpoint=True, **given).saved == "mixture"


@pytest.mark.parametrize("killed_in", ["soup", "run2"])
def test_a_soup_goes_on_where_it_was_killed(checkpoint, tmp_path, killed_in):
    given = {"per_device_train_batch_size": 4, "data": SENTENCES, "model": str(checkpoint("bert")), "soup": 2}
    given |= {"learning_rate": 1e-2, "max_steps": 4, "save_steps": 2, "dev": None, "output_dir": tmp_path / "soup"}
    whole = recipes.run("simcse-bert-base", **{**given, "output_dir": tmp_path / "whole"})

    def kill(trainer):
        if Path(trainer.args.output_dir).name == killed_in:
            kill_after_saving(trainer)

    with pytest.raises(KilledError):
        recipes.run("simcse-bert-base", on_trainer=kill, **given)
    with pytest.raises(ValueError, match="soup is 3, and was 2"):
        recipes.run("simcse-bert-base", resume_from_checkpoint=True, **{**given, "soup": 3})
    resumed = recipes.run("simcse-bert-base", resume_from_checkpoint=True, **given)
    assert_equal(resumed.trainer.model.state_dict(), whole.trainer.model.state_dict())


def test_a_loss_that_does_not_describe_itself_is_compared(folder):
    loss = Recipe("", "tests.losses_of_ones_own:Shrinking", {})
    given = {**GIVEN, "output_dir": "own", "factor": 0.5}
    with pytest.raises(KilledError):
        recipes.run(loss, on_trainer=kill_after_saving, **given)
    with pytest.raises(ValueError, match=r"factor is 0\.1, and was 0\.5"):
        recipes.run(loss, resume_from_checkpoint=True, **{**given, "factor": 0.1})
    del given["factor"]  # 0.5 is its default
    recipes.run(loss, resume_from_checkpoint=True, **given)


def test_a_first_stage_that_has_ended_is_that_of_the_run(checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dev("one.jsonl", 1)
    given = {"data": SENTENCES, "output_dir": tmp_path, "model": str(checkpoint("bert-mlm")), "dev": "one.jsonl"}
    given |= {"max_steps": 2, "per_device_train_batch_size": 4, "stage1": {"learning_rate": 1e-3}}

    def kill(trainer):
        if trainer.args.output_dir == str(tmp_path):
            raise KilledError

    with pytest.raises(KilledError):
        recipes.run("infocse-bert-base", on_trainer=kill, **given)
    assert (tmp_path / "stage1" / "modules.json").is_file()
    for change, match in (
        ({"stage1": {"learning_rate": 1e-4}}, r"learning_rate is 0\.0001, and was 0\.001"),
        ({"seed": 7}, "seed is 7, and was 42"),
        ({"dev": "corpus"}, "dev is 'corpus', and was None"),
        ({"per_device_train_batch_size": 2}, "per_device_train_batch_size is 2, and was 4"),
    ):
        with pytest.raises(ValueError, match=match):
            recipes.run("infocse-bert-base", resume_from_checkpoint=True, **{**given, **change})
    more = {"max_steps": 3, "mini_batch_size": 2, "logging_steps": 1, "seed": 42, "max_grad_norm": 1.0}
    run = recipes.run("infocse-bert-base", resume_from_checkpoint=True, **{**given, **more})
    assert run.trainer.state.global_step == 3


def test_a_run_goes_on_from_its_newest_checkpoint(folder):
    whole = recipes.run(RECIPE, **{**GIVEN, "output_dir": "whole"})
    with pytest.raises(ValueError, match=r"output_dir .*out.*resume_from_checkpoint"):
        recipes.run(RECIPE, resume_from_checkpoint="false", **GIVEN)
    # Killed before its first checkpoint, one starts from the beginning.
    for name in ("out", "new"):
        with pytest.warns(match="has no checkpoint") if name == "new" else nullcontext():
            run = recipes.run(RECIPE, resume_from_checkpoint="true", **{**GIVEN, "output_dir": name})
        assert run.trainer.state.global_step == 4
        assert_equal(run.trainer.model.state_dict(), whole.trainer.model.state_dict())


def test_what_a_resumed_run_may_change_is_applied(folder):
    more = {"max_steps": 6, "logging_steps": 2, "save_steps": 3, "mix": 0.5, "mini_batch_size": 2, "weight_decay": 0.0}
    more |= {"data": SENTENCES, "model": folder / "encoder"}  # the same, by other names
    run = recipes.run(RECIPE, resume_from_checkpoint=True, **{**GIVEN, **more})
    assert (run.trainer.state.global_step, run.saved) == (6, "mixture")
    recorded = recipes.parse(Path("out", "run.yaml").read_text(encoding="utf-8"))
    assert (recorded["max_steps"], recorded["logging_steps"], recorded["mix"]) == (6, 2, 0.5)
    steps = [entry["step"] for entry in run.trainer.state.log_history if "loss" in entry]
    assert steps == [1, 2, 4, 6]


def test_one_checkpoint_of_another_folder_is_compared_too(folder):
    given = {**GIVEN, "output_dir": "new", "resume_from_checkpoint": "out/checkpoint-2"}
    with pytest.raises(ValueError, match="learning_rate"):
        recipes.run(RECIPE, **given, learning_rate=1e-6)
    assert recipes.run(RECIPE, **given).trainer.state.global_step == 4


def test_a_file_holds_in_any_folder(folder, killed, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    words = ["train", str(folder / "out" / "run.yaml"), "--max_steps", "1", "--output_dir"]
    assert main([*words, "here"]) == 0
    assert (elsewhere / "here" / "modules.json").is_file()
    recorded = recipes.parse((elsewhere / "here" / "run.yaml").read_text(encoding="utf-8"))
    assert "output_dir" not in recorded
    assert Path(recorded["model"]) == killed / "encoder"
    assert not [*folder.rglob("here")]


def test_a_run_that_was_moved_goes_on_where_it_is(folder):
    assert main(["train", "out/run.yaml", "--resume_from_checkpoint", "true"]) == 0
    assert (folder / "out" / "checkpoint-4").is_dir()


def test_a_run_that_was_killed_in_its_first_stage_is_the_folders(tmp_path, monkeypatch):
    (tmp_path / "out" / "stage1").mkdir(parents=True)
    (tmp_path / "out" / "run.yaml").write_text("loss: simcse\nmodel: no-such-model\ndata: no-such.txt\n")
    seen = []
    monkeypatch.setattr(recipes, "run_plan", lambda plan, **_: seen.append(plan) or recipes.Run(None, collapsed="so"))
    assert main(["train", str(tmp_path / "out" / "run.yaml")]) == 1
    assert seen[0].folder == tmp_path / "out"


def test_a_name_on_the_hub_and_a_word_stay_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus").mkdir()
    settings = {"loss": "simcse", "model": "bert-base-uncased", "dev": "corpus", "data": "corpus"}
    recorded = recipes.parse(RunPlan.from_yaml("", settings).to_yaml())
    assert recorded == {**settings, "data": str(tmp_path / "corpus")}


@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [("mini-conisi", {"antonyms": 1.0, "num_train_epochs": 2}), ("own-text", {"max_steps": 9, "mix": None}),
     ("own-text", {"max_steps": 9, "num_train_epochs": 2, "head": None, "column": ["a,b"], "max_length": None}),
     ("conisi-s-bert-base", {"repeats": False, "dev": None, "max_length": 9}),
     ("diffcse-bert-base", {"generator": None}),
     ("infocse-bert-base", {"stage1": {"learning_rate": 1e-3}}), ("infocse-bert-base", {"auxiliary": None}),
     ("infocse-bert-base", {"auxiliary": "me/network"}), (Recipe("", "pretraining", {}), {"mask_rate": 0.5}),
     (Recipe("", "simcse", {}), {"model": "1e5", "column": "1", "run_name": "2024_05_01", "bf16": True})],
)  # fmt: skip
def test_a_plan_is_read_as_it_was_written(recipe, overrides):
    """Also what is removed from a recipe, or replaced in it, and that there is no first stage."""
    plan = RunPlan.from_recipe(recipe, {**overrides, "data": "no file", "output_dir": "out"})
    again = RunPlan.from_yaml(plan.to_yaml(), {"output_dir": "out"})
    assert again.settings() == plan.settings()
    assert (again.first_stage() is None) == (plan.first_stage() is None)
    assert again.changes_from(plan) == {}


def test_a_refused_run_leaves_no_file(checkpoint, tmp_path):
    given = {"data": SENTENCES, "output_dir": tmp_path / "out", "model": str(checkpoint("bert"))}
    for wrong in ({"per_device_train_batch_size": 1, "head": None}, {"temperature": -1}):
        with pytest.raises(ValueError, match=r"per_device_train_batch_size 1|temperature"):
            recipes.run(RECIPE, **given, **wrong, max_steps=1)
        assert not (tmp_path / "out" / "run.yaml").exists()
    recipes.run(RECIPE, **given, max_steps=1, per_device_train_batch_size=4)
    assert (tmp_path / "out" / "run.yaml").is_file()
