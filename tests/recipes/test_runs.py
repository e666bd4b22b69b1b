"""Recipes as runs: what is built, trained and saved."""

from __future__ import annotations

import json
import math
import random
import shutil
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator
from sentence_transformers.sentence_transformer.modules import Pooling

from benchmarks import run as benchmark
from st_contrastive import AuxiliaryMLMPretrainingLoss, inputs, recipes
from st_contrastive.evaluation import STSEvaluator, compare_paired
from st_contrastive.inputs.row_filter import get_row_counts
from st_contrastive.recipes import Recipe
from st_contrastive.recipes import data as run_data
from tests.cases import SENTENCES, WORDS

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
    assert trainer.max_length == 12 < trainer.model.max_seq_length
    config = trainer.loss.get_config_dict()
    compared = recipe.settings.keys() & config.keys() - given.keys() - data.keys()
    assert {setting: config[setting] for setting in compared} == {s: recipe.settings[s] for s in compared}
    assert "temperature" in compared
    assert len(trainer.train_dataset.column_names) == len(data)
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    assert trainer.train().global_step == 2
    assert not equal(before, trainer.model.state_dict())


def test_two_stages(checkpoint, tmp_path):
    out, stages = tmp_path / "out", []
    given = {**SMALL, "data": SENTENCES, "model": str(checkpoint("bert-mlm")), "on_trainer": stages.append}
    given |= {"seed": 7, "stage1": {"learning_rate": 1e-3}}
    run = recipes.run("infocse-bert-base", output_dir=out, **given)
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
    del given["stage1"]
    recipes.run("infocse-bert-base", output_dir=tmp_path / "other", auxiliary=None, **given)
    assert len(stages) == 1
    assert not (tmp_path / "other" / "stage1").exists()


