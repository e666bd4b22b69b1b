"""A recipe of two stages: the second starts with the encoder and the network that the first left."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
import torch
from sentence_transformers import SentenceTransformer

from st_contrastive.cli import _models, main, pretrain
from st_contrastive.components import load_auxiliary
from st_contrastive.recipes import RECIPES, Setting
from tests.filters import TRAINING

pytestmark = [pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head"), *TRAINING]


@pytest.fixture
def corpus(tmp_path, sentences):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(sentences), encoding="utf-8")
    return path


def with_stage1(monkeypatch, **changes):
    """Other settings of the recipes' first stage."""
    for name in ("infocse-bert-base", "mini-infocse-stage1"):
        stage1 = {**RECIPES[name].stage1, **{key: Setting(value, "the test") for key, value in changes.items()}}
        monkeypatch.setitem(RECIPES, name, dataclasses.replace(RECIPES[name], stage1=stage1))


@pytest.fixture(autouse=True)
def quick_first_stages(monkeypatch):
    """Two steps at a learning rate that moves every weight."""
    with_stage1(monkeypatch, learning_rate=1e-2, max_steps=2)


@pytest.fixture
def words(checkpoint, corpus, tmp_path):
    """A joint stage that hardly moves its encoder: one step at a learning rate of 1e-12."""
    words = ["train", "--recipe", "infocse-bert-base", "--model", str(checkpoint("bert-mlm")), "--data", str(corpus)]
    words += ["--output", str(tmp_path / "out"), "--batch-size", "4", "--dev", "none"]
    return [*words, "--learning-rate", "1e-12", "--max-steps", "1", "--epochs", "1"]


def weights(model):
    return dict(SentenceTransformer(str(model), device="cpu")[0].model.named_parameters())


def furthest(found, others):
    """The largest difference of two encoders, but for a pooler, which is not trained."""
    assert found.keys() == others.keys()
    names = [name for name in found if "pooler" not in name]
    assert len(names) > 60
    return max((found[name] - others[name]).abs().max().item() for name in names)


def record_of(folder):
    return json.loads((folder / "training_run.json").read_text())


@pytest.mark.parametrize("recipe", ["infocse-bert-base", "mini-infocse-stage1"])
def test_the_joint_stage_starts_with_both_that_the_first_left(words, checkpoint, tmp_path, recipe, capsys, monkeypatch):
    words[2] = recipe
    taken = []
    monkeypatch.setattr(
        "st_contrastive.losses._auxiliary.load_auxiliary",
        lambda *args, **kw: taken.append(load_auxiliary(*args, **kw)) or taken[-1],
    )
    assert main(words) == 0, capsys.readouterr().err
    base, stage1, out = (
        weights(folder) for folder in (checkpoint("bert-mlm"), tmp_path / "out-stage1", tmp_path / "out")
    )
    assert furthest(stage1, base) > 1e-2  # the first stage moved the encoder,
    assert furthest(out, stage1) < 1e-9  # and the joint stage began there
    (network,) = taken
    lower = dict(network.network.named_parameters())["encoder.layer.0.output.dense.weight"]
    assert torch.equal(lower, stage1["encoder.layer.0.output.dense.weight"])

    record = record_of(tmp_path / "out")
    assert record["options"]["model"] == checkpoint("bert-mlm").name  # the base stays known
    assert record["options"]["stage1"] == record["loss"]["auxiliary"] == "out-stage1"
    assert {"data", "model", "stage1"} == record["files"].keys()
    first = record_of(tmp_path / "out-stage1")
    assert first["options"]["model"] == record["options"]["model"]
    assert first["files"]["model"] == record["files"]["model"] != record["files"]["stage1"]
    assert not {"stage1", "auxiliary"} & first["options"].keys()

    # The first stage that is there is taken, to the same end.
    monkeypatch.setattr(pretrain, "run", lambda args: pytest.fail("stage 1 was run again"))
    assert main([*words, "--overwrite"]) == 0
    assert "Stage 1 has been run: using the encoder and the auxiliary network in" in capsys.readouterr().out
    assert furthest(weights(tmp_path / "out"), out) == 0


def test_with_a_network_given_there_is_no_first_stage_and_the_encoder_is_as_named(words, checkpoint, tmp_path, capsys):
    assert main(words) == 0, capsys.readouterr().err
    stage1, out = tmp_path / "out-stage1", tmp_path / "given"
    words = [*words, "--output", str(out), "--auxiliary", str(stage1)]
    assert main(words) == 0, capsys.readouterr().err
    assert not (tmp_path / "given-stage1").exists()
    assert furthest(weights(out), weights(checkpoint("bert-mlm"))) < 1e-9
    assert "stage1" not in record_of(out)["options"]
    assert main([*words, "--overwrite", "--model", str(stage1)]) == 0  # what the recipe does, word by word
    assert furthest(weights(out), weights(tmp_path / "out")) < 1e-9


