"""``st-contrastive train``, and the other doors of the command line."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import warnings

import datasets
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers.utils import logging as transformers_logging

from st_contrastive import recipes
from st_contrastive.cli import main
from st_contrastive.cli._quiet import quiet
from tests.conftest import SENTENCES
from tests.filters import TRAINING

pytestmark = [pytest.mark.filterwarnings("ignore:TwinsLoss was given one column"), *TRAINING]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.csv"
    rows = [f'{number},"{text}"' for number, text in enumerate([*SENTENCES, "", SENTENCES[0]])]
    path.write_text("\n".join(["id,body", *rows]), encoding="utf-8")
    return path


@pytest.fixture
def words(checkpoint, corpus, tmp_path):
    """A run of two steps, without the loss."""
    return [
        "train", "--model", str(checkpoint("bert")), "--data", str(corpus), "--column", "body",
        "--output_dir", str(tmp_path / "out"), "--per_device_train_batch_size", "4", "--max_steps", "2",
    ]  # fmt: skip


def code(arguments):
    try:
        return main(arguments)
    except SystemExit as error:  # argparse's own
        return error.code


@pytest.fixture
def trainers(monkeypatch):
    """The Trainers of the runs that follow."""
    built, run = [], recipes.run

    def noting(*args, on_trainer, **options):
        def both(trainer):
            built.append(trainer)
            on_trainer(trainer)

        return run(*args, on_trainer=both, **options)

    monkeypatch.setattr(recipes, "run", noting)
    return built


def test_options_of_the_loss_and_of_the_trainer(words, tmp_path, capsys, trainers):
    more = ["--loss", "simcse", "--loss-arg", "temperature=2e-1", "--max_length", "9", "--pooling", "mean"]
    more += ["--gradient_accumulation_steps", "2", "--bf16", "--lr_scheduler_type", "cosine", "--logging-steps", "1"]
    assert main([*words, *more]) == 0
    (trainer,) = trainers
    assert trainer.loss.temperature == 0.2
    assert (trainer.args.gradient_accumulation_steps, trainer.args.bf16) == (2, True)
    assert trainer.args.lr_scheduler_type == "cosine"
    assert trainer.model.max_seq_length > 9  # given back
    output = capsys.readouterr().out
    assert "12 read" in output
    assert "1 empty, 1 repeated" in output
    assert output.count("loss ") >= 2
    assert "{'" not in output  # no dictionary of the Trainer's
    again = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert again[1].pooling_mode == "mean"
    assert again.encode(["rain falls"]).shape == (1, 32)


def test_a_file_of_settings_is_the_same_run(words, corpus, checkpoint, tmp_path, trainers):
    config = tmp_path / "config.yaml"
    config.write_text(
        f"loss: conisi\nmodel: {checkpoint('bert')}\ndata: {corpus}\ncolumn: body\noutput_dir: {tmp_path / 'file'}\n"
        "per_device_train_batch_size: 4\nmax_steps: 9\ntemperature: 2e-1\nlearning_rate: 1e-3\ndev: none\n"
    )
    assert main(["train", str(config), "--max_steps", "2"]) == 0
    more = ["--loss", "conisi", "--loss-arg", "temperature=0.2", "--learning_rate", "1e-3"]
    assert main([*words, *more]) == 0
    first, second = trainers
    assert first.state.global_step == second.state.global_step == 2
    saved = [load_file(tmp_path / name / "model.safetensors") for name in ("file", "out")]
    assert saved[0].keys() == saved[1].keys()
    assert all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])


def test_a_printed_recipe_is_a_file_of_settings(words, tmp_path, capsys, trainers):
    assert main(["recipes", "mini-conisi"]) == 0
    (tmp_path / "mine.yaml").write_text(capsys.readouterr().out)
    assert main(["train", str(tmp_path / "mine.yaml"), *words[1:]]) == 0
    settings = recipes.load("mini-conisi").settings
    assert trainers[0].args.learning_rate == settings["learning_rate"]
    assert trainers[0].loss.temperature == settings["temperature"]


def test_a_recipe_gives_way(words, tmp_path, capsys, trainers):
    more = ["--recipe", "conisi-s-bert-base", "--loss-arg", "interaction_weight=0.3", "--dev", "none"]
    assert main([*words, *more, "--learning_rate", "1e-3"]) == 0
    (trainer,) = trainers
    assert trainer.evaluator is None
    assert (trainer.args.learning_rate, trainer.loss.interaction_weight) == (1e-3, 0.3)
    output = capsys.readouterr().out
    assert all(text in output for text in recipes.load("conisi-s-bert-base").differs)


def test_stage_1_then_stage_2_by_hand(words, checkpoint, tmp_path, trainers):
    words[words.index("--model") + 1] = str(checkpoint("bert-mlm"))
    assert main([*words, "--loss", "pretraining"]) == 0
    stage1 = str(tmp_path / "out")
    assert (tmp_path / "out" / "auxiliary.safetensors").is_file()
    more = ["--model", stage1, "--auxiliary", stage1, "--output_dir", str(tmp_path / "second")]
    assert main([*words, "--loss", "infocse", *more]) == 0
    assert len(trainers) == 2


def test_a_dev_gives_a_verdict(words, sts, tmp_path, capsys):
    more = ["--loss", "simcse", "--dev", str(sts / "tiny" / "test.jsonl"), "--eval_steps", "1"]
    assert main([*words, *more, "--learning_rate", "0"]) == 0
    assert "the saved model is the one you started from" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*NaN")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_collapsed_run_exits_with_1(words, tmp_path):
    assert main([*words, "--loss", "simcse", "--max_steps", "4", "--learning_rate", "1e30"]) == 1
    assert not (tmp_path / "out" / "modules.json").exists()


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ([], "--loss"),
        (["--loss", "simcse", "--recipe", "mini-simcse"], "--recipe"),
        (["--loss", "bert"], "'bert'"),
        (["--recipe", "bert"], "'bert'"),
        (["--loss", "simcse", "--loss-arg", "temperature"], "NAME=VALUE"),
        (["--loss", "simcse", "--loss-arg", "tau=1"], "tau"),
        (["--loss", "simcse", "--loss-arg", "temperature=-1"], "temperature"),
        (["--loss", "simcse", "--batch_size", "4"], "--batch_size"),
        (["--loss", "simcse", "--temp", "4"], "--temp"),
        (["--loss", "simcse", "--column", "title"], "title"),
        (["--loss", "simcse", "--data", "/no/such.csv"], "/no/such.csv"),
        (["--loss", "simcse", "--model", "/no/such"], "model /no/such"),
        (["--loss", "simcse", "--dev", "/no/such.jsonl"], "/no/such.jsonl"),
        (["--loss", "simcse", "--antonyms"], "antonyms"),
        (["--loss", "simcse", "--per_device_train_batch_size", "1"], "per_device_train_batch_size"),
        (["/no/such.yaml"], "/no/such.yaml"),
    ],
)
def test_bad_input_is_one_line(words, capsys, more, match):
    assert code([*words, *more]) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if "st-contrastive" in line][-1]
    assert match in error


def test_another_runs_folder_is_left_alone(words, tmp_path, capsys):
    assert main([*words, "--loss", "simcse"]) == 0
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert main([*words, "--loss", "simcse"]) == 2
    assert "output_dir" in capsys.readouterr().err
    assert main([*words, "--loss", "simcse", "--resume_from_checkpoint", "true"]) == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before


def test_the_home_directory_and_a_name_that_the_terminal_can_not_print(words, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    assert main([*words, "--loss", "simcse", "--output_dir", "~/Übung"]) == 0
    assert (tmp_path / "Übung" / "modules.json").is_file()
    screen.flush()
    assert rb"\xdcbung" in screen.buffer.getvalue()


def test_help_needs_no_torch():
    script = (
        "import sys, contextlib\nfrom st_contrastive.cli import main\n"
        "with contextlib.suppress(SystemExit):\n    main(['train', '--help'])\nprint('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown.endswith("False\n")
    assert "--loss NAME" in shown


@pytest.mark.long
def test_two_processes(words, sts, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29587"]
    words = [
        *words,
        "--loss",
        "simcse",
        "--save_steps",
        "1",
        "--eval_steps",
        "1",
        "--use_cpu",
        "--dev",
        str(sts / "tiny" / "test.jsonl"),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*command, "-m", "st_contrastive", *words], capture_output=True, text=True, env=environment, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("Saved to") == 1
    assert SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(["rain"]).shape == (1, 32)
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    assert state["global_step"] == 2


def test_recipes_are_listed(capsys):
    assert main(["recipes"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == recipes.names()
    assert main(["recipes", "none"]) == 2
    assert "'none'" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:Of 10 translations")
def test_translate(seq2seq, corpus, tmp_path, capsys):
    words = ["translate", "--model", seq2seq, "--data", str(corpus), "--column", "body", "--languages", "en", "de"]
    output = tmp_path / "pairs.jsonl"
    assert main([*words, "--output", str(output), "--max_length", "8"]) == 0
    pairs = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [pair["sentence"] for pair in pairs] == SENTENCES
    assert main([*words, "--output", str(tmp_path), "--max_length", "8"]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_quiet_sets_everything_back():
    before = transformers_logging.get_verbosity(), datasets.is_progress_bar_enabled(), warnings.formatwarning
    with quiet():
        assert not datasets.is_progress_bar_enabled()
        assert not transformers_logging.is_progress_bar_enabled()
    after = transformers_logging.get_verbosity(), datasets.is_progress_bar_enabled(), warnings.formatwarning
    assert before == after


def test_the_version(capsys):
    assert code(["--version"]) == 0
    assert capsys.readouterr().out.split()[0] == "st-contrastive"
