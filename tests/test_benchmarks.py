"""The benchmarks' tables are those of the raw results, and their forms compute what the losses do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import _ablations, _adapted, _pictures, _replicated, _spaces, replicate, tables
from benchmarks._forms import form, translations
from benchmarks._results import read, write
from benchmarks.expected import Held
from st_contrastive.recipes import RECIPES
from tests.conftest import switch_off_dropout

ROOT = Path(tables.__file__).parent.parent


@pytest.mark.parametrize("name", list(tables.TABLES))
def test_tables_are_those_of_the_results(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for mark, make in tables.TABLES[name].items():
        made = make()
        assert made.count("\n") >= 2  # head, line, and a row
        assert tables.rendered(text, mark, made) == text, f"{mark}: run python -m benchmarks.tables"


def test_translations_are_as_long_as_the_sentences():
    texts = ["a cat sleeps on the mat", "it rains"]
    assert [sorted(text.split()) for text in translations(texts)] == [sorted(text.split()) for text in texts]


@pytest.mark.parametrize("method", ["SimCSE", "Twins"])
def test_the_straightforward_form_is_the_loss(method):
    """Where nothing is drawn but dropout: the same value and gradient, on real text."""
    texts = ["A cat sleeps on the mat.", "It rains in Oslo.", "The cost of a step is what it multiplies."]
    found = []
    for kind in ("ours", "straightforward"):
        made = form(method, kind, "minilm", 16)
        loss = made.loss
        switch_off_dropout(loss)
        for _ in range(2):  # so that a queue is in use
            loss.zero_grad()
            value = made.forward(texts)
        value.backward()
        found.append((value.detach(), loss.model[0].model.encoder.layer[0].attention.self.query.weight.grad))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-3, atol=1e-5)
    assert found[0][1].abs().sum() > 0


def _cell(recipe, seed, dev, test, **more):
    scores = {"stsb dev spearman": dev / 100, "stsb test spearman": test / 100}
    return {"recipe": recipe, "seed": seed, "label": "", "base": "", "data": "a", "set": [], "options": "", **more} | {
        "scores": scores
    }


def test_the_summary_is_simcse_and_the_differences_from_it():
    def scored(recipe, seed, dev, sts12, sts13, **more):
        scores = {
            "sts12 test spearman": sts12 / 100,
            "sts13 test spearman": sts13 / 100,
            "stsb dev spearman": dev / 100,
        }
        return {**_cell(recipe, seed, 0, 0, **more), "scores": scores}

    cells = [
        scored("mini-simcse", 0, 80, 70, 74),
        scored("mini-simcse", 1, 82, 72, 76),
        scored("mini-conisi-s", 1, 81, 76, 75),
        scored("mini-conisi-s", 1, 10, 10, 10, label="half", set=["interaction_weight=0.5"]),
        scored("mini-conisi-s", 1, 10, 10, 10, label="mean", options="--pooling mean"),
    ]
    untrained = {tables.MINILM: {"cls": scored("", 0, 60, 50, 54)["scores"]}}
    names = {("mini-simcse", ""): "A", ("mini-conisi-s", ""): "B", ("mini-conisi-s", "interaction_weight=0.5"): "C"}
    head, lines = _replicated.summary({"cells": cells, "untrained": untrained}, tables.MINILM, "cls", names)
    assert head == ["", "seeds", "dev", "the tests", "without STS12"]
    assert lines == [
        ["untrained", "", "60.0", "52.0", "54.0"],
        ["A", "2", "81.0", "73.0", "75.0"],
        ["B", "1", "-1.00", "+1.50", "-1.00"],
        ["C", "1", "-72.00", "-64.00", "-66.00"],
    ]


def test_methods_are_compared_with_simcse_under_their_own_pooling():
    mean = {"label": "mean", "options": "--pooling mean"}
    cells = [
        *(_cell("mini-simcse", seed, 80 + seed, 70 + seed) for seed in range(3)),
        *(_cell("mini-simcse", seed, 85, 75, **mean) for seed in range(3)),
        *(_cell("mini-conisi-s", seed, 81 + seed, 71 + seed + (seed - 1) / 2) for seed in range(3)),
        *(_cell("mini-twins-one-column", seed, 86, 74) for seed in range(2)),
        _cell("mini-conisi-s", 0, 90, 90, label="half", set=["interaction_weight=0.5"]),
        _cell("mini-simcse", 0, 10, 10, base="weak"),
    ]
    result = {
        "cells": cells,
        "untrained": {tables.MINILM: {name: _cell("", 0, 60, 50)["scores"] for name in ("cls", "mean")}},
    }
    lines = {(line[0], line[1]): line[2:] for line in _replicated.rows(result, tables.MINILM)[1]}
    assert list(lines) == [
        ("untrained", "[CLS]"),
        ("SimCSE, temperature 0.1", "[CLS]"),
        ("ConIsI-s", "[CLS]"),
        ("untrained", "mean"),
        ("SimCSE, temperature 0.1", "mean"),
        ("Twins, one column", "mean"),
    ]
    assert lines["SimCSE, temperature 0.1", "[CLS]"] == ["3", "81.00 ± 1.00", "71.00 ± 1.00", "71.00 ± 1.00", "", ""]
    # 0.5, 1 and 1.5 over SimCSE: Student's t for two degrees of freedom is 4.303
    half = 4.303 * 0.5 / 3**0.5
    assert lines["ConIsI-s", "[CLS]"][-2] == "+1.00 (+1.00 to +1.00)"
    assert lines["ConIsI-s", "[CLS]"][-1] == f"+1.00 ({1 - half:+.2f} to {1 + half:+.2f})"
    assert lines["Twins, one column", "mean"][-1] == "-1.00 (-1.00 to -1.00)"
    ((*about, seeds, dev, tests, over_dev, over_tests),) = _replicated.changed(result)[1]
    assert [*about, seeds] == ["ConIsI-s", "all-MiniLM-L6-v2", "a", "interaction_weight=0.5", "1"]
    values = [dev, tests, over_dev, over_tests]
    assert values == ["90.00", "90.00", "+9.00", "+19.50"]


def test_no_baseline_of_other_data():
    cells = [_cell("mini-simcse", 0, 80, 70), _cell("mini-infocse", 0, 81, 71, data="b")]
    found = _replicated.groups(cells, tables.MINILM)
    assert _replicated.baseline(found["mini-infocse", "cls", "", "b"], found) == {}
    cells[1]["data"] = "a"
    found = _replicated.groups(cells, tables.MINILM)
    assert _replicated.baseline(found["mini-infocse", "cls", "", "a"], found)[0]["scores"]["stsb dev spearman"] == 0.8
    full = [_cell("simcse-bert-base", 0, 80, 70), _cell("infocse-bert-base", 0, 81, 71), *cells]
    found = _replicated.groups(full, "bert-base-uncased")
    assert list(found) == [("simcse-bert-base", "cls", "", "a"), ("infocse-bert-base", "cls", "", "a")]
    assert _replicated.baseline(found["infocse-bert-base", "cls", "", "a"], found) == {0: full[0]}


def test_a_precision_is_no_other_recipe():
    cells = [
        _cell("mini-simcse", 0, 80, 70), _cell("mini-simcse", 0, 82, 72, label="bf16", options="--bf16"),
        _cell("mini-simcse", 0, 83, 73, label="x", options="--bf16", set=["temperature=0.1"]),
        _cell("mini-twins", 0, 85, 75, label="t", options="--translations de.txt --bf16 --pooling cls"),
    ]  # fmt: skip
    for own in (cells, cells[::-1]):
        result = {"cells": own, "untrained": {tables.MINILM: {"cls": _cell("", 0, 60, 50)["scores"]}}}
        lines = _replicated.rows(result, tables.MINILM)[1]
        assert [(line[0], line[-1]) for line in lines] == [
            ("untrained", ""), ("SimCSE, temperature 0.1", ""), ("SimCSE, x", ""), ("Twins", "+2.00"),
        ]  # fmt: skip
        ((_, _, _, what, *_, dev, tests),) = _replicated.changed(result)[1]
        assert (what, dev, tests) == ("temperature=0.1", "+3.00", "+3.00")
        assert _replicated.precisions(result)[1] == [["SimCSE", "a", "0", "80.00", "82.00", "70.00", "72.00"]]
    assert replicate.key(cells[0]) != replicate.key(cells[1])


def test_methods_are_held_to_the_temperature_of_simcse_that_is_best_on_dev():
    hot = {"label": "0.1", "set": ["temperature=0.1"]}
    cells = [_cell("mini-simcse", seed, 80, 75) for seed in range(3)]
    cells += [_cell("mini-simcse", seed, 81, 70, **hot) for seed in range(2)]
    cells += [_cell("mini-simcse", 0, 99, 70, label="head", set=["head=false"])]
    cells += [_cell("mini-conisi-s", seed, 82, 76) for seed in range(2)]
    cells += [_cell("mini-infocse", seed, 82, 76) for seed in range(3)]
    found = _replicated.groups(cells, tables.MINILM)
    conisi = _replicated.baseline(found["mini-conisi-s", "cls", "", "a"], found)
    assert {cell["label"] for cell in conisi.values()} == {"0.1"}
    infocse = _replicated.baseline(found["mini-infocse", "cls", "", "a"], found)
    assert {cell["label"] for cell in infocse.values()} == {""}  # 0.1 lacks a seed
    assert _replicated.baseline(found["mini-simcse", "cls", "temperature=0.1", "a"], found) == {}


def test_what_was_not_scored_is_empty():
    cells = [_cell("mini-simcse", seed, 80, 70, options="--pooling keep") for seed in range(2)]
    for cell in cells:
        del cell["scores"]["stsb dev spearman"]
    result = {"cells": cells, "untrained": {tables.MINILM: {"cls": dict(cells[0]["scores"])}}}
    untrained, simcse = _replicated.rows(result, tables.MINILM)[1]
    assert untrained == ["untrained", "[CLS]", "", "", "70.00", "70.00", "", ""]
    assert simcse == ["SimCSE, temperature 0.1", "keep", "2", "", "70.00 ± 0.00", "70.00 ± 0.00", "", ""]
    cells[0]["scores"]["stsb test spearman"] = None  # it diverged
    assert _replicated.rows(result, tables.MINILM)[1][1][4] == "nan ± nan"
    retrieved = [_cell("mini-simcse", seed, 80, 70, set=["temperature=1"], label="hot") for seed in range(2)]
    for cell in retrieved:
        cell["scores"] = {"scifact test ndcg@10": 0.6}
    assert _replicated.changed({"cells": retrieved, "untrained": {}})[1] == []


def test_a_cell_of_another_suite_takes_nothing_from_the_others():
    cells = [_cell("mini-simcse", 0, 80, 70), _cell("mini-infocse", 0, 81, 71), _cell("mini-diffcse", 0, 0, 0)]
    cells += [_cell("mini-simcse", 0, 82, 72, set=["temperature=1"], label="hot"), _cell("mini-infocse", 1, 0, 0)]
    for cell in (cells[2], cells[4]):
        cell["scores"] = {"stsb dev alignment": 0.2}
    untrained = {"cls": {"stsb dev alignment": 0.3}}
    result = {"cells": cells, "untrained": {tables.MINILM: untrained}}
    lines = _replicated.rows(result, tables.MINILM)[1]
    assert [line[0] for line in lines] == ["SimCSE, temperature 0.1", "SimCSE, hot", "InfoCSE without stage 1"]
    assert lines[-1][2:] == ["1", "81.00", "71.00", "71.00", "-1.00", "-1.00"]
    assert _replicated.changed(result)[1][0][-4:] == ["82.00", "72.00", "+2.00", "+2.00"]
    assert _adapted.rows(result, tables.MINILM)[1] == []
    cells[2]["scores"] = {f"scifact test {metric}": 0.5 for metric in _adapted.METRICS}
    assert _adapted.rows(result, tables.MINILM)[1] == [
        ["DiffCSE", "[CLS]", "1", "50.00", "50.00", "50.00", ""]  # and nothing that it is over
    ]


def test_other_files_under_the_same_names_are_refused():
    cells = [_cell("mini-simcse", 0, 80, 70, files={"data": "x", "dev": "y"})]
    cells.append(_cell("mini-simcse", 0, 80, 70, base="weak", files={"data": "x", "dev": "y", "model": "z"}))
    found = {"cells": cells}
    for base, files, other in (
        ("", {"data": "x", "dev": "y"}, ""),
        ("", {"data": "o", "dev": "y"}, "data"),
        ("", {"data": "x", "dev": "o"}, "dev"),
        ("weak", {"data": "x", "dev": "y", "model": "z"}, ""),
        ("weak", {"data": "x", "model": "o"}, "model"),
        ("weaker", {"data": "x", "dev": "o", "model": "o"}, ""),
    ):
        assert replicate.other_files(found, "a", base, files) == other
    assert replicate.other_files(found, "b", "", {"data": "o"}) == ""
    assert replicate.other_files(found, "b", "weak", {"data": "o", "model": "o"}) == "model"


def test_retrieval_is_compared_on_the_same_sets():
    def scores(*sets, **found):
        return {f"{name} test {metric}": found[name] for name in sets for metric in _adapted.METRICS}

    cells = [_cell("mini-simcse", seed, 80, 70) for seed in range(2)]
    cells[0]["scores"] = scores("scifact", scifact=0.6)
    cells[1]["scores"] = scores("scifact", "nfcorpus", scifact=0.6, nfcorpus=0.3)
    cells[1]["scores"]["stsb retrieval test recall@10"] = 0.99
    result = {"cells": cells, "untrained": {tables.MINILM: {"cls": scores("scifact", scifact=0.6)}}}
    assert [line[3:] for line in _adapted.rows(result, tables.MINILM)[1]] == [
        ["60.00"] * 3 + [""],
        ["60.00 ± 0.00"] * 3 + ["+0.00 (+0.00 to +0.00)"],
    ]


def test_a_mean_is_of_the_same_sets():
    cells = [_cell("mini-simcse", 0, 80, 70), _cell("mini-infocse", 0, 81, 71)]
    cells[1]["scores"]["STS-14 test spearman"] = 0.1
    result = {"cells": cells, "untrained": {tables.MINILM: {"cls": _cell("", 0, 60, 50)["scores"]}}}
    assert _replicated.rows(result, tables.MINILM)[1][-1][-1] == "+1.00"
    cells[0]["scores"]["sts14 test spearman"] = result["untrained"][tables.MINILM]["cls"]["STS14 test spearman"] = 0.3
    head, lines = _replicated.rows(result, tables.MINILM)
    assert head[3:6] == ["dev", "sts14", "stsb"]
    assert lines[-1][-1] == "-9.50"  # 81 over 2 against 100 over 2
    del cells[1]["scores"]["stsb test spearman"], cells[0]["scores"]["sts14 test spearman"]
    assert _replicated.rows(result, tables.MINILM)[1][-1][-1] == ""  # nothing in common


def test_ablations_are_held_to_the_whole():
    cls = {"options": "--bf16 --pooling cls", "label": "cls"}
    cells = [_cell("mini-twins-one-column", seed, 80 + seed, 70, **cls) for seed in range(3)]
    cells += [_cell("mini-twins-one-column-no-queue", seed, 79 + 2 * seed, 69, **cls) for seed in (1, 2)]
    cells += [
        _cell("mini-twins-one-column-no-queue", 0, 10, 10),
        _cell("mini-twins-one-column-no-queue", 0, 10, 10, data="b", **cls),
    ]
    cells.append(_cell("mini-twins-one-column", 0, 1, 1, set=["temperature=1"], **cls))
    known = {tables.MINILM: {"cls": _cell("", 0, 60, 50)["scores"]}}
    (line,) = _ablations.rows({"cells": cells, "untrained": known}, tables.MINILM)[1]
    whole = "Twins, one column"
    assert line == [
        f"{whole}, without queue", whole, "[CLS]", "2", "+0.50 (-5.85 to +6.85)", "-1.00 (-1.00 to -1.00)"
    ]  # fmt: skip
    assert set(_ablations.CHANGE_OF) | set(_ablations.CHANGE_OF.values()) <= RECIPES.keys()


def test_other_suites_have_a_table():
    """Columns of what was scored; cells without any of it are left out, and tasks are those that all have."""
    cells = [_cell("mini-simcse", seed, 80, 70) for seed in range(3)] + [_cell("mini-infocse", 0, 80, 70)]
    for seed, cell in enumerate(cells[:2]):
        cell["scores"] |= {"stsb dev alignment": 0.2 + seed / 10, "mr test accuracy": 0.7 + seed / 10}
    cells[1]["scores"]["cr test accuracy"] = 0.1
    cells[3]["scores"] |= {"stsb retrieval test recall@1": 0.5, "stsb dev alignment": None}
    untrained = {"cls": {"stsb dev alignment": 0.25, "sst2 test accuracy": 0.5, "mr test accuracy": 0.6}}
    head, lines = _spaces.rows({"cells": cells, "untrained": {tables.MINILM: untrained}}, tables.MINILM)
    assert head == ["", "pooling", "seeds", "R@1", "transfer", "alignment"]
    assert lines == [
        ["untrained", "[CLS]", "", "", "60.00", "0.250"],
        ["SimCSE, temperature 0.1", "[CLS]", "2", "", "75.00 ± 7.07", "0.250 ± 0.071"],
        ["InfoCSE without stage 1", "[CLS]", "1", "50.00", "", ""],
    ]


def test_transfer_is_held_to_simcse():
    """The tasks that all have, and differences of the seeds that both have."""
    cells = [_cell("mini-simcse", seed, 80, 70) for seed in range(2)]
    cells += [_cell("mini-infocse", seed, 80, 70) for seed in range(3)]
    for cell, mr in zip(cells, (0.70, 0.72, 0.71, 0.75, 0.9), strict=True):
        cell["scores"] |= {"mr test accuracy": mr, "trec test accuracy": 0.5, "mr dev accuracy": 0.1}
    cells[0]["scores"]["cr test accuracy"] = 0.9
    cells.append(_cell("mini-conisi-s", 0, 80, 70))  # scored on STS alone
    untrained = {"cls": {"mr test accuracy": 0.6, "trec test accuracy": 0.4}, "mean": {"stsb dev spearman": 0.8}}
    head, lines = _spaces.transferred({"cells": cells, "untrained": {tables.MINILM: untrained}}, tables.MINILM)
    assert head == ["", "pooling", "seeds", "mr", "trec", "mean", "over SimCSE's, same seeds (95 %)"]
    assert lines == [
        ["untrained", "[CLS]", "", "60.00", "40.00", "50.00", ""],
        ["SimCSE, temperature 0.1", "[CLS]", "2", "71.00 ± 1.41", "50.00 ± 0.00", "60.50 ± 0.71", ""],
        ["InfoCSE without stage 1", "[CLS]", "3", "78.67 ± 10.02", "50.00 ± 0.00", "64.33 ± 5.01",
         "+1.00 (-5.35 to +7.35)"],
    ]  # fmt: skip


def test_any_file_is_shown(tmp_path):
    """Each data and encoder by itself, and the suite that the cells were scored on."""
    retrieved = {f"scifact test {metric}": 0.5 for metric in ("ndcg@10", "recall@10", "recall@100")}
    own = [_cell("mini-simcse", seed, 0, 0, data="own.txt") for seed in range(2)]
    for seed, cell in enumerate(own):
        cell["scores"] = {**retrieved, "scifact test ndcg@10": 0.6 + seed / 10}
    cells = [_cell("mini-simcse", 0, 80, 70), _cell("mini-simcse", 0, 60, 50, base="weak"), *own]
    known = _cell("", 0, 60, 50)["scores"]
    result = {"cells": cells, "untrained": {tables.MINILM: {"cls": {**known, **retrieved}}, "weak": {"cls": known}}}
    cells.append(_cell("mini-infocse", 0, 61, 51, data="own.txt"))
    write(str(tmp_path / "mine.json"), result)
    parts = tables.shown(str(tmp_path / "mine.json")).split("\n\n")
    assert [part.splitlines()[-1] for part in parts] == [
        f"From {tables.MINILM}, on a:",
        "| SimCSE, temperature 0.1 | [CLS] | 1 | 80.00 | 70.00 | 70.00 |  |  |",
        "From weak, on a:",
        "| SimCSE, temperature 0.1 | [CLS] | 1 | 60.00 | 50.00 | 50.00 |  |  |",
        f"From {tables.MINILM}, on own.txt:",
        "| InfoCSE without stage 1 | [CLS] | 1 | 61.00 | 51.00 | 51.00 |  |  |",
        "| SimCSE, temperature 0.1 | [CLS] | 2 | 65.00 ± 7.07 | 50.00 ± 0.00 | 50.00 ± 0.00 | "
        "+15.00 (-48.53 to +78.53) |",
    ]


def test_a_run_that_diverged_has_a_curve(tmp_path):
    curve = {"curve": [(25, 0.8), (50, None)]}
    cells = [_cell("mini-simcse", seed, 80, 70, **curve) for seed in range(2)]
    result = {"cells": cells, "untrained": {tables.MINILM: {"cls": _cell("", 0, 60, 50)["scores"]}}}
    _pictures.curves(result, tables.MINILM, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 5000


def test_a_run_that_diverged_is_a_result(tmp_path, monkeypatch):
    """It exits with 1 and has a record; a run that failed has none."""
    record = dict.fromkeys(("best", "steps", "loss", "seconds", "peak_mib", "device", "versions"))
    record |= {"files": {}, "log": [{"step": 25, "eval_dev_spearman": None}]}
    failing = RuntimeError("train failed")

    def command(*words):
        if Path(words[-1]).name == "diverged":
            Path(words[-1]).mkdir()
            Path(words[-1], "training_run.json").write_text(json.dumps(record))
        raise failing

    monkeypatch.setattr(replicate, "command", command)
    assert replicate.trained(["train"], str(tmp_path / "diverged"), {})["curve"] == [(25, None)]
    with pytest.raises(RuntimeError, match="train failed"):
        replicate.trained(["train"], str(tmp_path / "broken"), {})


def test_cells_are_added_one_by_one(tmp_path):
    file = str(tmp_path / "results.json")
    cells = [_cell("mini-simcse", 0, 80, 70), _cell("mini-simcse", 0, 80, 70, data="b")]
    for cell in cells:
        replicate.add(file, cell)
    again = {**cells[0], "scores": {"stsb test spearman": 0.5}}
    replicate.add(file, again)
    assert read(file, None)["cells"] == [cells[1], {**again, "scores": {**cells[0]["scores"], **again["scores"]}}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.json", "results.json.lock"]


def test_a_kept_model_of_other_files_is_refused(tmp_path):
    record = {"files": {"data": "x", "model": "y"}, "log": [], "best": None}
    record |= dict.fromkeys(("steps", "loss", "seconds", "peak_mib", "device", "versions"))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "training_run.json").write_text(json.dumps(record), encoding="utf-8")
    (tmp_path / "kept.commit").write_text("abc", encoding="utf-8")
    kept = str(tmp_path / "kept")
    assert replicate.trained([], kept, {"data": "x", "dev": "z"})["commit"] == "abc"
    with pytest.raises(SystemExit, match="was trained with another --model of the same name: name another --models"):
        replicate.trained([], kept, {"data": "x", "model": "z"})


def test_folders_are_not_written_down():
    given = "--lr 1e-4 --translations /data/de.txt --auxiliary runs/stage1"
    assert replicate.without_folders(given) == "--lr 1e-4 --translations de.txt --auxiliary stage1"


def test_what_autograd_holds_is_counted_once():
    layer = torch.nn.Linear(4, 4)
    rows = torch.ones(3, 4, requires_grad=True)
    with Held(layer) as held:
        hidden = layer(rows)
        (hidden.sigmoid() * hidden.sigmoid()).sum().backward()
    # The input, and both sigmoids, each of 3 x 4 numbers; not the weight.
    assert held.bytes == 3 * 3 * 4 * 4