def test_both_stages_have_one_pooling_and_keep_the_encoders_length(words, checkpoint, tmp_path, capsys):
    words = [*words, "--pooling", "mean", "--max-length", "12"]
    assert main(words) == 0, capsys.readouterr().err
    length = SentenceTransformer(str(checkpoint("bert-mlm")), device="cpu").max_seq_length
    for name in ("out", "out-stage1"):
        model = SentenceTransformer(str(tmp_path / name), device="cpu")
        assert (model[1].pooling_mode, model.max_seq_length) == ("mean", length)
        assert record_of(tmp_path / name)["options"]["max_length"] == 12
    assert main([*words, "--overwrite", "--pooling", "cls"]) == 2  # it was trained on another sentence vector
    assert "was made with pooling 'mean', not 'cls'" in capsys.readouterr().err


def test_a_two_stage_run_that_was_cut_short_goes_on(words, tmp_path, capsys, monkeypatch):
    checkpoints = tmp_path / "checkpoints"
    words = [
        *words,
        "--learning-rate",
        "1e-3",
        "--max-steps",
        "4",
        "--checkpoints",
        str(checkpoints),
        "--checkpoint-steps",
        "2",
    ]
    assert main(words) == 0, capsys.readouterr().err
    whole = (tmp_path / "out" / "model.safetensors").read_bytes()
    shutil.rmtree(checkpoints / "checkpoint-4")
    assert main([*words, "--resume", "--overwrite"]) == 0, capsys.readouterr().err
    assert "Resuming from" in capsys.readouterr().out
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == whole
    for name in ("out-stage1", "checkpoints-stage1"):
        shutil.rmtree(tmp_path / name)
    with_stage1(monkeypatch, learning_rate=1e-4)  # another first stage in its place
    assert main([*words, "--resume", "--overwrite"]) == 2
    assert "--stage1's SHA-256 was" in capsys.readouterr().err


def test_the_first_stage_is_beside_the_working_directory(words, tmp_path, monkeypatch):
    """In it, it would be replaced with the second's output."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    words[words.index("--output") + 1] = "."
    assert main(words) == 0
    assert record_of(tmp_path / "here-stage1")["loss"]["class"] == "AuxiliaryMLMPretrainingLoss"
    assert record_of(folder)["loss"]["class"] == "InfoCSELoss"


def test_the_warm_up_that_was_given_is_that_of_both_stages(words, tmp_path):
    assert main([*words, "--warmup", "0.5"]) == 0
    assert [record_of(tmp_path / name)["options"]["warmup"] for name in ("out", "out-stage1")] == [0.5, 0.5]


def test_the_model_card_names_the_base(words, checkpoint, tmp_path, monkeypatch, capsys):
    name = "organisation/encoder"
    monkeypatch.setattr(_models, "_installed", lambda asked: str(checkpoint("bert-mlm")) if asked == name else asked)
    words = [*words, "--model", name]
    assert main(words) == 0, capsys.readouterr().err
    assert f"base_model: {name}" in (tmp_path / "out" / "README.md").read_text()
    assert record_of(tmp_path / "out")["options"]["model"] == name


@pytest.mark.parametrize("recipe", ["infocse-bert-base", "mini-infocse"])
def test_no_network_means_no_first_stage_either(words, checkpoint, tmp_path, recipe, capsys, monkeypatch):
    words[2] = recipe
    monkeypatch.setattr(pretrain, "run", lambda args: pytest.fail("stage 1 was run"))
    assert main([*words, "--auxiliary", "none"]) == 0, capsys.readouterr().err
    output = capsys.readouterr().out
    assert ("auxiliary = None  (given)" in output) == (recipe == "infocse-bert-base")
    assert ("no stage 1" in output) == (recipe == "mini-infocse")  # as the recipe has it
    assert "  stage 1 learning_rate" not in output
    assert not (tmp_path / "out-stage1").exists()
    assert furthest(weights(tmp_path / "out"), weights(checkpoint("bert-mlm"))) < 1e-9
    record = record_of(tmp_path / "out")
    assert record["loss"]["auxiliary"] is None
    assert not {"auxiliary", "stage1"} & record["options"].keys()


def test_no_network_without_a_recipe(words, tmp_path, capsys):
    words = ["train", "--method", "infocse", *words[3:]]
    assert main([*words, "--auxiliary", "none"]) == 0, capsys.readouterr().err
    assert record_of(tmp_path / "out")["loss"]["auxiliary"] is None
