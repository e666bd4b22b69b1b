"""The README: its Python and commands run, its figures are those of the results, and it stays short."""

from __future__ import annotations

import json
import statistics

import pytest

from benchmarks import _help, _replicated, tables
from st_contrastive import cli
from tests.filters import TRAINING
from tests.snippets import ROOT, files, python_blocks, run, shell_lines

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
LINES = TEXT.splitlines()
BLOCKS = python_blocks(README)

pytestmark = [*TRAINING]


def test_it_is_short_and_begins_with_what_a_user_needs():
    assert len(LINES) <= 200
    assert len(TEXT.split()) <= 1600
    assert next(place for place, line in enumerate(LINES, 1) if line.startswith("pip install")) < 30
    assert LINES.index("```python") + 1 < 45
    assert len(BLOCKS[0].splitlines()) <= 15


def test_there_is_a_block_for_each_way():
    assert len(BLOCKS) == 4
    for name, block in zip(("SimCSELoss", "TwinsLoss", "InfoCSELoss", "evaluate_sts"), BLOCKS, strict=True):
        assert name in block


@pytest.mark.parametrize("block", BLOCKS[:3], ids=["simcse", "twins", "infocse"])
def test_training_runs(block, checkpoint, sentences, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files(tmp_path, sentences)
    names: dict[str, object] = {}
    run(block, README, tmp_path, checkpoint, names)
    assert (tmp_path / "out" / "modules.json").is_file()
    assert (tmp_path / "out" / "model.safetensors").is_file()
    if "embeddings" in names:
        assert names["embeddings"].shape == (2, 32)


@pytest.mark.filterwarnings("ignore:The task 'STSBenchmark' is superseded")
def test_evaluation_runs(build, checkpoint, sentences, tmp_path, monkeypatch, capsys):
    pytest.importorskip("mteb")
    monkeypatch.chdir(tmp_path)
    files(tmp_path, sentences)
    build(pooling="mean").eval().save_pretrained("out")
    block = BLOCKS[3]  # which loads from the hub
    for online, local in (
        ("evaluate_sts(model)", 'evaluate_sts(model, "data/sts")'),
        ('name="out")', 'name="out", data="data")'),
    ):
        assert block.count(online) == 1
        block = block.replace(online, local)
    run(block, README, tmp_path, checkpoint, {})
    lines = capsys.readouterr().out.splitlines()
    ours = [line for line in lines if line.startswith("stsb ") and "test  spearman" in line]
    theirs = [line for line in lines if line.startswith("STSB") and "spearman" in line]
    assert len(ours) == len(theirs) == 1
    assert ours[0].split()[-1] == theirs[0].split()[-1] != "0.00"


def test_commands_run(checkpoint, sentences, tmp_path, monkeypatch, capsys):
    """But for the demo and the recipe, which take minutes and MiniLM; tests/test_docs.py parses these."""
    monkeypatch.chdir(tmp_path)
    files(tmp_path, sentences)
    commands = [line for line in shell_lines(README) if line.startswith("st-contrastive ")]
    ran = [line for line in commands if "--recipe" not in line and "demo" not in line and "--help" not in line]
    assert len(ran) == 2
    for command in ran:  # without --eval-data, evaluate loads from the hub
        local = command.replace("bert-base-uncased", str(checkpoint("bert"))).replace(
            "evaluate out", "evaluate out --eval-data data/"
        )
        assert cli.main(local.split()[1:]) == 0
    assert (tmp_path / "out" / "training_run.json").is_file()
    assert "spearman" in capsys.readouterr().out


def read(name):
    return json.loads((tables.RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def test_step_times_are_those_of_the_results():
    seconds = {
        (row["encoder"], row["method"]): row["seconds"]["ours"]
        for row in read("speed_time")
        if (row["batch_size"], row["precision"]) == (64, "fp32")
    }
    section = LINES[LINES.index("## Which loss should I use?") : LINES.index("## What to expect")]
    rows = [line.split("|") for line in section if line.startswith("| `") and "Loss`" in line]
    assert len(rows) == 4
    for row in rows:
        method = row[1].strip(" `").removesuffix("Loss")
        times = [seconds[encoder, method] / seconds[encoder, "SimCSE"] for encoder in ("minilm", "base")]
        assert [cell.strip() for cell in row[3:5]] == [f"{value:.1f}".removesuffix(".0") for value in times]
    ratios = [
        1 / row["ours_over"]["library"]["median"]
        for row in read("speed_time")
        if (row["encoder"], row["batch_size"], row["precision"], row["method"]) == ("minilm", 64, "fp32", "SimCSE")
    ]
    assert f"on a CPU its step was {ratios[0]:.1f} times as fast" in " ".join(TEXT.split())


def test_the_results_in_short_are_those_of_the_results():
    result = tables.on_wikipedia()
    found = _replicated.shown_groups(_replicated.of_sts(result["cells"]), tables.MINILM)
    tests = _replicated.shared_tests(result, tables.MINILM, found)
    text = " ".join(TEXT.split())

    again = read("transfer")
    _, lines = _replicated.summary(again, tables.MINILM, "mean", tables.BY_DEFAULT)
    untrained, simcse, *others = lines
    assert f"raised all-MiniLM-L6-v2 on STS (Spearman × 100, {untrained[3]} to {simcse[3]}) and" in text
    assert "No loss is reliably ahead of SimCSE" in text
    assert all("(-" in line[2] and "(-" in line[3] for line in others)
    groups = _replicated.groups(_replicated.of_sts(again["cells"]), tables.MINILM).items()

    def with_mean_pooling(which):
        own = next(own for (name, pooling, changes, _), own in groups if (name, changes, pooling) == (*which, "mean"))
        return [_replicated.scores_of(cell) for cell in own.values()]

    named = {shown: which for which, shown in tables.BY_DEFAULT.items()}
    of_simcse, conisi = (with_mean_pooling(named[f"`{name}(model)`"]) for name in ("SimCSELoss", "ConIsILoss"))
    assert len(conisi) == len(of_simcse) == 3
    start = _replicated.scores_of({"scores": again["untrained"][tables.MINILM]["mean"]})["mean"]
    assert "with ConIsI the tests fell below the untrained encoder's with each seed" in text
    assert all(scores["mean"] < start for scores in conisi)

    assert "all losses stay below SimCSE with mean pooling" in text
    trained = [(which, cell) for which, own in found.items() for cell in own.values()]
    first = [_replicated.scores_of(cell, tests) for (_, pooling, *_), cell in trained if pooling == "cls"]
    assert len(first) > 30
    for name in ("dev", "mean"):
        assert all(scores[name] < min(one[name] for one in of_simcse) for scores in first)

    untrained, simcse, *others = _replicated.summary(again, tables.MINILM, "cls", tables.IN_SHORT)[1]
    assert f"SimCSE raises the tests from {untrained[3]} to {simcse[3]}" in text
    projector = next(line for line in others if "projector" in line[0])
    on_tests = projector[3].replace("+", "")
    on_dev = projector[2].replace("-", "")
    low, high = on_dev.partition("(")[2].strip(")").split(" to ")
    assert f"with the projector is {on_tests.replace(' (', ' ahead of it on the tests (')}" in text
    assert f"and {on_dev.split()[0]} behind on dev ({high} to {low})" in text

    translated = tables.trained_on(tables.TRANSLATED, read("replicate"))
    rows = {line[0]: line for line in _replicated.short_rows(translated, tables.MINILM)[1] if line[1] == "[CLS]"}
    over = [cell.replace("+", "") for cell in rows["Twins"][-2:]]
    on_dev, on_tests = (cell.split(" ", 1) for cell in over)
    ahead = f"Twins is {on_dev[0]} ahead of SimCSE at the same temperature, 0.05, on dev {on_dev[1]}"
    assert f"{ahead} and {on_tests[0]} on the tests {on_tests[1]}" in text

    helped = read("do_they_help")
    simcse = _help.by_title(helped["cells"])["SimCSE"].values()
    reached = statistics.mean(_replicated.scores_of(cell)["mean"] for cell in simcse)
    start = _replicated.scores_of({"scores": helped["untrained"]["language"]["cls"]})["mean"]
    other = [
        _replicated.scores_of(cell)["mean"]
        for cell in _help.by_title(read("transfer_language")["cells"])["SimCSE"].values()
    ]
    seeds = ("one seed", "two seeds", "three seeds")[len(other) - 1]
    elsewhere = f"(to {statistics.mean(other):.1f} from another such model, {seeds})"
    assert f"raises the tests from {start:.1f} to {reached:.1f} {elsewhere}" in text
    german = _help.compared(helped, "mean")["Twins with German"]
    ahead = statistics.mean(german), *_replicated.interval(german)
    assert "is {:.1f} ahead of SimCSE on the same sentences ({:.1f} to {:.1f})".format(*ahead) in text
    tanh = _help.compared(helped, "mean")["InfoCSE, SimCSE's head"]
    ahead = statistics.mean(tanh), *_replicated.interval(tanh)
    of_infocse = (
        "default head, `mlm_weight=2` and learning rate 1e-4 is {:.1f} ahead of SimCSE from the same stage 1 "
        "({:.1f} to {:.1f}, three"
    )
    assert of_infocse.format(*ahead) in text
    assert len(tanh) == 3
    for title in ("ConIsI-s", "Twins, one column"):
        low, high = _replicated.interval(_help.compared(helped, "mean")[title])
        assert low < 0 < high

    mixed = tables._adapted.curves(read("keep_share"))["mini-simcse", "cls"]
    sts, retrieval = (
        {share: statistics.mean(pair[place] for pair in pairs) for share, pairs in mixed.items()} for place in (0, 1)
    )
    kept = f"{(sts[0.5] - sts[0]) / (sts[1] - sts[0]):.0%}".replace("%", " %")
    changed = [pair[1] - retrieval[0] for pair in mixed[0.5]]
    even = "{:.1f} to {:.1f}".format(*_replicated.interval(changed))
    zero = f"{statistics.mean(changed):.1f}"
    assert f" {kept} of SimCSE's gain on STS and changed SciFact by {zero} ({even})" in text
    assert retrieval[0.5] > retrieval[0] > retrieval[1]

    lines = tables._spaces.transferred(read("transfer"), tables.MINILM)[1]
    moved = {line[0]: line for line in lines if line[1] == "[CLS]"}
    whole, with_tanh = (moved[name] for name in ("InfoCSE without stage 1", "InfoCSE without stage 1, SimCSE's head"))
    assert whole[2] == with_tanh[2] == "2"
    above = float(whole[-1].split()[0])
    assert f"its [CLS] vector is {above:.1f} points of accuracy above SimCSE's" in text
    low, high = map(float, with_tanh[-1].partition("(")[2].strip(")").split(" to "))
    assert low < 0 < high

    harm = {line[0]: line for line in tables._adapted.rows(read("adaptation"), tables.MINILM)[1] if line[1] == "mean"}
    fell = [float(harm[name][3]) for name in ("untrained", "SimCSE, temperature 0.05")]
    assert "lowered it on SciFact retrieval (nDCG@10 × 100, {:.1f} to {:.1f})".format(*fell) in text
    lost = [-float(harm[name][-1]) for name in ("SimCSE, temperature 0.05", "ConIsI-s", "InfoCSE without stage 1")]
    assert "lost {:.1f} points of nDCG@10 with SimCSE, {:.1f} with ConIsI and {:.1f} with InfoCSE".format(*lost) in text
