"""The recipes as data: every value has its source, and is a setting that a run takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers.trainer_utils import IntervalStrategy

from st_contrastive import recipes
from st_contrastive.cli.recipes import as_yaml
from st_contrastive.methods import find_method
from st_contrastive.recipes import Recipe, RunPlan, setting_types


def settings_of(recipe, overrides):
    return RunPlan.from_recipe(recipe, overrides).settings()


def takes(recipe, name):
    return name in setting_types(find_method(recipe.loss))


ALL = {name: recipes.load(name) for name in recipes.names()}
FULL = {
    "simcse-bert-base", "simcse-bert-large", "simcse-roberta-base", "esimcse-bert-base", "diffcse-bert-base",
    "conisi-s-bert-base", "conisi-s-roberta-base", "conisi-s-bert-large", "conisi-o1-bert-base", "conisi-o2-bert-base",
    "twins-bert-base", "twins-bert-large", "twins-chinese", "infocse-bert-base", "infocse-bert-large",
}  # fmt: skip


def test_names():
    assert ALL.keys() >= FULL
    assert {*ALL} >= {"own-text", "mini-simcse", "mini-conisi", "mini-twins", "mini-infocse"}
    for name, expected in (
        ("simcse", "mini-simcse or simcse-bert-base or"),
        ("own-txt", "own-text"),
        ("unknown", "simcse"),
    ):
        with pytest.raises(ValueError, match=f"no recipe '{name}'.*{expected}"):
            recipes.load(name)


@pytest.mark.parametrize("name", ALL)
def test_each_setting_has_a_source_and_is_taken(name):
    recipe = ALL[name]
    assert recipe.title
    assert recipe.differs or recipe.notes
    assert recipe.sources.keys() == recipe.settings.keys() >= {"model", "learning_rate", "per_device_train_batch_size"}
    assert all(isinstance(source, str) and source for source in recipe.sources.values())
    assert [setting for setting in recipe.settings if not takes(recipe, setting)] == []
    if recipe.stage1 is not None:
        assert recipe.stage1_sources.keys() == recipe.stage1.keys() >= {"learning_rate", "mask_rate"}
        assert settings_of(Recipe("", "pretraining", {}), recipe.stage1)
    if name.startswith("mini-"):  # a trained encoder keeps its pooling
        assert "pooling" not in recipe.settings
    else:  # of the papers, which read every line
        assert recipe.settings.get("repeats", False) == (recipe.loss != "twins" and name != "own-text")


@pytest.mark.parametrize("name", ALL)
def test_what_is_printed_reads_as_the_same_settings(name):
    recipe = ALL[name]
    stage1 = {} if recipe.stage1 is None else {"stage1": recipe.stage1}
    assert recipes.parse("\n".join(as_yaml(recipe))) == {"loss": recipe.loss, **recipe.settings, **stage1}


# Read off the papers' texts and the authors' scripts, by hand.
NUMBERS = [
    ("simcse-bert-base", {"learning_rate": 3e-5, "per_device_train_batch_size": 64, "temperature": 0.05}),
    ("simcse-roberta-base", {"learning_rate": 1e-5, "per_device_train_batch_size": 512}),
    ("esimcse-bert-base", {"momentum": 0.995, "queue_size": 160}),
    ("conisi-s-bert-base", {"interaction_weight": 0.8, "max_length": 32, "strategy": "other"}),
    ("conisi-s-bert-large", {"interaction_weight": 0.1, "max_length": 28}),
    ("conisi-o1-roberta-base", {"interaction_weight": 0.1, "strategy": "subword", "model": "roberta-base"}),
    ("conisi-o2-bert-base", {"interaction_weight": 0.8, "strategy": "given", "antonyms": 1.0}),
    ("twins-bert-base", {"eval_steps": 151, "pooling": "mean", "train_pooling": "cls"}),
    ("twins-chinese", {"model": "bert-base-multilingual-uncased", "fraternal": "denpa92/bert-base-cantonese"}),
    ("infocse-bert-base", {"learning_rate": 7e-6, "num_train_epochs": 2, "mlm_weight": 1e-5, "mask_rate": 0.4}),
    ("infocse-bert-large", {"learning_rate": 7e-6, "mask_rate": 0.3, "split_layer": 6, "extra_layers": 2}),
]


@pytest.mark.parametrize(("name", "numbers"), NUMBERS, ids=[name for name, _ in NUMBERS])
def test_the_papers_numbers(name, numbers):
    assert {setting: ALL[name].settings[setting] for setting in numbers} == numbers


def test_the_first_stage():
    stage1 = {"learning_rate": 1e-4, "warmup_steps": 0.1, "weight_decay": 0.01, "num_train_epochs": 1}
    for name in ("infocse-bert-base", "infocse-bert-large"):
        assert ALL[name].stage1 == {**stage1, "mask_rate": 0.15, "auxiliary_weight": 1.0}


def test_numbers_without_a_dot_are_numbers():
    assert recipes.parse("{a: 3e-5, b: 1E2, c: -2e+3, d: 1e, e: 7}") == {
        "a": 3e-5, "b": 100.0, "c": -2000.0, "d": "1e", "e": 7,
    }  # fmt: skip
    with pytest.raises(ValueError, match="YAML"):
        recipes.parse("a: [")
    for twice in ("a: 1\nb: 2\na: 3", "stage1: {a: 1, a: 2}"):
        with pytest.raises(ValueError, match="a is set twice"):
            recipes.parse(twice)


def test_a_file_of_settings_holds_what_yaml_can_hold():
    given = {
        "learning_rate": 3e-5, "column": ("title", "body"), "model": Path("my encoder"), "head": None,
        "eval_strategy": IntervalStrategy.STEPS, "prompts": {"sentence": "query: "}, "fraternal": object(),
    }  # fmt: skip
    read = recipes.parse("\n".join(recipes.dump(given)))
    assert read == {
        **{name: value for name, value in given.items() if name != "fraternal"},
        "column": ["title", "body"], "model": "my encoder", "eval_strategy": "steps",
    }  # fmt: skip


def test_nothing_to_train_is_refused():
    for given in ({"num_train_epochs": 0}, {"max_steps": 0}, {"num_train_epochs": -1, "max_steps": -1}):
        with pytest.raises(ValueError, match=r"(max_steps 0|num_train_epochs \S+) leaves nothing to train"):
            settings_of("mini-simcse", given)
    with pytest.raises(ValueError, match="num_train_epochs 0"):
        settings_of("mini-simcse", {"max_steps": 5, "num_train_epochs": 0})
    assert settings_of("mini-simcse", {"max_steps": -1, "num_train_epochs": 0.5})["num_train_epochs"] == 0.5


def test_a_removed_setting_removes_nothing_else():
    """No limit of steps leaves the recipe's epochs, and no antonyms its strategy."""
    for steps in (-1, None):
        settings = settings_of("own-text", {"max_steps": steps})
        assert (settings["num_train_epochs"], settings.get("max_steps", -1)) == (2.5, -1)
    assert settings_of("conisi-o2-bert-base", {"antonyms": None})["strategy"] == "given"
    assert settings_of("own-text", {"eval_steps": None}).get("eval_steps") is None
    plan = RunPlan.from_yaml("recipe: own-text\nmodel: m\nlearning_rate: none", {"max_steps": "none", "bf16": "none"})
    assert not {"learning_rate", "max_steps", "bf16"} & {*plan.training}
    assert RunPlan.from_yaml("recipe: own-text", {"report_to": "none"}).training["report_to"] == "none"


