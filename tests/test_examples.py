"""Each script of examples/ runs as it stands, with a tiny encoder and ten sentences."""

from __future__ import annotations

import re
import runpy
import sys

import nbclient
import nbformat
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from st_contrastive import evaluation
from st_contrastive.inputs import load_documents
from tests import foreign
from tests.processes import ROOT, TORCHRUN, run_python
from tests.snippets import save_reranker, write_documents, write_files

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture
def example(sentences, tmp_path, monkeypatch):
    """``example(name, *arguments)`` runs it in this process, in a folder with the files that it reads."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, sentences)

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        return runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")

    return run


def saved(folder):
    return (folder / "modules.json").is_file() and (folder / "model.safetensors").is_file()


#: Of the longer ones.
MOST_LINES = {
    "demo": 150, "search_with_a_teacher": 60, "search_in_qdrant": 85, "infocse_two_stages": 46, "twins_figure_4a": 46,
    "sigmoid_loss": 48,
}  # fmt: skip


def test_they_are_short_and_all_tested():
    text = (ROOT / "tests" / "test_examples.py").read_text(encoding="utf-8")
    assert len(EXAMPLES) >= 10
    for path in EXAMPLES:
        assert f'"{path.stem}' in text, f"{path} is not tested"
        most = MOST_LINES.get(path.stem, 42)
        assert len(path.read_text(encoding="utf-8").splitlines()) <= most


#: What each is called with behind an encoder, and what it prints.
SHORT = {
    "quickstart_trainer": (["corpus.txt", "out", "dev.jsonl"], r"-?[\d.]+ before, -?[\d.]+ after"),
    "quickstart_fit": (["corpus.txt", "out"], r"two others: \["),
    "quickstart_sentence_transformers": (["corpus.txt", "out"], "150 steps"),
    "sigmoid_loss": (["corpus.txt", "out"], "150 steps"),
    "conisi_antonyms": (["corpus.txt", "out"], r"(?s)\d+ of 10 sentences have no antonym.*'constructed':"),
}


@pytest.mark.parametrize("name", SHORT)
def test_short_ones(example, checkpoint, tmp_path, capsys, name):
    arguments, printed = SHORT[name]
    example(name, checkpoint("bert"), *arguments)
    trained = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert trained.max_seq_length == 64  # as before: training cut texts, and saving did not
    assert re.search(printed, capsys.readouterr().out)
    assert (tmp_path / "out-loss" / "loss_state.safetensors").is_file() == (name == "quickstart_sentence_transformers")


@pytest.mark.long
def test_the_notebook(build, tmp_path, monkeypatch):
    """It runs from top to bottom with a tiny encoder, and keeps the output of a run with the one that it names."""
    notebook = nbformat.read(ROOT / "examples" / "own_text.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert sum(bool(cell.outputs) for cell in code) >= 3
    build(pooling="mean").save_pretrained(str(tmp_path / "tiny"))
    monkeypatch.setenv("MODEL", str(tmp_path / "tiny"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert saved(tmp_path / "out")
    printed = "".join(output.get("text", "") for output in code[-1].outputs)
    assert re.search(r"before: \d+ of 300.*after: \d+ of 300", printed, re.DOTALL)


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_twins_translations(example, checkpoint, tmp_path, with_checkpoint):
    german = [foreign.checkpoint(tmp_path / "german")] if with_checkpoint else []
    names = example("twins_translations", checkpoint("bert"), "pairs.tsv", "out", *german)
    assert saved(tmp_path / "out")
    assert (names["fraternal"] is not None) == with_checkpoint


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_twins_figure_4a(example, build, sentences, tmp_path, capsys, with_checkpoint):
    build(pooling="mean").save_pretrained(str(tmp_path / "tiny"))
    lines = [line.split("\t")[1] for line in (tmp_path / "pairs.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    (tmp_path / "german.txt").write_text("\n".join([*lines, *lines[1:], lines[0]]), encoding="utf-8")
    german = [foreign.checkpoint(tmp_path / "german")] if with_checkpoint else []
    example("twins_figure_4a", tmp_path / "tiny", "dev.jsonl", tmp_path / "german.txt", *german)
    printed = re.findall(r"^([\w ]+): (-?[\d.]+)$", capsys.readouterr().out, re.MULTILINE)
    assert [name for name, _ in printed] == [
        "RandomInsertion", "SynonymReplacement", "RandomDeletion", "identical twins", "fraternal twins",
    ]  # fmt: skip
    assert len({score for _, score in printed}) > 2


def test_infocse_two_stages(example, checkpoint, tmp_path):
    names = example("infocse_two_stages", checkpoint("bert"), "corpus.txt", "out", "dev.jsonl")
    assert saved(tmp_path / "out")
    network = load_file(tmp_path / "out-stage1" / "auxiliary.safetensors")
    trained = names["loss"].auxiliary.state_dict()
    layers = [name for name in network if name in trained and network[name].dim() == 2]
    assert layers  # stage 2 has trained on from these, at a small learning rate
    for name in layers:
        torch.testing.assert_close(trained[name], network[name], atol=1e-3, rtol=0)


def test_resume(example, checkpoint, tmp_path, capsys):
    for _ in range(2):
        example("resume", checkpoint("bert"), "corpus.txt", "out")
    assert saved(tmp_path / "out")
    first, second = (line for line in capsys.readouterr().out.splitlines() if "1 steps, 10 vectors" in line)
    assert first.startswith("from the start")
    assert second.startswith("resumed")


def test_own_text(example, checkpoint, tmp_path, capsys):
    write_documents(tmp_path / "table.csv", 70)
    names = example("own_text", "table.csv", "out", checkpoint("bert"))
    assert saved(tmp_path / "out")
    assert names["run"].saved in ("start", "mixture")
    printed = capsys.readouterr().out
    assert "70 read" in printed
    assert re.search(r"before [\d.]+, after [\d.]+", printed)


def test_search_with_a_teacher(checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_documents(tmp_path / "table.csv", 120)
    save_reranker(checkpoint("bert"), tmp_path / "teacher")
    names = runpy.run_path(str(ROOT / "examples" / "search_with_a_teacher.py"))
    names["main"]("table.csv", "out", str(checkpoint("bert")), str(tmp_path / "teacher"), 2)
    assert re.search(r"[\d.]+ before, [\d.]+ after", capsys.readouterr().out)


def test_search_in_qdrant(example, build, tmp_path, capsys):
    """Its ranking is that of ``mix``; Qdrant's own fusion weighs both equally, and agrees less."""
    qdrant = pytest.importorskip("qdrant_client")
    write_documents(tmp_path / "table.csv", 60)
    build(pooling="mean").eval().save_pretrained(str(tmp_path / "model"))
    queries = ["Who sleeps on the bemi?", "About dato", "It rains on the kuna and the bola", "nothing of this"]
    index = example("search_in_qdrant", "table.csv", "title,body", tmp_path / "model", *queries)["index"]
    printed = capsys.readouterr().out
    assert all(query in printed for query in queries)
    documents = load_documents("table.csv", columns="title,body").texts
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    similarities = model.similarity(model.encode_query(queries), model.encode_document(documents)).numpy()
    mixed, common = evaluation.mix(similarities, evaluation.BM25(documents).scores(queries)), []
    for query, scores in zip(queries, mixed, strict=True):
        rows, found = zip(*index.search(query, limit=60), strict=True)
        assert sorted(rows) == [*range(60)]
        # The scores of the mixture, up to a constant of the query.
        np.testing.assert_allclose(np.array(found) - found[0], scores[[*rows]] - scores[rows[0]], atol=1e-4)
        fused = {row for row, _ in index.search(query, fusion=qdrant.models.Fusion.DBSF)}
        common.append(len(fused & {*rows[:10]}))
    assert 10 > np.mean(common) >= 4


@pytest.mark.long
def test_demo(example, capsys, tmp_path):
    example("demo")
    assert "before" in capsys.readouterr().out.lower()


def test_mteb_scores(example, build, tmp_path, capsys, monkeypatch):
    mteb = pytest.importorskip("mteb")
    seen = []
    monkeypatch.setattr(mteb, "get_task", lambda name: seen.append(name) or name)
    monkeypatch.setattr(evaluation, "evaluate_mteb", lambda model, tasks, name: ", ".join(tasks))
    build(pooling="mean").eval().save_pretrained(str(tmp_path / "model"))
    example("mteb_scores", tmp_path / "model", "STSBenchmark")
    assert "STSBenchmark" in capsys.readouterr().out


@pytest.mark.long
def test_two_processes(checkpoint, sentences, tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(f"{text} {n}" for n in range(13) for text in sentences))
    script = ROOT / "examples" / "two_processes.py"
    line = (*TORCHRUN, 2, script, checkpoint("bert"), "corpus.txt", "out")
    assert "2 processes" in run_python(*line, cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert saved(tmp_path / "out")
