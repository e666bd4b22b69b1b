"""Recipes as runs: what is built, trained and saved."""

from __future__ import annotations

import json
from itertools import pairwise, product

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator
from sentence_transformers.sentence_transformer.modules import Pooling

from st_contrastive import recipes
from st_contrastive.evaluation import STSEvaluator
from st_contrastive.recipes import Recipe, _build
from tests.conftest import SENTENCES
from tests.filters import TRAINING

pytestmark = [
    pytest.mark.filterwarnings("ignore:TwinsLoss was given one column"),
    pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head"),
    pytest.mark.filterwarnings("ignore:.*takes the encoder's dropout as its only augmentation"),
    *TRAINING,
]
SMALL = {"per_device_train_batch_size": 4, "max_steps": 2, "dev": None}


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{text}\t{text[::-1]}\n" for text in SENTENCES), encoding="utf-8")
    return path


@pytest.fixture
def dev(tmp_path):
    path = tmp_path / "dev.jsonl"
    rows = zip(SENTENCES, SENTENCES[::-1], strict=True)
    path.write_text(
        "".join(
            json.dumps({"sentence1": a, "sentence2": b, "score": score}) + "\n" for score, (a, b) in enumerate(rows)
        )
    )
    return path


def weights(folder):
    return load_file(folder / "model.safetensors")


def equal(first, second):
    assert first.keys() == second.keys()
    assert first
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "name",
    ["simcse-mlm-bert-base", "esimcse-bert-base", "diffcse-bert-base", "conisi-s-bert-base", "conisi-o1-roberta-base",
     "twins-bert-base", "infocse-bert-large", "mini-twins", "mini-infocse"],
)  # fmt: skip
def test_a_trainer_has_the_recipes_settings(checkpoint, pairs, tmp_path, name):
    recipe = recipes.load(name)
    encoder = str(checkpoint("bert-mlm"))
    given = {**SMALL, "model": encoder, "max_length": 12}
    given |= {"generator": encoder} if "generator" in recipe.settings else {}
    given |= {"split_layer": 2, "extra_layers": 1} if "split_layer" in recipe.settings else {}
    data = {"data": SENTENCES}
    if "fraternal" in recipe.settings:
        data = {"translations": pairs, "fraternal": encoder}
    trainer = recipes.trainer(recipe, output_dir=tmp_path / "out", **data, **given)
    assert trainer.args.learning_rate == recipe.settings["learning_rate"]
    assert trainer.model.max_seq_length == 12
    config = trainer.loss.get_config_dict()
    compared = recipe.settings.keys() & config.keys() - given.keys() - data.keys()
    assert {setting: config[setting] for setting in compared} == {s: recipe.settings[s] for s in compared}
    assert "temperature" in compared
    assert len(trainer.train_dataset.column_names) == (2 if "repetition" in recipe.settings or len(data) == 2 else 1)
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    assert trainer.train().global_step == 2
    assert not equal(before, trainer.model.state_dict())


def test_two_stages(checkpoint, tmp_path):
    out, stages = tmp_path / "out", []
    given = {**SMALL, "data": SENTENCES, "model": str(checkpoint("bert-mlm")), "on_trainer": stages.append}
    run = recipes.run("infocse-bert-base", output_dir=out, seed=7, stage1={"learning_rate": 1e-3}, **given)
    first, second = stages
    assert run.trainer is second
    assert (first.args.learning_rate, second.args.learning_rate) == (1e-3, 7e-6)
    assert (first.args.warmup_steps, second.args.warmup_steps) == (0.1, 0)
    assert [trainer.loss.get_config_dict()["mask_rate"] for trainer in stages] == [0.15, 0.4]
    assert [trainer.args.per_device_train_batch_size for trainer in stages] == [4, 4]
    assert [trainer.args.seed for trainer in stages] == [7, 7]
    assert [module.pooling_mode for module in second.model if isinstance(module, Pooling)] == ["cls"]
    assert (out / "stage1" / "auxiliary.safetensors").is_file()
    assert SentenceTransformer(str(out), device="cpu").max_seq_length == first.model.max_seq_length > 32
    # A run that goes on takes the first stage as it is.
    before, stages[:] = (out / "stage1" / "model.safetensors").stat().st_mtime_ns, []
    recipes.run("infocse-bert-base", output_dir=out, resume_from_checkpoint="true", **given)
    assert len(stages) == 1
    assert (out / "stage1" / "model.safetensors").stat().st_mtime_ns == before
    # With a network of the user's, or None, there is one stage.
    stages.clear()
    recipes.run("infocse-bert-base", output_dir=tmp_path / "other", auxiliary=None, **given)
    assert len(stages) == 1
    assert not (tmp_path / "other" / "stage1").exists()


