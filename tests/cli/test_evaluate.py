"""``st-contrastive evaluate``."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from st_contrastive import evaluation
from st_contrastive.cli import main, parse
from st_contrastive.cli.models import load_model
from tests.evaluation.encoders import write

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def data(tmp_path, sentences):
    pairs = [
        {"sentence1": a, "sentence2": b, "score": (3 * row + place) % 6}
        for row, a in enumerate(sentences)
        for place, b in enumerate(sentences[row + 1 :])
    ]
    folder = tmp_path / "data"
    for split in ("dev", "test"):
        write(folder / "sts" / "stsb" / f"{split}.jsonl.gz", pairs)
    write(folder / "sts" / "sts12" / "test.jsonl.gz", pairs)
    texts = [{"text": text, "label": len(text) % 2} for text in sentences for _ in range(2)]
    write(folder / "transfer" / "mr" / "all.jsonl", texts)
    words = [one + other for one in "bcd" for other in ("at", "est", "ilk")]
    documents = [f"The {word} is here: {text}. Where {text}, a {word} is not." for text in sentences for word in words]
    (folder / "corpus.txt").write_text("\n".join(documents))
    return folder


@pytest.fixture
def model(build, tmp_path):
    build(pooling="mean").eval().save_pretrained(str(tmp_path / "model"))
    return str(tmp_path / "model")


def scores(path):
    return [
        {(score["task"], score["split"], score["metric"]): score["value"] for score in report["scores"]}
        for report in json.loads(path.read_text())
    ]


def test_suites_together_give_the_scores_of_each_one(data, model, tmp_path, capsys):
    stsb = str(data / "sts" / "stsb" / "dev.jsonl.gz")
    suites = {
        "--sts": [str(data / "sts")],
        "--transfer": [str(data / "transfer"), "--folds", "2"],
        "--in-domain": [stsb],
        "--geometry": [stsb],
        "--corpus": [str(data / "corpus.txt"), "--language", "de"],
    }
    path = tmp_path / "scores.json"
    words = [word for suite, arguments in suites.items() for word in (suite, *arguments)]
    assert main(["evaluate", *words, model, "--json", str(path)]) == 0  # MODEL may come last
    output = capsys.readouterr().out
    assert "sts12 test has 45 pairs" in output
    (whole,) = scores(path)
    together = 0
    for suite, arguments in suites.items():
        assert main(["evaluate", model, suite, *arguments, "--json", str(path)]) == 0
        (one,) = scores(path)
        assert one.items() <= whole.items()
        together += len(one)
    assert together == len(whole)


def test_two_models_are_compared_on_the_same_questions(data, model, build, tmp_path, capsys):
    build(pooling="cls").eval().save_pretrained(str(tmp_path / "other"))
    path = tmp_path / "scores.json"
    words = ["--corpus", str(data / "corpus.txt"), "--json", str(path)]
    assert main(["evaluate", model, str(tmp_path / "other"), *words]) == 0
    assert all({metric for *_, metric in found} == {"ndcg@10", "ndcg@10 with bm25"} for found in scores(path))
    documents = (data / "corpus.txt").read_text().splitlines()
    evaluator = evaluation.CorpusEvaluator(documents)
    first, other = (evaluator.judge(load_model(folder)) for folder in (model, str(tmp_path / "other")))
    assert scores(path)[1]["corpus", "all", "ndcg@10 with bm25"] == pytest.approx(other.ndcg_with_bm25)
    assert str(evaluation.compare_paired(first, other)) in capsys.readouterr().out


def test_pictures_of_models_and_of_runs(data, model, build, tmp_path, capsys):
    """--plot draws the scored pairs for each model; --curve scores nothing."""
    build(pooling="cls").eval().save_pretrained(str(tmp_path / "other"))
    picture, words = tmp_path / "p.svg", ["evaluate", model, str(tmp_path / "other")]
    for option, name in (
        ("--sts", "sts"),
        ("--geometry", "sts/stsb/dev.jsonl.gz"),
        ("--in_domain", "sts/stsb/dev.jsonl.gz"),
    ):
        assert main([*words, option, str(data / name), "--plot", str(picture)]) == 0
        assert picture.read_text().count("<!-- ") >= 4
        picture.unlink()
    state = {"log_history": [{"step": 1, "loss": 2.0}, {"step": 1, "eval_dev_spearman": 0.3}]}
    for folder in (model, tmp_path / "other"):
        Path(folder, "trainer_state.json").write_text(json.dumps(state))
    capsys.readouterr()
    assert main([*words, "--curve", str(picture)]) == 0
    assert capsys.readouterr().out == f"The curve is in {picture}.\n"
    assert picture.is_file()


def test_untitled_documents_of_a_corpus_are_searched(data, model, tmp_path, capsys):
    """A title that all documents share is not a question."""
    texts = (data / "corpus.txt").read_text().splitlines()
    rows = [{"title": "" if n % 2 else "One title. Of all.", "body": text} for n, text in enumerate(texts)]
    table, path = tmp_path / "table.jsonl", tmp_path / "scores.json"
    table.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"title": "N/A", "body": ""}]))
    assert main(["evaluate", model, "--corpus", str(table), "--column", "title,body", "--json", str(path)]) == 0
    (report,) = json.loads(path.read_text())
    assert report["settings"]["corpus"]["documents"] == len(texts)
    assert f"{len(texts)} of {len(texts) + 1} rows are documents" in capsys.readouterr().out


def test_tokenizers_may_work_in_parallel(data, model, monkeypatch):
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    seen = []

    def scores(*_, **__):
        seen.append(os.environ.get("TOKENIZERS_PARALLELISM"))
        return evaluation.Report("m", (), {"suite": "sts"})

    monkeypatch.setattr(evaluation, "evaluate_sts", scores)
    assert main(["evaluate", model, "--sts", str(data / "sts")]) == 0
    assert seen == [None]


def test_pooling_length_and_prompt_change_the_scores(data, model, build, tmp_path):
    path, values = tmp_path / "scores.json", {}
    loaded = build(pooling="mean").eval()
    loaded.prompts["sts"], loaded.default_prompt_name = "the cat ", "sts"
    loaded.save_pretrained(str(tmp_path / "prompted"))
    for name, folder, words in (
        ("plain", model, []),
        ("mean", model, ["--pooling", "mean"]),
        ("cls", model, ["--pooling", "cls"]),
        ("cut", model, ["--max-length", "4"]),
        ("prompted", str(tmp_path / "prompted"), []),
    ):
        assert main(["evaluate", folder, "--sts", str(data / "sts"), "--json", str(path), *words]) == 0
        values[name] = scores(path)[0]["sts12", "test", "spearman"]
    assert values["plain"] == values["mean"]
    assert len(set(values.values())) == 4


def test_scores_carry_the_names_of_set_and_split(data, model, tmp_path):
    """The folder names the set and the file the split. Other files are a set of one split, all."""
    pairs = Dataset.from_list(
        [{"sentence1": "a cat", "sentence2": f"the dog {n}", "score": n / 4} for n in (4, 4, 1, 0, 3)]
    )
    pairs.to_csv(str(tmp_path / "mine.v1.csv"))
    documents = (data / "corpus.txt").read_text().splitlines()
    table = Dataset.from_dict({"title": [f"Number {n}" for n, _ in enumerate(documents)], "body": documents})
    table.to_csv(str(tmp_path / "table.csv"))
    path, folder = tmp_path / "scores.json", data / "sts" / "stsb"
    (folder / "dev.jsonl.gz").rename(folder / "validation.jsonl.gz")
    for option, file, metric, expected in (
        ("--in-domain", folder / "test.jsonl.gz", "recall@1", ("stsb", "test")),
        ("--in_domain", folder / "validation.jsonl.gz", "recall@1", ("stsb", "dev")),
        ("--in_domain", tmp_path / "mine.v1.csv", "recall@1", ("mine", "all")),
        ("--geometry", tmp_path / "mine.v1.csv", "alignment", ("mine", "all")),
        ("--corpus", data / "corpus.txt", "ndcg@10", ("corpus", "all")),
        ("--corpus", tmp_path / "table.csv", "ndcg@10", ("table", "all")),
    ):
        column = ["--column", "title,body"] if file.name == "table.csv" else []
        assert main(["evaluate", model, option, str(file), "--json", str(path), *column]) == 0
        assert {(task, split) for task, split, _ in scores(path)[0]} == {expected}
        assert (*expected, metric) in scores(path)[0]


def test_a_hub_name_means_its_dev_split(data, model, tmp_path, monkeypatch):
    path, pairs = tmp_path / "scores.json", evaluation.read_sts(data / "sts" / "stsb" / "dev.jsonl.gz")
    monkeypatch.setattr(evaluation, "read_sts", lambda name: pairs if name == "sentence-transformers/stsb" else None)
    assert main(["evaluate", model, "--geometry", "sentence-transformers/stsb", "--json", str(path)]) == 0
    assert {key[:2] for key in scores(path)[0]} == {("stsb", "dev")}


def test_options_may_have_dashes_or_underscores():
    for words in (
        ["evaluate", "m", "--{}", "7"],
        ["translate", "--model", "m", "--data=a-b_c", "--output=o", "--{}=7"],
    ):
        for name in ("batch_size", "max_length"):
            parsed = [parse([word.format(own) for word in words]) for own in (name, name.replace("_", "-"))]
            assert vars(parsed[0]) == vars(parsed[1])
            assert getattr(parsed[0], name) == 7
    assert parsed[0].data == "a-b_c"


@pytest.mark.filterwarnings("always::UserWarning")
def test_missing_weights_are_warned_of(checkpoint, tmp_path):
    """transformers replaces them by random ones, and its report is hidden."""
    folder = tmp_path / "renamed"
    shutil.copytree(checkpoint("bert"), folder)
    weights = load_file(folder / "model.safetensors")
    renamed = {f"student.{name}" if "layer.1." in name else name: tensor for name, tensor in weights.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(UserWarning, match=r"lacks 16 of its encoder's weights, such as encoder\.layer\.1\."):
        load_model(str(folder), pooling="cls")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for family in ("bert", "roberta", "bert-mlm"):
            load_model(str(checkpoint(family)), pooling="cls")


@pytest.mark.filterwarnings("always::UserWarning")
def test_a_missing_pooling_is_warned_of(checkpoint, model):
    """The papers' checkpoints store no pooling, and their figures are for [CLS]."""
    with pytest.warns(UserWarning, match=r"without a pooling.*mean.*--pooling cls"):
        load_model(str(checkpoint("bert")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_model(model)
        load_model(str(checkpoint("bert")), pooling="mean")


def test_the_remedy_for_a_pickle_works_and_adds_no_pooling(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("bert"), tmp_path / "pickled")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"AutoModel\..*AutoTokenizer\.") as error:
        load_model(str(folder))
    code = str(error.value).partition("transformers: ")[2].rstrip(".").replace("FOLDER", repr(str(tmp_path / "new")))
    exec(code, {"AutoModel": AutoModel, "AutoTokenizer": AutoTokenizer})
    assert not (tmp_path / "new" / "modules.json").exists()
    texts = ["the cat sleeps", "rain"]
    vectors = [load_model(str(place), pooling="cls").encode(texts) for place in (tmp_path / "new", checkpoint("bert"))]
    np.testing.assert_array_equal(*vectors)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
     ("config.json", b"\n<!DOCTYPE html><html></html>", "web page"), ("modules.json", b"", "empty")],
)  # fmt: skip
def test_files_that_are_not_a_model(model, tmp_path, file, content, message):
    (tmp_path / "model" / file).write_bytes(content)
    with pytest.raises(ValueError, match=f"{file}.*{message}"):
        load_model(model)
    (tmp_path / "model.html").write_bytes(b"<html>")
    for name in (str(tmp_path / "model.html"), "./none"):
        with pytest.raises(ValueError, match="is not a folder"):
            load_model(name)
    with pytest.raises(ValueError, match="no/such-model"):
        load_model("no/such-model")