@pytest.mark.parametrize("name", ["output_dir", "dev", "model", "segment", "run_name"])
def test_an_empty_name_is_refused(name):
    for empty in ("", " "):
        with pytest.raises(ValueError, match=f"{name} is empty"):
            settings_of("mini-simcse", {name: empty})
    assert settings_of("mini-simcse", {"prompts": ""})["prompts"] == ""


def test_a_loss_of_ones_own():
    recipe = Recipe("", "tests.losses_of_ones_own:Shrinking", {})
    assert takes(recipe, "factor")
    assert not takes(recipe, "temperature")
    passing = Recipe("", "tests.losses_of_ones_own:Passing", {})  # takes its base's arguments as **options
    assert all(takes(passing, name) for name in ("bias", "temperature", "gather_across_devices"))
    assert not takes(passing, "options")
    for name, match in (("no_such_module:Loss", "no_such_module"), ("tests.conftest:Loss", "Loss"), ("os:", "os:")):
        with pytest.raises(ValueError, match=match):
            settings_of(Recipe("", name, {}), {})
    with pytest.raises(TypeError, match=r"seed is an argument of .*Seeded and a setting of the run"):
        settings_of(Recipe("", "tests.losses_of_ones_own:Seeded", {}), {"seed": 1})


def test_what_is_given_goes_first():
    settings = settings_of("diffcse-bert-base", {"learning_rate": 1.0, "generator": None, "dev": None, "head": None})
    assert settings["learning_rate"] == 1.0
    assert settings["head"] is None  # which the loss takes
    assert not {"generator", "dev"} & settings.keys()
    assert "max_steps" not in settings_of("mini-simcse", {"num_train_epochs": 2})
    assert settings_of("mini-simcse", {"num_train_epochs": 2, "max_steps": 9})["max_steps"] == 9
    with pytest.raises(TypeError, match=r"xyz.*SimCSELoss.*temperature"):
        settings_of("mini-simcse", {"xyz": 4})
    with pytest.raises(ValueError, match=r"loss.*'bert'"):
        settings_of(Recipe("", "bert", {}), {})