def test_the_card_of_a_start_that_two_stages_did_not_improve_is_its_own(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(run_data, "STSEvaluator", lambda *_: Scripted(0.5, 0.4, 0.4))
    for card in ("", "# My encoder\n\nA language model.\n"):
        model = tmp_path / f"model{len(card)}"
        if card:  # sentence-transformers only reads the card of its own models
            recipes.load_model(str(checkpoint("bert-mlm")), "cls").save_pretrained(str(model))
            (model / "README.md").write_text(card)
        else:
            shutil.copytree(checkpoint("bert-mlm"), model)
        out = tmp_path / f"out{len(card)}"
        given = {**SMALL, "dev": "dev.jsonl", "eval_steps": 2, "model": str(model), "output_dir": out}
        run = recipes.run("infocse-bert-base", data=SENTENCES, **given)
        assert run.saved == "start"
        saved = (out / "README.md").read_text(encoding="utf-8")
        assert saved.startswith(card)
        assert "stage 1" not in saved
        assert "started from" in saved


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
    assert equal(saved, start) == (run.saved == "start")


def test_what_is_wrong_with_stage_2_is_said_before_stage_1(checkpoint, tmp_path):
    with pytest.raises(ValueError, match=r"temperature.*-1"):
        recipes.run(
            "infocse-bert-base", data=SENTENCES, output_dir=tmp_path / "out", model=str(checkpoint("bert-mlm")),
            temperature=-1, on_trainer=lambda trainer: pytest.fail("stage 1 began"), **SMALL,
        )  # fmt: skip


class Scripted(SentenceEvaluator):
    """Scores of a list, one a call."""

    def __init__(self, *scores):
        super().__init__()
        self.name, self.primary_metric, self.scores = "dev", "dev_spearman", list(scores)

    def __call__(self, model, output_path=None, epoch=-1, steps=-1):
        metrics = {"dev_spearman": self.scores.pop(0)}
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics


@pytest.mark.parametrize(
    ("scores", "saved"),
    [([0.5, 0.4, 0.7, 0.6, 0.7], "trained"), ([0.5, 0.4, 0.3, 0.2, 0.4], "start"),
     ([0.5, *[float("nan")] * 4], "start"), ([0.5, 0.4, 0.7, 0.6, 0.8], "mixture"),
     ([0.5, 0.4, 0.7, 0.6, 0.5], "start"), ([0.5, *[float("nan")] * 3, 0.6], "mixture"),
     ([0.5, 0.4, 0.7, 0.6, float("nan")], "start")],
)  # fmt: skip
@pytest.mark.parametrize("mix", [None, 0.25])
def test_the_better_of_start_and_result_is_saved(checkpoint, tmp_path, monkeypatch, scores, mix, saved):
    if saved in ("trained", "mixture"):
        saved = "trained" if mix is None else "mixture"
    monkeypatch.setattr(run_data, "STSEvaluator", lambda *_: Scripted(*scores))
    given = {**SMALL, "max_steps": 3, "eval_steps": 1, "dev": "x", "learning_rate": 1e-2, "logging_steps": 1}
    given |= {"mix": mix}
    model, heard = str(checkpoint("bert")), []
    run = recipes.run(
        "simcse-bert-base",
        data=SENTENCES,
        output_dir=tmp_path / "out",
        model=model,
        on_score=lambda score, _: heard.append(score),
        **given,
    )
    assert (heard, run.before, run.saved) == ([0.5], 0.5, saved)
    assert run.after == pytest.approx(scores[4], nan_ok=True)
    assert not run.trainer.evaluator.scores  # each was asked for
    best = 3 if math.isnan(scores[3]) else 1 + max(range(3), key=lambda step: scores[1 + step])
    start, out = weights(checkpoint("bert")), weights(tmp_path / "out")
    trained = weights(tmp_path / "out" / f"checkpoint-{best}")
    mixture = {name: 0.75 * start[name] + 0.25 * trained[name] for name in start}
    expected = {"start": start, "trained": trained, "mixture": mixture}[saved]
    assert all(torch.allclose(out[name], expected[name], rtol=0, atol=1e-6) for name in expected)
    assert not equal(start, trained)
    # Each score stands at its own step, and the model card has that of the weights that are saved.
    log = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
    logged = [(entry["step"], entry["eval_dev_spearman"]) for entry in log if "eval_dev_spearman" in entry]
    assert logged == [(step, pytest.approx(score, nan_ok=True)) for step, score in enumerate(scores[:4])]
    card = run.trainer.model.model_card_data
    if saved == "start":  # its card describes the start
        assert not card.training_logs
        assert not card.eval_results_dict
    else:
        assert [row["Step"] for row in card.training_logs] == [0, 1, 2, 3]
        (metrics,) = card.eval_results_dict.values()
        assert metrics == {"dev_spearman": run.scores[saved]}


@pytest.mark.parametrize("gain", [0.1, -0.1])
def test_a_benchmarks_row_is_of_trained_weights(checkpoint, tmp_path, monkeypatch, gain):
    monkeypatch.setattr(run_data, "STSEvaluator", lambda *_: Scripted(0.5, 0.3, 0.5 + gain, 0.2, 0.5 + gain))
    scored = []
    monkeypatch.setattr(benchmark, "all_scores", lambda model, args: scored.append(model.state_dict()) or {})
    kept = []  # the folder is deleted
    monkeypatch.setattr(benchmark, "shutil", SimpleNamespace(rmtree=kept.append))
    settings = {**SMALL, "max_steps": 3, "eval_steps": 1, "dev": "x", "learning_rate": 1e-2, "recipe": "mini-simcse"}
    arguments = SimpleNamespace(data=SENTENCES, sets=tmp_path)
    record = benchmark.one_run({**settings, "model": str(checkpoint("bert"))}, 1, arguments)
    assert (record["saved"], record["best_step"]) == ("trained" if gain > 0 else "start", 2)
    assert record["dev_at"] == {0: 50.0, 1: 30.0, 2: 50 + 100 * gain, 3: 20.0}
    names = {name: name.removeprefix("0.model.") for name in scored[0]}
    trained = weights(kept[0] / "checkpoint-2")
    assert equal({names[name]: weight for name, weight in scored[0].items()}, trained)
    assert not equal(trained, weights(checkpoint("bert")))
    shutil.rmtree(kept[0])


def test_without_a_dev_the_mixture_is_saved(checkpoint, tmp_path):
    given = {**SMALL, "data": SENTENCES, "model": str(checkpoint("bert")), "learning_rate": 1e-2}
    runs = {}
    for share in (1.0, 0.5):
        runs[share] = recipes.run("simcse-bert-base", output_dir=tmp_path / str(share), mix=share, **given)
        assert (runs[share].saved, runs[share].before) == ("mixture", None)
    start, trained, half = (weights(path) for path in (checkpoint("bert"), tmp_path / "1.0", tmp_path / "0.5"))
    assert all(torch.allclose(half[name], (start[name] + trained[name]) / 2, rtol=0, atol=1e-6) for name in start)
    assert not equal(start, trained)


def test_a_soup_is_the_mean_of_runs_with_their_own_seeds(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(run_data, "STSEvaluator", lambda *_: Scripted(0.5, 0.6))  # no step of the runs is scored
    given = {**SMALL, "data": SENTENCES, "model": str(checkpoint("bert")), "learning_rate": 1e-2}
    singles = []
    for seed in (7, 8, 9):
        recipes.run("simcse-bert-base", output_dir=tmp_path / str(seed), seed=seed, **given)
        singles.append(weights(tmp_path / str(seed)))
    assert not equal(singles[0], singles[1])
    begun = []
    run = recipes.run(
        "simcse-bert-base", output_dir=tmp_path / "soup", seed=7, soup=3, mix=0.5,
        on_trainer=lambda trainer: begun.append((Path(trainer.args.output_dir).name, trainer.args.seed)),
        **{**given, "dev": "x"},
    )  # fmt: skip
    assert begun == [("soup", 7), ("run2", 8), ("run3", 9)]
    assert (run.saved, run.scores) == ("mixture", {"start": 0.5, "mixture": 0.6})
    start, soup = weights(checkpoint("bert")), weights(tmp_path / "soup")
    for name, weight in start.items():
        mean = sum(single[name] for single in singles) / 3
        assert torch.allclose(soup[name], (weight + mean) / 2, rtol=0, atol=1e-6)


def test_all_runs_of_a_soup_start_from_the_first_stage(checkpoint, tmp_path):
    started = {}

    def watch(trainer):
        started[Path(trainer.args.output_dir).name] = {
            name: weight.clone() for name, weight in trainer.model.state_dict().items()
        }

    model = str(checkpoint("bert-mlm"))
    given = {**SMALL, "data": SENTENCES, "model": model, "output_dir": tmp_path / "out", "learning_rate": 1e-2}
    recipes.run("infocse-bert-base", soup=2, on_trainer=watch, **given)
    assert [*started] == ["stage1", "out", "run2"]
    assert equal(started["out"], started["run2"])
    assert not equal(started["out"], started["stage1"])
    assert not (tmp_path / "out" / "run2" / "stage1").exists()


class FirstNumber(Scripted):
    """The first number of a vector, in every digit."""

    def __call__(self, model, output_path=None, epoch=-1, steps=-1):
        return {"dev_spearman": float(model.encode(SENTENCES)[0, 0])}


def test_scores_before_and_after_are_of_one_precision(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(run_data, "STSEvaluator", lambda *_: FirstNumber())
    given = {**SMALL, "dev": "x", "eval_steps": 2, "learning_rate": 0.0, "bf16": True, "model": str(checkpoint("bert"))}
    run = recipes.run("simcse-bert-base", data=SENTENCES, output_dir=tmp_path, **given)
    log = [entry["eval_dev_spearman"] for entry in run.trainer.state.log_history if "eval_dev_spearman" in entry]
    assert run.before == run.after == log[0] != log[1]


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
    assert run.trainer.data_collator.prompts == "we "  # as encode reads a text
    assert run.trainer.max_length == 8
    again = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert (again.max_seq_length, again[1].pooling_mode) == (40, "mean")
    run = recipes.run("simcse-bert-base", output_dir=tmp_path / "cls", pooling="cls", **given)
    assert run.trainer.model[1].pooling_mode == "cls"


@pytest.mark.parametrize(
    ("recipe", "given", "match"),
    [
        ("mini-simcse", {"data": None}, "data"),
        ("mini-simcse", {"stage1": {"max_steps": 3}}, "stage1=.*with a first stage"),
        ("mini-simcse", {"max_length": "long"}, "max_length must be of type int"),
        ("mini-simcse", {"max_length": 0}, "max_length must be a whole number of at least 3"),
        ("mini-simcse", {"mix": 1.5}, "mix must be a number above 0"),
        ("mini-simcse", {"mix": 0}, "mix must be a number above 0"),
        ("mini-simcse", {"soup": 0}, "soup must be a whole number of at least 1"),
        ("infocse-bert-base", {"stage1": {"soup": 2}}, "soup=2 averages the weights of the encoder only"),
        (Recipe("", "pretraining", {}), {"mix": 0.5}, "mix=0.5 averages the weights of the encoder only"),
        ("mini-simcse", {"column": "title,text", "data": Dataset.from_dict({"title": ["a"], "body": ["b"]})}, "'text'"),
        ("mini-simcse", {"model": "/no/such"}, "model /no/such"),
        ("mini-simcse", {"pooling": "max"}, "pooling.*'max'"),
        ("mini-simcse", {"antonyms": 0.5}, "antonyms=0.5.*conisi.*simcse"),
        ("mini-conisi", {"antonyms": 0.5, "strategy": "other"}, "antonyms .*strategy='other'"),
        ("mini-conisi", {"strategy": "given"}, "sentences and constructed .*got 1.*antonyms"),
        ("mini-conisi", {"antonyms": 1.5}, "antonyms must be .* at most 1 or None, got 1.5"),
        ("mini-simcse", {"pairs": "last"}, "pairs.*'last'"),
        ("mini-simcse", {"prompts": {"title": "query: "}}, "prompts.*title"),
        ("mini-simcse", {"data": " "}, "data is empty"),
        ("mini-simcse", {"dev": "/no/such"}, "/no/such"),
        ("mini-twins", {"translations": "x.tsv"}, "data=.*with translations"),
        ("mini-twins", {"translations": "x.tsv", "data": None, "column": "en,fr"}, "column=.*with translations"),
        ("mini-twins", {"languages": ["en", "fr"]}, "languages=.*without translations"),
        ("twins-bert-base", {}, "translations"),
        (Recipe("", "simcse", {}), {"model": None}, "model"),
        (Recipe("", ["simcse"], {}), {}, "loss must be one of"),
        ("mini-simcse", {"max_steps": "two"}, "max_steps must be of type int.*'two'"),
        ("infocse-bert-large", {"stage1": {"split_layer": 8}}, "stage1 has split_layer 8, and the second stage 6"),
        ("infocse-bert-base", {"tied_head": True, "stage1": {"tied_head": False}}, "stage1 has tied_head False"),
        ("mini-simcse", {"learning_rate": "fast"}, "learning_rate must be of type float"),
        ("mini-simcse", {"model": torch.nn.Linear(2, 2)}, "model must be a folder .*got Linear"),
        ("mini-simcse", {"dev": Path("/no/such")}, "dev='/no/such': source /no/such does not exist"),
        ("mini-simcse", {"dev": Dataset.from_dict({"a": ["b"]})}, "dev=a Dataset: .*sentence1"),
        ("mini-simcse", {"pairs": "first", "column": "a,b"}, "pairs='first' reads one column"),
    ],
)
def test_bad_input(checkpoint, tmp_path, recipe, given, match):
    arguments = {**SMALL, "model": str(checkpoint("bert")), "data": SENTENCES, **given}
    if "fraternal" in getattr(recipe, "settings", recipes.load(recipe).settings if isinstance(recipe, str) else {}):
        arguments["fraternal"] = str(checkpoint("bert"))
    with pytest.raises((OSError, TypeError, ValueError), match=match):
        recipes.trainer(recipe, output_dir=tmp_path, **arguments)


def _documents():
    """Documents of three sentences, with titles of their words; each sentence is in only one document."""
    draw, words = random.Random(0), [word for word in WORDS if len(word) > 2]
    sentences = [*{" ".join(draw.sample(words, 4)).capitalize(): None for _ in range(700)}]
    parts = [*zip(sentences[:150], sentences[150:300], sentences[300:450], strict=True)]
    return {
        "title": [" ".join(draw.sample(" ".join(part).split(), 9)) for part in parts],
        "body": [". ".join(part) + "." for part in parts],
    }


TABLE = _documents()


@pytest.mark.filterwarnings("ignore:.*repeat an earlier row")  # which the recipe keeps
@pytest.mark.filterwarnings("ignore:The two texts of a row match only")  # to an untrained encoder
@pytest.mark.filterwarnings("ignore:pairs='first' trains almost")
@pytest.mark.parametrize("given", [{"column": "body"}, {"column": "title,body"}, {"column": "body", "pairs": "first"}])
@pytest.mark.parametrize("segment", [{}, {"segment": "en"}])
def test_the_corpus_itself_is_the_dev(checkpoint, tmp_path, given, segment):
    given = {**SMALL, **given, **segment, "dev": "corpus", "eval_steps": 1, "model": str(checkpoint("bert"))}
    # Each document stands there twice, under two titles.
    data = Dataset.from_dict({"title": TABLE["title"] + TABLE["title"][::-1], "body": TABLE["body"] * 2})
    run = recipes.run("simcse-bert-base", data=data, output_dir=tmp_path / "out", **given)
    better = compare_paired(run.judgements["start"], run.judgements["trained"]).decision == "better"
    assert run.saved == ("trained" if better else "start")
    assert run.comparison.questions == len(run.trainer.evaluator.queries)
    dataset = run.trainer.train_dataset
    trained = " ".join(text for row in dataset for text in row.values())
    asked = {*run.trainer.evaluator.queries.values()}
    assert not asked & {*TABLE["title"]}  # nor the first sentences, where these are trained on
    assert "pairs" not in given or not any(body.startswith(text) for text in asked for body in TABLE["body"])
    held_out = [body for body in TABLE["body"] if any(text in body for text in asked)]
    assert len(held_out) >= 40
    assert not any(part in trained for body in held_out for part in body.split(". "))
    counts = get_row_counts(dataset)
    parts = 3 if dataset.column_names == ["sentence"] and segment else 1  # of a document
    dropped = counts.dropped
    assert counts.rows - dropped.get("repeated", 0) - dropped["held out"] == len(dataset) / parts


@pytest.mark.parametrize("segment", [{}, {"segment": "en"}])
def test_the_first_stage_trains_on_no_held_out_document(checkpoint, tmp_path, segment):
    stages = []
    recipes.run(
        "infocse-bert-base", data=Dataset.from_dict(TABLE), output_dir=tmp_path, on_trainer=stages.append,
        column="body", prompts={"body": "query: "},
        **{**SMALL, **segment, "dev": "corpus", "model": str(checkpoint("bert-mlm"))},
    )  # fmt: skip
    texts = [set(trainer.train_dataset["sentence"]) for trainer in stages]
    assert texts[0] == texts[1]
    assert len(texts[0]) == (300 if segment else 100)
    assert [trainer.args.prompts for trainer in stages] == [{"sentence": "query: "}] * 2


def test_a_test_whose_questions_are_the_pairs_is_warned_of(checkpoint, tmp_path):
    given = {**SMALL, "model": str(checkpoint("bert")), "data": Dataset.from_dict(TABLE), "output_dir": tmp_path}
    with pytest.warns(UserWarning, match=r"pairs='first' .*dev='corpus'"):
        recipes.trainer("simcse-bert-base", **{**given, "column": "body", "pairs": "first", "dev": "corpus"})


def test_two_columns_are_pairs(checkpoint, tmp_path, monkeypatch):
    given = {**SMALL, "model": str(checkpoint("bert")), "data": Dataset.from_dict(TABLE), "output_dir": tmp_path}
    for column in ("title,body", "title, body", ("title", "body"), ["title", "body"]):
        monkeypatch.setattr(inputs, "load_sentences", lambda *_, **__: pytest.fail("read as one column first"))
        trainer = recipes.trainer("simcse-bert-base", column=column, **given)
        assert list(trainer.train_dataset[0].values()) == [TABLE["title"][0], TABLE["body"][0]]
        monkeypatch.undo()
    trainer = recipes.trainer("simcse-bert-base", column="body", pairs="first", **given)
    assert list(trainer.train_dataset[0].values()) == TABLE["body"][0].replace(". ", ".|", 1).split("|")
    with_comma = {**given, "data": Dataset.from_dict({"a": TABLE["title"], "a,b": TABLE["body"], "b": TABLE["title"]})}
    trainer = recipes.trainer("simcse-bert-base", column=["a,b"], **with_comma)
    assert trainer.train_dataset.column_names == ["sentence"]
    for loss, column in product(("twins", "infocse"), ("title,body", ("title", "body"))):
        with pytest.raises(ValueError, match=f"column=.*simcse, momentum.*{loss}"):
            recipes.trainer(f"mini-{loss}", column=column, **given)
    with pytest.raises(ValueError, match='constructed sentences needs strategy="given"'):
        recipes.trainer("mini-conisi", column="title,body", **given)
    for more, match in (
        ({"column": "title,body", "segment": "de"}, "segment"),
        ({"column": ("title", "body", "title")}, "two names"),
    ):
        with pytest.raises(ValueError, match=match):
            recipes.trainer("simcse-bert-base", **more, **given)


def test_own_text_of_one_column_is_refused(checkpoint, tmp_path):
    settings = {**SMALL, "model": str(checkpoint("bert")), "data": Dataset.from_dict(TABLE), "output_dir": tmp_path}
    with pytest.raises(ValueError, match="own-text is for pairs"):
        recipes.run("own-text", column="body", **settings)


def test_a_weak_match_of_titles_is_refused_for_a_sentence_encoder(checkpoint, tmp_path):
    """Every second title is of another row. A language model is only warned: right titles may match as weakly."""
    titles = [*TABLE["title"]]
    titles[::2] = [*titles[2::2], titles[0]]
    given = {**SMALL, "data": Dataset.from_dict({**TABLE, "title": titles}), "column": "title,body", "max_length": 32}
    given |= {"pooling": "mean", "model": str(tmp_path / "encoder")}
    recipes.load_model(str(checkpoint("bert")), "mean").save_pretrained(given["model"])
    with pytest.raises(ValueError, match="column: the two texts of a row don't belong together"):
        recipes.run("simcse-bert-base", output_dir=tmp_path / "refused", **given)


def test_a_prompt_by_the_name_of_the_users_column(checkpoint, tmp_path):
    given = {**SMALL, "model": str(checkpoint("bert")), "data": Dataset.from_dict(TABLE), "output_dir": tmp_path}
    given |= {"column": "body", "prompts": {"body": "query: "}}
    assert recipes.trainer("mini-simcse", **given).args.prompts == {"sentence": "query: "}
    prompts = recipes.trainer("mini-conisi", antonyms=1.0, **given).args.prompts
    assert prompts == {"sentence": "query: ", "constructed": "query: "}


@pytest.mark.filterwarnings("ignore:One pass over source")
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("size", "epochs", "steps", "more", "expected"),
    [(4, 2, 150, {}, 6), (4, 2, 5, {}, 5), (5, 1.5, 150, {}, 3),
     (4, 2, 150, {"dataloader_drop_last": True}, 4), (8, 5, 150, {"dataloader_drop_last": True}, 5),
     (3, 2, 150, {"dataloader_drop_last": True, "gradient_accumulation_steps": 2}, 4),
     (3, 2, 150, {"gradient_accumulation_steps": 3}, 4), (20, 2, 150, {}, 2)],
)  # fmt: skip
def test_epochs_limit_the_steps(checkpoint, tmp_path, is_stream, size, epochs, steps, more, expected):
    """10 rows. The Trainer counts the same steps where max_steps is not set."""
    data = Dataset.from_dict({"sentence": SENTENCES})
    given = {"model": str(checkpoint("bert")), "output_dir": tmp_path, "max_length": 8, "num_train_epochs": epochs}
    given |= {**more, "per_device_train_batch_size": size, "data": data.to_iterable_dataset() if is_stream else data}
    limited = recipes.trainer("own-text", max_steps=steps, **given)
    assert limited.args.max_steps == expected
    if not is_stream and steps > expected:
        free = recipes.trainer(Recipe("", "simcse", {}), **given)
        assert free.set_initial_training_values(free.args, free.get_train_dataloader())[-1] == expected


@pytest.mark.filterwarnings("ignore:One pass over source", "ignore:The two texts of a row match only")
def test_a_stream_of_pairs(checkpoint, tmp_path):
    stream = Dataset.from_dict(TABLE).to_iterable_dataset()
    given = {**SMALL, "model": str(checkpoint("bert")), "column": "title,body", "max_length": 16, "report_to": "none"}
    run = recipes.run("own-text", data=stream, output_dir=tmp_path / "out", **given)
    assert run.trainer.state.global_step == 2
    with pytest.raises(ValueError, match=r"dev='corpus'.*stream"):
        recipes.trainer("own-text", data=stream, output_dir=tmp_path / "other", **{**given, "dev": "corpus"})


def test_a_first_stage_that_was_killed_while_it_was_saved_is_trained_again(checkpoint, tmp_path, monkeypatch):
    given = {**SMALL, "data": SENTENCES, "model": str(checkpoint("bert-mlm")), "output_dir": tmp_path}

    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(AuxiliaryMLMPretrainingLoss, "save_auxiliary", kill)
        with pytest.raises(KeyboardInterrupt):
            recipes.run("infocse-bert-base", **given)
    stages = []
    recipes.run("infocse-bert-base", resume_from_checkpoint=True, on_trainer=stages.append, **given)
    assert len(stages) == 2


def test_what_is_warned_of(checkpoint, tmp_path, monkeypatch):
    given = {**SMALL, "data": SENTENCES, "output_dir": tmp_path, "model": str(checkpoint("bert"))}
    with pytest.warns(UserWarning, match="max_length is 96.* 64 tokens"):
        recipes.trainer("own-text", **given)
    with pytest.warns(UserWarning, match="eval_steps=1 has no effect without dev"):
        recipes.trainer("mini-simcse", **given, eval_steps=1)
    visible = property(lambda self: 1 if self._n_gpu == 1 else 2)
    monkeypatch.setattr(SentenceTransformerTrainingArguments, "n_gpu", visible)
    with pytest.warns(UserWarning, match="torchrun"):
        assert recipes.trainer("simcse-bert-base", **given).args.train_batch_size == 4


def test_texts_may_be_an_array(checkpoint, tmp_path):
    given = {**SMALL, "output_dir": tmp_path / "out", "model": str(checkpoint("bert")), "data": np.array(SENTENCES)}
    assert recipes.run("mini-simcse", **given).trainer.train_dataset["sentence"][:] == SENTENCES


def test_two_columns_are_the_sentences_of_conisi(checkpoint, tmp_path):
    data = Dataset.from_dict({"text": SENTENCES, "opposite": [f"not {text}" for text in SENTENCES]})
    given = {**SMALL, "output_dir": tmp_path, "model": str(checkpoint("bert")), "data": data}
    trainer = recipes.trainer("mini-conisi", **given, column="text,opposite", strategy="given")
    assert trainer.train_dataset.column_names == ["sentence", "constructed"]


def test_scores_follow_the_epochs_of_the_checkpoints(checkpoint, tmp_path):
    (tmp_path / "dev.csv").write_text("sentence1,sentence2,score\na cat,a dog,1\nrain,the rain,4\n")
    given = {**SMALL, "output_dir": tmp_path, "model": str(checkpoint("bert")), "data": SENTENCES}
    trainer = recipes.trainer("mini-simcse", **{**given, "dev": tmp_path / "dev.csv", "save_strategy": "epoch"})
    assert trainer.args.eval_strategy == trainer.args.save_strategy == "epoch"


@pytest.mark.parametrize("name", ["README.md", "run.yaml"])
def test_a_used_folder_is_left_alone(checkpoint, tmp_path, monkeypatch, name):
    """A run writes run.yaml before its first step, so the folder of a running one is refused too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match=f"output_dir .* holds {name}"):
        recipes.run("mini-simcse", data=SENTENCES, output_dir=".", model=str(checkpoint("bert")), **SMALL)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    (tmp_path / name).rename(tmp_path / "a file")
    with pytest.raises(ValueError, match="output_dir a file is a file"):
        recipes.run("mini-simcse", data=SENTENCES, output_dir="a file", model=str(checkpoint("bert")), **SMALL)


def test_resuming_overwrites_no_other_run(checkpoint, tmp_path):
    given = {**SMALL, "data": SENTENCES, "model": str(checkpoint("bert")), "save_steps": 1}
    for name, seed in (("first", 1), ("second", 2)):
        recipes.run("mini-simcse", **given, seed=seed, output_dir=tmp_path / name)
    kept = weights(tmp_path / "second")
    given |= {"seed": 1, "output_dir": tmp_path / "second"}
    with pytest.raises(ValueError, match=r"second holds run\.yaml"):
        recipes.run("mini-simcse", **given, resume_from_checkpoint=tmp_path / "first" / "checkpoint-1")
    with pytest.raises(FileNotFoundError, match="checkpoint-9 does not exist"):
        recipes.run("mini-simcse", **given, resume_from_checkpoint=tmp_path / "second" / "checkpoint-9",
                    on_trainer=lambda trainer: pytest.fail("the data were read"))  # fmt: skip
    for checkpoint_folder in (tmp_path / "second").glob("checkpoint-*"):
        shutil.rmtree(checkpoint_folder)
    with pytest.raises(ValueError, match="a finished model and no checkpoint"):
        recipes.run("mini-simcse", **{**given, "seed": 2}, resume_from_checkpoint=True)
    assert equal(weights(tmp_path / "second"), kept)


def test_the_verdict_of_an_earlier_run_is_removed(checkpoint, tmp_path, dev):
    given = {**SMALL, "data": SENTENCES, "model": str(checkpoint("bert")), "output_dir": tmp_path / "out"}
    recipes.run("mini-simcse", **{**given, "dev": str(dev), "eval_steps": 1})
    assert (tmp_path / "out" / "verdict.json").is_file()
    recipes.run("mini-simcse", **{**given, "max_steps": 3}, resume_from_checkpoint=True)
    assert not (tmp_path / "out" / "verdict.json").exists()


def test_texts_are_cut_at_the_positions_of_the_encoder(checkpoint, tmp_path):
    """RoBERTa's configuration counts the unused positions too, and some of its tokenizers state no length."""
    shutil.copytree(checkpoint("roberta"), tmp_path / "roberta")
    file = tmp_path / "roberta" / "tokenizer_config.json"
    config = json.loads(file.read_text())
    del config["model_max_length"]
    file.write_text(json.dumps(config))
    positions = json.loads((tmp_path / "roberta" / "config.json").read_text())["max_position_embeddings"]
    given = {**SMALL, "data": SENTENCES, "model": str(tmp_path / "roberta"), "output_dir": tmp_path / "out"}
    with pytest.warns(UserWarning, match=f"max_seq_length {positions}, which is set to {positions - 2}"):
        recipes.run("mini-simcse", **given)
    SentenceTransformer(str(tmp_path / "out"), device="cpu").encode("cat " * 600)


def test_repeated_pairs_are_kept(checkpoint, tmp_path):
    rows = Dataset.from_dict({name: texts[:40] * 2 for name, texts in TABLE.items()})
    given = {**SMALL, "model": str(checkpoint("bert")), "output_dir": tmp_path, "data": rows}
    for more in ({"column": "title,body"}, {"column": "body", "pairs": "first"}):
        sizes = [
            len(recipes.trainer("mini-simcse", **given, **more, repeats=kept).train_dataset) for kept in (False, True)
        ]
        assert sizes == [40, 80]


def test_of_two_runs_that_begin_at_once_in_a_folder_one_is_refused(checkpoint, tmp_path):
    given = {**SMALL, "data": SENTENCES, "output_dir": tmp_path / "out", "model": str(checkpoint("bert"))}
    recipes.run("mini-simcse", **given)
    first = weights(tmp_path / "out")

    def other_run_begins(trainer):
        shutil.copytree(tmp_path / "out", tmp_path / "new", dirs_exist_ok=True)

    with pytest.raises(FileExistsError, match="another run began to write there"):
        recipes.run("mini-simcse", **{**given, "output_dir": tmp_path / "new", "seed": 2}, on_trainer=other_run_begins)
    assert equal(weights(tmp_path / "new"), first)


def test_run_yaml_holds_the_settings_of_both_stages(checkpoint, tmp_path):
    given = {**SMALL, "model": str(checkpoint("bert-mlm")), "seed": 5, "hub_token": "secret", "mask_rate": 0.25}
    given |= {"data": SENTENCES, "stage1": {"max_steps": 1}}
    recipes.run("infocse-bert-base", output_dir=tmp_path / "out", **given)
    texts = [(tmp_path / "out" / place / "run.yaml").read_text() for place in (".", "stage1")]
    assert all("# data: was passed in Python" in text for text in texts)
    assert not any(word in text for word in ("secret", *SENTENCES) for text in texts)
    settings = recipes.parse(texts[0])
    assert settings["dev"] is None  # the recipe has one
    assert "loss" not in settings  # which the recipe says
    torch.rand(9)  # which changes nothing
    recipes.run(settings.pop("recipe"), **{**settings, "data": SENTENCES, "output_dir": tmp_path / "again"})
    assert equal(weights(tmp_path / "out"), weights(tmp_path / "again"))


@pytest.mark.parametrize(("scores", "saved"), [((0.5, 0.6, 0.7), "mixture"), ((0.5, 0.4, 0.4), "start")])
def test_the_card_describes_what_is_saved(checkpoint, tmp_path, monkeypatch, scores, saved):
    """Trained weights with the recipe, its settings and scores; a kept start without a word of training."""
    monkeypatch.setattr(run_data, "STSEvaluator", lambda *_: Scripted(*scores))
    given = {**SMALL, "dev": "dev.jsonl", "eval_steps": 2, "model": str(checkpoint("bert")), "mix": 0.5}
    run = recipes.run("mini-simcse", data=SENTENCES, output_dir=tmp_path / "out", **given)
    assert run.saved == saved
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    words = ("`mini-simcse`", "mix: 0.5", "dev: dev.jsonl", str(run), "SimCSELoss", "Training Hyperparameters")
    assert [text for text in (*words, "rained with") if (text in card) == (saved == "start")] == []
    assert (run.reason in card) == (saved == "start")
    verdict = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert verdict["scores"] == dict(zip(("start", "mixture"), (scores[0], scores[2]), strict=True))
    assert (verdict["saved"], verdict["verdict"]) == (saved, "BETTER" if saved == "mixture" else "WORSE")
    assert str(tmp_path) not in card
    assert not any(sentence in card for sentence in SENTENCES)
