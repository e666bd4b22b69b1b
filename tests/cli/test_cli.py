from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources

import pytest

from st_contrastive.cli import main
from st_contrastive.evaluation import read_sts

pytestmark = [
    pytest.mark.filterwarnings("ignore:TwinsLoss was given one column"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def corpus(tmp_path, sentences):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join([*sentences, "", *sentences]), encoding="utf-8")
    return path


@pytest.fixture
def sts(tmp_path, sentences):
    folder = tmp_path / "sts" / "tiny"
    folder.mkdir(parents=True)
    rows = [
        {"sentence1": a, "sentence2": b, "score": score}
        for score, (a, b) in enumerate(zip(sentences, sentences[::-1], strict=True))
    ]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder.parent


@pytest.mark.parametrize("method", ["simcse", "conisi", "twins", "infocse"])
def test_train_then_evaluate(checkpoint, corpus, sts, tmp_path, capsys, method):
    output = tmp_path / "models" / method
    arguments = ["train", "--method", method, "--model", str(checkpoint("bert")), "--data", str(corpus)]
    arguments += ["--output", str(output), "--batch-size", "4", "--steps", "2", "--set", "temperature=0.1"]
    assert main(arguments) == 0
    assert "20 of 21 lines taken; left out: 1 blank" in capsys.readouterr().out
    assert [path.name for path in output.parent.iterdir()] == [method]  # nothing of the work is left
    pooling = json.loads((output / "1_Pooling" / "config.json").read_text())["pooling_mode"]
    assert pooling == ("mean" if method == "twins" else "cls")
    report = tmp_path / "report.json"
    assert main(["evaluate", str(output), "--suite", "sts", "--data", str(sts), "--json", str(report)]) == 0
    assert "tiny" in capsys.readouterr().out
    scores = json.loads(report.read_text())["scores"]
    assert [(score["task"], score["split"], score["size"]) for score in scores] == [("tiny", "test", 10)]
    # A saved model is not replaced unasked, and stays whole until the new one is.
    assert main(arguments) == 2
    assert main([*arguments, "--overwrite"]) == 0
    assert main(["evaluate", str(output), "--data", str(sts)]) == 0


def test_train_into_the_working_directory_and_with_flags(checkpoint, corpus, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    arguments = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    assert main([*arguments, "--output", ".", "--steps", "1", "--batch-size", "4", "--set", "head=false"]) == 0
    assert (folder / "modules.json").is_file()
    assert '"head": false' in (folder / "README.md").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "here"]


def test_a_model_that_can_not_be_put_in_place_is_kept(checkpoint, corpus, tmp_path, monkeypatch, capsys):
    import shutil

    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "modules.json").write_text("the old model")
    (folder / "z.txt").write_text("and more of it")
    monkeypatch.chdir(folder)  # so that the folder's entries are exchanged, not the folder
    move, done = shutil.move, []

    def fails_late(source, target):
        done.append(source)
        if len(done) == 4:
            raise OSError(28, "No space left on device")
        return move(source, target)

    monkeypatch.setattr(shutil, "move", fails_late)
    arguments = ["train", "--method", "simcse", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    assert main([*arguments, "--output", ".", "--overwrite", "--steps", "1", "--batch-size", "4"]) == 2
    assert "No space left on device); the trained model is in" in capsys.readouterr().err
    assert (folder / "modules.json").read_text() == "the old model"
    assert sorted(path.name for path in folder.iterdir()) == ["modules.json", "z.txt"]
    assert (tmp_path / "here.unsaved" / "model.safetensors").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "here", "here.unsaved"]


def test_train_twins_on_translations(checkpoint, corpus, tmp_path):
    translations = tmp_path / "de.txt"
    translations.write_text("\n".join(reversed(corpus.read_text(encoding="utf-8").split("\n"))), encoding="utf-8")
    arguments = ["train", "--method", "twins", "--model", str(checkpoint("bert")), "--data", str(corpus)]
    arguments += ["--translations", str(translations), "--steps", "2", "--batch-size", "4"]
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 0
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "<code>translation</code>" in card


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--data": "nowhere.txt"}, "nowhere.txt can't be read"),
        ({"--model": "/no/such/model"}, "--model /no/such/model: it can't be loaded"),
        ({"--set": "warmth=1"}, "--set warmth=1: give NAME=VALUE, NAME one of strategy, temperature"),
        ({"--set": "interaction_weight=2"}, "interaction_weight must be a number from 0 to 1, got 2"),
        ({"--set": "strategy=given"}, "strategy=given"),
        ({"--translations": "de.txt"}, "--translations goes with --method twins"),
        ({"--output": "."}, "holds something that is not a saved model"),
        ({"--output": "corpus.txt/x"}, "corpus.txt is a file"),
        ({"--max-length": "200"}, "--max-length 200"),
        ({"--set": "temperature=1e999"}, "temperature must be a positive number, got inf"),
        ({"--set": "interaction_dim=1.5"}, "interaction_dim must be a whole number"),
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
        ["train", "--method", "simcse", "--model", "m", "--data", "d", "--output", "o", "--lr", "-1"],
        ["evaluate"],
        ["demo", "--steps", "none"],
        ["demo", "--seed", "-1"],
    ],
)
def test_usage_errors_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_evaluate_bad_input(sts, tmp_path, capsys):
    assert main(["evaluate", "/no/such/model", "--data", str(tmp_path / "none")]) == 2
    assert "not a folder" in capsys.readouterr().err
    assert main(["evaluate", "/no/such/model", "--data", str(sts), "--json", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err
    assert main(["evaluate", "/no/such/model", "--data", str(sts)]) == 2
    assert "can't be loaded" in capsys.readouterr().err


def test_help_needs_no_torch():
    script = (
        "import sys\nfrom st_contrastive.cli import main\n"
        "try:\n    main(['train', '--help'])\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for option in ("--method", "--data", "--output", "--translations", "--set"):
        assert option in done.stdout


def test_the_module_is_the_same_door():
    done = subprocess.run(
        [sys.executable, "-m", "st_contrastive", "evaluate", "x", "--data", "/no/such/folder"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("st-contrastive: --data: /no/such/folder is not a folder")


def test_graded_pairs_are_spread_over_the_scale():
    pairs = read_sts(str(resources.files("st_contrastive.cli") / "graded_pairs.jsonl"))
    assert len(pairs) >= 150
    assert len(set(zip(pairs.first, pairs.second, strict=True))) == len(pairs)
    counts = {score: pairs.scores.count(score) for score in sorted(set(pairs.scores))}
    assert list(counts) == [0, 1, 2, 3, 4, 5]
    assert min(counts.values()) >= 20


def test_demo_trains_every_method_and_prints_the_table(capsys, tmp_path, sts, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--steps", "1", "--batch-size", "2", "--output", "kept"]) == 0
    out = capsys.readouterr().out
    table = out[out.index("our pairs") :]
    for row in ("before training", "SimCSE", "ConIsI", "Twins", "InfoCSE"):
        assert row in table
    assert [path.name for path in tmp_path.iterdir() if path.name != "sts"] == ["kept"]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "before", "conisi", "infocse", "simcse", "twins",
    ]  # fmt: skip
    assert main(["demo", "--output", "kept"]) == 2