def test_two_stages_are_measured_from_the_encoder_before_both(checkpoint, tmp_path):
    dev = tmp_path / "dev.jsonl"
    rows = [{"sentence1": a, "sentence2": f"{a} and {b}", "score": len(b)} for a, b in pairwise(SENTENCES)]
    dev.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {**SMALL, "data": SENTENCES, "model": str(checkpoint("bert-mlm")), "dev": str(dev), "learning_rate": 1e-7}
    given["max_length"] = 8
    first = recipes.trainer("infocse-bert-base", output_dir=tmp_path / "none", **given)
    start = first.model.state_dict()
    run = recipes.run("infocse-bert-base", output_dir=tmp_path / "out", stage1={"learning_rate": 1e-2}, **given)
    model, evaluator = recipes.load_model(str(checkpoint("bert-mlm")), "cls"), STSEvaluator(str(dev), "dev")
    assert run.before == evaluator(model)["dev_spearman"]  # reads whole texts, where training cuts its own
    model.max_seq_length = given["max_length"]
    assert run.before != evaluator(model)["dev_spearman"]
    assert run.before != run.after
    saved = SentenceTransformer(str(tmp_path / "out"), device="cpu").state_dict()
    assert equal(saved, start) != run.helped


def test_a_second_stage_that_is_not_there(tmp_path):
    with pytest.raises(TypeError, match="mini-infocse has one"):
        recipes.run("mini-infocse", data=SENTENCES, output_dir=tmp_path, stage1={"max_steps": 3})


@pytest.mark.parametrize("length", [0, -3, "long"])
def test_a_length_that_leaves_no_token(checkpoint, tmp_path, length):
    with pytest.raises(ValueError, match="max_length must be a whole number of at least 3"):
        recipes.run("mini-simcse", data=SENTENCES, output_dir=tmp_path, model=checkpoint("bert-mlm"), max_length=length)


def test_what_is_wrong_with_stage_2_is_said_before_stage_1(checkpoint, tmp_path):
    with pytest.raises(ValueError, match=r"temperature.*-1"):
        recipes.run(
            "infocse-bert-base", data=SENTENCES, output_dir=tmp_path / "out", model=str(checkpoint("bert-mlm")),
            temperature=-1, on_trainer=lambda trainer: pytest.fail("stage 1 began"), **SMALL,
        )  # fmt: skip


def test_the_same_seed_gives_the_same_run(checkpoint, tmp_path):
    model = str(checkpoint("bert"))
    for name, seed in (("first", 1), ("second", 1), ("third", 2)):
        recipes.run("simcse-bert-base", data=SENTENCES, output_dir=tmp_path / name, model=model, seed=seed, **SMALL)
        torch.rand(9)
    assert equal(weights(tmp_path / "first"), weights(tmp_path / "second"))
    assert not equal(weights(tmp_path / "first"), weights(tmp_path / "third"))


class Scripted(SentenceEvaluator):
    """Scores of a list, one a call."""

    def __init__(self, *scores, margin=0.0):
        super().__init__()
        self.name, self.primary_metric, self.scores, self.margin = "dev", "dev_spearman", list(scores), margin

    def __call__(self, model, output_path=None, epoch=-1, steps=-1):
        return {"dev_spearman": self.scores.pop(0)}


