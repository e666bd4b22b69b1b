"""The README's Python runs, with a tiny encoder in place of the named ones and a small corpus."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import foreign
from tests.evaluation.encoders import write
from tests.filters import TRAINING

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)

pytestmark = [*TRAINING]


def test_there_are_all_doors():
    assert len(BLOCKS) == 6
    assert "model.fit(" in BLOCKS[0]
    assert all("SentenceTransformerTrainer(" in block for block in BLOCKS[1:3])
    assert "evaluate_sts(" in BLOCKS[3]
    assert all("ContrastiveTrainer(" in block for block in BLOCKS[4:])
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) <= 12


@pytest.mark.parametrize("block", BLOCKS[:3] + BLOCKS[4:], ids=["fit", "trainer", "stages", "surviving", "fast"])
def test_quick_start_runs(block, checkpoint, sentences, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("\n".join(sentences), encoding="utf-8")
    pairs = zip(sentences, foreign.GERMAN, strict=True)
    Path("pairs.tsv").write_text("".join(f"{one}\t{two}\n" for one, two in pairs), encoding="utf-8")
    code, replaced = re.subn(r'"bert-base-[a-z-]*"', repr(str(checkpoint("bert"))), block)
    assert replaced == 1
    code = code.replace('"distilbert/distilbert-base-german-cased"', repr(str(foreign.checkpoint(tmp_path / "german"))))
    exec(compile(code, str(README), "exec"), {})
    assert (tmp_path / "out" / "modules.json").is_file()
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.filterwarnings("ignore:The task 'STSBenchmark' is superseded")
def test_evaluation_runs(build, sentences, tmp_path, monkeypatch, capsys):
    pytest.importorskip("mteb")
    monkeypatch.chdir(tmp_path)
    build(pooling="mean").eval().save_pretrained("out")
    rows = [
        {"sentence1": a, "sentence2": b, "score": score}
        for score, (a, b) in enumerate(zip(sentences, sentences[::-1], strict=True))
    ]
    write(tmp_path / "data" / "sts" / "stsb" / "test.jsonl", rows)
    exec(compile(BLOCKS[3], str(README), "exec"), {})
    told = capsys.readouterr().out.splitlines()
    ours, theirs = (line.split()[-1] for line in told if line.startswith(("stsb ", "STSB")) and "spearman" in line)
    assert ours == theirs
