"""Each script of examples/ runs as it stands, with a tiny encoder and ten sentences."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from tests import foreign
from tests.filters import TRAINING
from tests.snippets import ROOT, files

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

pytestmark = [
    *TRAINING,
    pytest.mark.filterwarnings("ignore:TwinsLoss was given one column"),
    pytest.mark.filterwarnings("ignore:The encoder's checkpoint has no masked-LM head"),
    pytest.mark.filterwarnings("ignore:The task 'STSBenchmark' is superseded"),
]


@pytest.fixture
def example(checkpoint, sentences, tmp_path, monkeypatch):
    """``example(name, *arguments)`` runs it in this process, in a folder with the files that it reads."""
    monkeypatch.chdir(tmp_path)
    files(tmp_path, sentences)

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        return runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")

    return run


def saved(folder):
    return (folder / "modules.json").is_file() and (folder / "model.safetensors").is_file()


def test_they_are_short_and_all_tested():
    tested = {
        "quickstart_fit", "quickstart_trainer", "conisi_antonyms", "twins_translations", "infocse_two_stages", "resume",
        "two_processes", "mteb_scores",
    }  # fmt: skip
    assert {path.stem for path in EXAMPLES} == tested
    for path in EXAMPLES:
        assert len(path.read_text(encoding="utf-8").splitlines()) < 40


@pytest.mark.parametrize("name", ["quickstart_fit", "quickstart_trainer"])
def test_quickstart(example, checkpoint, tmp_path, capsys, name):
    example(name, checkpoint("bert"), "corpus.txt", "out")
    assert saved(tmp_path / "out")
    assert "(2, 32)" in capsys.readouterr().out


def test_conisi_antonyms(example, checkpoint, tmp_path, capsys):
    example("conisi_antonyms", checkpoint("bert"), "corpus.txt", "out")
    assert saved(tmp_path / "out")
    printed = capsys.readouterr().out
    assert "'constructed':" in printed
    assert "had no antonym" in printed


@pytest.mark.parametrize("other", [True, False])
def test_twins_translations(example, checkpoint, tmp_path, other):
    german = [foreign.checkpoint(tmp_path / "german")] if other else []
    names = example("twins_translations", checkpoint("bert"), "pairs.tsv", "out", *german)
    assert saved(tmp_path / "out")
    assert (names["fraternal"] is not None) == other


def test_infocse_two_stages(example, checkpoint, tmp_path):
    names = example("infocse_two_stages", checkpoint("bert"), "corpus.txt", "out")
    assert saved(tmp_path / "out")
    assert (tmp_path / "out-stage1").is_dir()
    saved_network = load_file(tmp_path / "out-stage1" / "auxiliary.safetensors")
    trained = names["loss"].auxiliary.state_dict()
    layers = [name for name in saved_network if name in trained and saved_network[name].dim() == 2]
    assert layers  # stage 2 has trained on from these, at a small learning rate
    for name in layers:
        torch.testing.assert_close(trained[name], saved_network[name], atol=1e-3, rtol=0)


def test_resume(example, checkpoint, tmp_path, capsys):
    for _ in range(2):
        example("resume", checkpoint("bert"), "corpus.txt", "out")
    assert saved(tmp_path / "out")
    first, second = (line for line in capsys.readouterr().out.splitlines() if line.endswith(" 1 10"))
    assert first.startswith("from the start")
    assert second.startswith("resumed")


@pytest.mark.slow
def test_two_processes(checkpoint, sentences, tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(sentences * 13), encoding="utf-8")  # batches for both
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(ROOT / "examples" / "two_processes.py"), str(checkpoint("bert")), "corpus.txt", "out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 processes, 2 steps" in done.stdout
    assert saved(tmp_path / "out")


def test_mteb_scores(example, build, tmp_path, capsys):
    pytest.importorskip("mteb")
    build(pooling="mean").eval().save_pretrained(str(tmp_path / "model"))
    example("mteb_scores", tmp_path / "model", "results", "STSBenchmark", "data")
    assert "STSBenchmark" in capsys.readouterr().out
    assert list((tmp_path / "results").rglob("STSBenchmark.json"))