def test_an_error_keeps_the_scores_before_it(data, model, tmp_path, capsys):
    path, damaged = tmp_path / "scores.json", tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_text("{}")
    words = ["--sts", str(data / "sts"), "--transfer", str(data / "transfer"), "--json", str(path)]
    assert main(["evaluate", model, str(damaged), *words, "--folds", "30"]) == 2
    output = capsys.readouterr()
    assert f"--transfer, {model}: Cannot have number of splits n_splits=30" in output.err
    assert f"model {damaged} can't be loaded" in output.err
    assert "sts12" in output.out
    assert len(scores(path)[0]) == 3


def test_a_model_too_large_for_memory_leaves_the_other_scores(data, model, build, tmp_path, monkeypatch, capsys):
    encode = SentenceTransformer.encode

    def encode_or_fail(self, *args, **kwargs):
        if self.max_seq_length == 13:
            raise torch.OutOfMemoryError("out of memory")
        return encode(self, *args, **kwargs)

    monkeypatch.setattr(SentenceTransformer, "encode", encode_or_fail)
    huge = build(pooling="mean")
    huge.max_seq_length = 13
    huge.save_pretrained(str(tmp_path / "huge"))
    assert main(["evaluate", str(tmp_path / "huge"), model, "--sts", str(data / "sts")]) == 2
    output = capsys.readouterr()
    assert "huge: out of memory" in output.err
    assert "sts12" in output.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sts", "DATA/transfer"], "--sts: "),
        (["--sts", "DATA/none"], "python -m benchmarks.get_data"),
        (["--transfer", "DATA/none"], "python -m benchmarks.get_data"),
        (["--plot", "DATA/p.jpg"], ".png, .pdf or .svg"),
        (["--plot", "DATA/p.png", "--corpus", "DATA/corpus.txt"], "--plot needs graded pairs"),
        (["--curve", "DATA/p.png"], "--curve: "),
        (["--sts", "DATA/sts", "--splits", "tset"], "tset"),
        (["--transfer", "DATA/sts"], "--transfer: "),
        (["--in-domain", "DATA/none.jsonl"], "none.jsonl"),
        (["--mteb", "Nothing"], "--mteb, "),
        (["--json", "DATA"], "--json"),
        (["--json", "/none/p.json"], "--json"),
        (["--in-domain", "DATA/corpus.txt"], "--in_domain: "),
    ],
)
def test_bad_input(data, model, capsys, words, message):
    assert main(["evaluate", model, *(word.replace("DATA", str(data)) for word in words)]) == 2
    assert message in capsys.readouterr().err
