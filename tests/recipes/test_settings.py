"""Every setting can be given in Python, in a file and on the command line; and what a file holds is read as meant."""

from __future__ import annotations

import dataclasses
import json
from typing import get_args, get_type_hints

import pytest
from sentence_transformers import SentenceTransformerTrainingArguments as TrainingArguments

from st_contrastive import recipes
from st_contrastive.cli import main
from st_contrastive.methods import METHODS
from st_contrastive.recipes import RUN, TRAINING, Recipe, RunPlan, loss_arguments, setting_types
from st_contrastive.recipes.recipe import is_text
from st_contrastive.settings import RunSettings

CHOICE = ("recipe", "loss", "stage1")
#: A value for each setting whose default or annotation does not give one.
VALUES = {
    "column": "title,body", "languages": ["no", "en"], "segment": "no", "pairs": "first",
    "pooling": "lasttoken",
}  # fmt: skip


def example(name, kind):
    kinds = get_args(kind) or (kind,)
    if name in VALUES:
        return VALUES[name]
    return True if bool in kinds else 3 if int in kinds else 0.25 if float in kinds else "words"


@pytest.fixture
def train(monkeypatch):
    """``train(words)``: the plan that the command would run."""
    seen = []

    def note(plan, **_):
        seen.append(plan)
        return recipes.Run(None, collapsed="not trained")

    def read(words):
        assert main(["train", *words]) == 1
        return seen.pop()

    monkeypatch.setattr(recipes, "run_plan", note)
    return read


@pytest.fixture
def on_the_command_line(train):
    def read(settings):
        words = []
        for name, value in settings.items():
            values = value if isinstance(value, list) else [value]
            words += [f"--{name}", *(word if isinstance(word, str) else json.dumps(word) for word in values)]
        return train(words)

    return read


@pytest.fixture
def in_a_file(train, tmp_path):
    def read(settings):
        file = tmp_path / "settings.yaml"
        file.write_text("\n".join(recipes.dump(settings)), encoding="utf-8")
        return train([str(file)])

    return read


def test_every_setting_of_a_run_goes_through_all_doors(on_the_command_line, in_a_file):
    kinds = get_type_hints(RunSettings)
    assert {field.name for field in dataclasses.fields(RunSettings)} == {*RUN, *CHOICE}
    given = {name: example(name, kind) for name, kind in kinds.items() if name not in CHOICE}
    assert len(given) > 12
    expected = RunPlan.from_recipe(Recipe("", "simcse", {}), given)
    for plan in (on_the_command_line({"loss": "simcse", **given}), in_a_file({"loss": "simcse", **given})):
        assert plan == expected
    assert expected.settings() == given


@pytest.mark.parametrize("method", METHODS)
def test_every_argument_of_a_loss_goes_through_all_doors(method, on_the_command_line, in_a_file):
    types = setting_types(METHODS[method])
    texts = {"head": "tanh", "strategy": "other", "train_pooling": "cls"}
    given = {
        name: default if default is not None else texts.get(name, "words" if is_text(types[name]) else 0.25)
        for name, default in loss_arguments(METHODS[method]).items()
    }
    expected = RunPlan.from_recipe(Recipe("", method, {}), {**given, "output_dir": "out"})
    settings = {"loss": method, "output_dir": "out", **given}
    for plan in (on_the_command_line(settings), in_a_file(settings)):
        assert plan == expected
    assert expected.loss == given
    assert len(given) >= 4


def test_the_first_stage_goes_through_all_doors(on_the_command_line, in_a_file):
    settings = {"recipe": "infocse-bert-base", "output_dir": "out", "stage1": {"learning_rate": 1e-3}}
    for plan in (on_the_command_line({**settings, "stage1": "{learning_rate: 1e-3}"}), in_a_file(settings)):
        assert plan.recipe.name == "infocse-bert-base"
        assert plan.first_stage().training["learning_rate"] == 1e-3


def test_no_name_has_two_meanings():
    names = {field.name for field in dataclasses.fields(TrainingArguments)} | {*TRAINING}
    assert names & {*RUN} == {"output_dir"}
    for method in METHODS.values():
        assert not loss_arguments(method).keys() & (names | {*RUN})
        assert setting_types(method).keys() >= {*loss_arguments(method), *names, *RUN}


#: Scalars that YAML may read as a number, a truth value or a date.
WRITTEN = [
    "1",
    "007",
    "1e5",
    "2024_05_01",
    "2024-05-01",
    "12:30",
    "true",
    "no",
    "on",
    "0x1f",
    "1_000",
    "+1",
    ".5",
    "~x",
]


@pytest.mark.parametrize("text", WRITTEN)
@pytest.mark.parametrize("name", ["column", "output_dir", "model", "data", "run_name", "segment", "translations"])
def test_a_text_is_read_as_it_is_written(on_the_command_line, train, tmp_path, name, text):
    settings = {"loss": "simcse", "output_dir": "out", name: text}
    file = tmp_path / "settings.yaml"
    file.write_text("".join(f"{key}: {value}\n" for key, value in settings.items()), encoding="utf-8")
    for plan in (train([str(file)]), on_the_command_line(settings)):
        assert plan.settings()[name] == text


def test_texts_in_lists_in_stages_and_of_a_loss(on_the_command_line, train, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text(
        "recipe: infocse-bert-base\noutput_dir: out\ncolumn: [1, 2024]\nlanguages: [no, 1e5]\ngenerator: 1e5\n"
        "prompts: {1: 007}\nstage1: {run_name: 1e5, learning_rate: 1e-3}\nmax_steps: 1e2\nhead: null\n"
    )
    settings = train([str(file)]).settings()
    assert settings["column"] == ["1", "2024"]
    assert settings["languages"] == ["no", "1e5"]
    assert settings["generator"] == "1e5"
    assert settings["prompts"] == {1: "007"}
    assert settings["stage1"]["run_name"] == "1e5"
    assert settings["stage1"]["learning_rate"] == 1e-3
    assert settings["max_steps"] == 100
    assert isinstance(settings["max_steps"], int)
    assert settings["head"] is None
    words = {"loss": "infocse", "output_dir": "out", "auxiliary": "2024_05_01", "head": "null"}
    assert on_the_command_line(words).loss == {"auxiliary": "2024_05_01", "head": None}


@pytest.mark.parametrize("text", ["bf16: on", "repeats: no", "learning_rate: true", "max_steps: 2.5", "mix: half"])
def test_a_text_in_place_of_a_number_or_truth_value_is_refused(text):
    with pytest.raises(ValueError, match=f"^{text.partition(':')[0]} must be of type"):
        RunPlan.from_yaml(f"recipe: mini-simcse\n{text}")


def test_a_number_in_place_of_a_text_is_refused():
    with pytest.raises(ValueError, match=r"column must be text, got 1"):
        RunPlan.from_recipe("mini-simcse", {"column": 1})


def test_none_on_the_command_line_removes_a_setting(on_the_command_line):
    options = {"recipe": "own-text", "mix": "none", "max_length": "none", "head": "none", "output_dir": "out"}
    settings = on_the_command_line({**options, "report_to": "none"}).settings()
    assert settings["report_to"] == "none"  # a word of the Trainer's
    assert settings["head"] is None
    assert not {"mix", "max_length"} & settings.keys()