@pytest.mark.parametrize(
    ("scores", "margin", "helped"),
    [([0.5, 0.4, 0.7, 0.6, 0.7], 0.1, True), ([0.5, 0.4, 0.7, 0.6, 0.7], 0.3, False),
     ([0.5, 0.4, 0.3, 0.2, 0.4], 0.0, False), ([0.5, *[float("nan")] * 4], 0.0, False)],
)  # fmt: skip
def test_the_saved_weights_are_the_best_or_the_starting_ones(checkpoint, tmp_path, monkeypatch, scores, margin, helped):
    monkeypatch.setattr(_build, "_evaluator", lambda dev: Scripted(*scores, margin=margin))
    model = str(checkpoint("bert"))
    given = {**SMALL, "max_steps": 3, "eval_steps": 1, "dev": "x", "learning_rate": 1e-2}
    run = recipes.run("simcse-bert-base", data=SENTENCES, output_dir=tmp_path / "out", model=model, **given)
    assert (run.before, run.helped) == (0.5, helped)
    start = weights(checkpoint("bert"))
    assert equal(weights(tmp_path / "out"), start) == (not helped)
    if helped:
        assert run.after == 0.7
        assert equal(weights(tmp_path / "out"), weights(tmp_path / "out" / "checkpoint-2"))


def test_a_dev_file_is_scored_before_and_after(checkpoint, dev, tmp_path):
    given = {**SMALL, "dev": dev, "eval_steps": 2, "learning_rate": 0.0}
    run = recipes.run(
        "simcse-bert-base", data=SENTENCES, output_dir=tmp_path / "out", model=str(checkpoint("bert")), **given
    )
    assert run.before == run.after
    assert -1 <= run.before <= 1
    assert run.helped is False
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    scored = [(entry["step"], entry["eval_dev_spearman"]) for entry in state["log_history"] if "eval_runtime" in entry]
    assert [(0, run.before)] == [(entry["step"], entry["eval_dev_spearman"]) for entry in state["log_history"][:1]]
    assert scored
    assert set(scored) == {(2, run.after)}


def test_a_collapsed_run_saves_no_model(checkpoint, tmp_path):
    with pytest.warns(UserWarning, match="The run collapsed"):
        run = recipes.run(
            "simcse-bert-base", data=SENTENCES, output_dir=tmp_path / "out", model=str(checkpoint("bert")),
            **{**SMALL, "max_steps": 4, "learning_rate": 1e30, "logging_steps": 1},
        )  # fmt: skip
    assert run.collapsed
    assert not (tmp_path / "out" / "modules.json").exists()


def test_a_run_goes_on_from_its_newest_checkpoint(checkpoint, tmp_path):
    given = {**SMALL, "model": str(checkpoint("bert")), "data": SENTENCES, "max_steps": 4, "save_steps": 2}

    class KilledError(Exception):
        pass

    def kill(trainer):
        save = trainer._save_checkpoint

        def then_kill(*args):
            save(*args)
            raise KilledError

        trainer._save_checkpoint = then_kill

    recipes.run("simcse-bert-base", output_dir=tmp_path / "whole", **given)
    with pytest.raises(KilledError):
        recipes.run("simcse-bert-base", output_dir=tmp_path / "out", on_trainer=kill, **given)
    with pytest.raises(ValueError, match=r"output_dir .*out.*resume_from_checkpoint"):
        recipes.run("simcse-bert-base", output_dir=tmp_path / "out", **given)
    run = recipes.run("simcse-bert-base", output_dir=tmp_path / "out", resume_from_checkpoint="true", **given)
    assert run.trainer.state.global_step == 4
    assert equal(weights(tmp_path / "out"), weights(tmp_path / "whole"))
    # Killed before its first checkpoint, it starts from the beginning.
    recipes.run("simcse-bert-base", output_dir=tmp_path / "new", resume_from_checkpoint="true", **given)
    assert equal(weights(tmp_path / "new"), weights(tmp_path / "whole"))


def test_the_card_has_no_training_text_unless_asked(checkpoint, tmp_path):
    given = {**SMALL, "model": str(checkpoint("bert")), "data": SENTENCES}
    for asked in (False, True):
        out = tmp_path / str(asked)
        recipes.run("simcse-bert-base", output_dir=out, card_examples=asked, **given)
        card = (out / "README.md").read_text(encoding="utf-8")
        assert any(sentence in card for sentence in SENTENCES) == asked
        assert "SimCSELoss" in card


