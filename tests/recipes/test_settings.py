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
from st_contrastive.recipes import Recipe
from st_contrastive.recipes._settings import RUN, TRAINING, loss_arguments, resolve_settings, takes
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
    """``train(words)``: the recipe and the settings that the command would run."""
    seen = []

    def note(recipe, *, on_trainer, on_score, **settings):
        seen.append((recipe, settings))
        return recipes.Run(None, collapsed="not trained")

    def read(words):
        assert main(["train", *words]) == 1
        return seen.pop()

    monkeypatch.setattr(recipes, "run", note)
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
    expected = resolve_settings(Recipe("", "simcse", {}), given)
    for recipe, read in (on_the_command_line({"loss": "simcse", **given}), in_a_file({"loss": "simcse", **given})):
        assert resolve_settings(recipe, read) == expected
    assert {name: expected[name] for name in given} == given


@pytest.mark.parametrize("method", METHODS)
def test_every_argument_of_a_loss_goes_through_all_doors(method, on_the_command_line, in_a_file):
    known = {"out": None, "head": "tanh", "strategy": "other"}
    given = {name: known.get(name, default) for name, default in loss_arguments(METHODS[method]).items()}
    given = {name: 0.25 if value is None else value for name, value in given.items()}
    expected = resolve_settings(Recipe("", method, {}), {**given, "output_dir": "out"})
    settings = {"loss": method, "output_dir": "out", **given}
    for recipe, read in (on_the_command_line(settings), in_a_file(settings)):
        assert resolve_settings(recipe, read) == expected
    assert len(expected) >= 5


def test_the_first_stage_goes_through_all_doors(on_the_command_line, in_a_file):
    settings = {"recipe": "infocse-bert-base", "output_dir": "out", "stage1": {"learning_rate": 1e-3}}
    for chosen, read in (on_the_command_line({**settings, "stage1": "{learning_rate: 1e-3}"}),
                         in_a_file(settings)):  # fmt: skip
        assert (chosen.name, read["stage1"]) == ("infocse-bert-base", {"learning_rate": 1e-3})


def test_no_name_has_two_meanings():
    names = {field.name for field in dataclasses.fields(TrainingArguments)} | {*TRAINING}
    assert names & {*RUN} == {"output_dir"}
    for method in METHODS.values():
        assert not loss_arguments(method).keys() & (names | {*RUN})
        assert all(takes(Recipe("", method.name, {}), name) for name in loss_arguments(method))


def test_words_and_numbers_of_yaml_are_texts():
    text = "{segment: no, pooling: on, run_name: 12:30, data: 2024-01-02, column: [yes, 2024], max_steps: 1e2, dev: 7}"
    settings = resolve_settings("mini-simcse", recipes.parse(text))
    assert settings["segment"] == "no"
    assert settings["pooling"] == "on"
    assert settings["run_name"] == "12:30"
    assert settings["data"] == "2024-01-02"
    assert settings["column"] == ["yes", "2024"]
    assert settings["dev"] == "7"
    assert settings["max_steps"] == 100
    assert isinstance(settings["max_steps"], int)


@pytest.mark.parametrize("text", ["bf16: on", "repeats: no", "learning_rate: true", "max_steps: 2.5", "mix: half"])
def test_a_text_in_place_of_a_number_or_truth_value_is_refused(text):
    with pytest.raises(ValueError, match=f"^{text.partition(':')[0]} must be of type"):
        resolve_settings("mini-simcse", recipes.parse(text))


def test_none_on_the_command_line_removes_a_setting(on_the_command_line):
    options = {"recipe": "own-text", "mix": "none", "max_length": "none", "head": "none", "output_dir": "out"}
    recipe, given = on_the_command_line({**options, "report_to": "none"})
    settings = resolve_settings(recipe, given)
    assert settings["report_to"] == "none"  # a word of the Trainer's
    assert settings["head"] is None
    assert not {"mix", "max_length"} & settings.keys()