@pytest.mark.parametrize(
    ("family", "loss", "pooling"),
    [("bert", "simcse", "cls"), ("bert", "twins", "mean"), ("qwen", "simcse", "lasttoken"), ("qwen", "twins", "mean")],
)
def test_pooling_of_a_plain_checkpoint(checkpoint, tmp_path, family, loss, pooling):
    recipe = Recipe("", loss, {"model": str(checkpoint(family)), "max_length": 16})
    trainer = recipes.trainer(recipe, data=SENTENCES, output_dir=tmp_path / "out", per_device_train_batch_size=4)
    assert [module.pooling_mode for module in trainer.model if isinstance(module, Pooling)] == [pooling]


def test_a_saved_model_keeps_its_pooling_and_length(build, tmp_path):
    model = build(pooling="mean")
    model.max_seq_length, model.prompts, model.default_prompt_name = 40, {"query": "we "}, "query"
    model.save_pretrained(str(tmp_path / "model"))
    given = {**SMALL, "model": str(tmp_path / "model"), "data": SENTENCES, "max_length": 8}
    run = recipes.run("simcse-bert-base", output_dir=tmp_path / "out", **given)
    assert run.trainer.args.prompts == "we "
    again = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert (again.max_seq_length, again[1].pooling_mode) == (40, "mean")
    run = recipes.run("simcse-bert-base", output_dir=tmp_path / "cls", pooling="cls", **given)
    assert run.trainer.model[1].pooling_mode == "cls"


def test_several_visible_devices_keep_the_batch(checkpoint, tmp_path, monkeypatch):
    visible = property(lambda self: 1 if self._n_gpu == 1 else 2)
    monkeypatch.setattr(SentenceTransformerTrainingArguments, "n_gpu", visible)
    with pytest.warns(UserWarning, match="torchrun"):
        trainer = recipes.trainer(
            "simcse-bert-base", data=SENTENCES, output_dir=tmp_path, model=str(checkpoint("bert")), **SMALL
        )
    assert trainer.args.train_batch_size == 4


@pytest.mark.parametrize(
    ("recipe", "given", "match"),
    [
        ("mini-simcse", {"data": None}, "data"),
        ("mini-simcse", {"model": "/no/such"}, "model /no/such"),
        ("mini-simcse", {"pooling": "max"}, "pooling.*'max'"),
        ("mini-simcse", {"antonyms": True}, "antonyms.*conisi.*simcse"),
        ("mini-conisi", {"repetition": 0.2}, "repetition.*simcse, momentum.*conisi"),
        ("mini-simcse", {"dev": "/no/such"}, "/no/such"),
        ("mini-twins", {"translations": "x.tsv"}, "translations.*data"),
        ("twins-bert-base", {}, "translations"),
        (Recipe("", "simcse", {}), {"model": None}, "model"),
        (Recipe("", ["simcse"], {}), {}, "loss must be one of"),
        ("mini-simcse", {"max_steps": "two"}, "max_steps must be of type int.*'two'"),
        ("mini-simcse", {"learning_rate": "fast"}, "learning_rate must be of type float"),
    ],
)
def test_bad_input(checkpoint, tmp_path, recipe, given, match):
    arguments = {**SMALL, "model": str(checkpoint("bert")), "data": SENTENCES, **given}
    if "fraternal" in getattr(recipe, "settings", recipes.load(recipe).settings if isinstance(recipe, str) else {}):
        arguments["fraternal"] = str(checkpoint("bert"))
    with pytest.raises((OSError, ValueError), match=match):
        recipes.trainer(recipe, output_dir=tmp_path, **arguments)


def test_the_corpus_itself_is_the_dev(checkpoint, tmp_path):
    documents = [f"Here {a}. Then {b}. Number {row}." for row, (a, b) in enumerate(product(SENTENCES * 3, SENTENCES))]
    given = {**SMALL, "dev": "corpus", "eval_steps": 1, "model": str(checkpoint("bert"))}
    run = recipes.run("simcse-bert-base", data=documents, output_dir=tmp_path / "out", split="sentences", **given)
    assert run.before is not None
    assert run.helped == (run.after - run.before > run.margin)
    assert run.margin == run.trainer.evaluator.margin > 0
    trained = set(run.trainer.train_dataset["sentence"])
    held_out = [document for document in documents if f"Number {document.split()[-1]}" not in trained]
    assert len(held_out) == len(documents) // 10
