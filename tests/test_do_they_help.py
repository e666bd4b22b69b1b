"""The rows of the comparison, and the commands that train them."""

from __future__ import annotations

import json

import pytest

from benchmarks import _help, choose, do_they_help, replicate
from benchmarks._results import claimed
from benchmarks.choose import METHODS, chosen_settings
from st_contrastive import cli
from tests.filters import TRAINING

pytestmark = [*TRAINING, pytest.mark.filterwarnings("ignore:TwinsLoss was given one column")]
#: Where the paper's values did best for SimCSE alone.
CHOSEN = {name: {**method.candidates()[0 if name == "simcse" else -1], "dev": 0.8} for name, method in METHODS.items()}


@pytest.fixture
def words(tmp_path, monkeypatch):
    for name in ("wiki.txt", "dev.jsonl", "en.txt", "de.txt"):
        (tmp_path / name).write_text("a\n", encoding="utf-8")
    for name in ("base", "stage1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "chosen.json").write_text(json.dumps({"chosen": CHOSEN}))
    monkeypatch.chdir(tmp_path)
    return [
        "--chosen", "chosen.json", "--base", "language=base", "--stage1", "stage1", "--data", "wiki.txt", "--pairs",
        "en.txt", "de.txt", "--dev", "dev.jsonl", "--suites", "data", "--runs", "runs", "--json", "help.json",
    ]  # fmt: skip


def test_rows_and_seeds(tmp_path):
    (tmp_path / "all.json").write_text(json.dumps({"chosen": CHOSEN}))
    rows = {row.title: row for row in do_they_help.rows(chosen_settings(str(tmp_path / "all.json")))}
    assert len(rows) == 6 + 3 + 8
    german = rows["Twins with German"].setting
    assert {**rows["Twins on the translated sentences"].setting, "twins_weight": 0.1} == german
    assert [title for title in rows if title.endswith(do_they_help.PAPER)] == [
        f"{title}, the paper's values" for title in ("ConIsI-s", "InfoCSE", "Twins with German")
    ]
    assert len(rows["SimCSE from stage 1"].seeds) == len(rows["InfoCSE"].seeds) == 5
    assert "SimCSE, the paper's values" not in rows
    assert rows["InfoCSE, the paper's values"].setting == {"temperature": 0.05, "lr": 3e-5, "mlm_weight": 1e-5}
    assert rows["InfoCSE, SimCSE's head"].setting == {**rows["InfoCSE"].setting, "head": "tanh"}
    assert {len(row.seeds) for title, row in rows.items() if title in do_they_help.TITLES.values()} == {5}
    few = {name: cell for name, cell in CHOSEN.items() if name != "infocse"}
    (tmp_path / "few.json").write_text(json.dumps({"chosen": few}))
    with pytest.raises(SystemExit, match="no setting of infocse yet"):
        chosen_settings(str(tmp_path / "few.json"))


def test_the_commands_are_ones_that_replicate_and_train_take(words, tmp_path, monkeypatch):
    parsed = []

    def trained(words, out, files):
        parsed.append(cli.parse([*words, "--output", out]))
        return {"best_step": 1, "seconds": 1.0}

    scored = []

    def score(model, suites, args, *more):
        scored.append((args.label, tuple(suites)))
        return {f"x test{replicate.ENDS[suite]}": 0.5 for suite in suites}

    monkeypatch.setattr(replicate, "trained", trained)
    monkeypatch.setattr(replicate, "scored", score)
    sts = [*words, "--seeds", "1", "--suite", "sts"]
    with claimed(tmp_path / "runs" / "SimCSE 1.lock"):
        do_they_help.main(sts)
    assert len(parsed) == 16
    do_they_help.main(sts)
    assert len(parsed) == 17
    do_they_help.main(sts)
    assert len(parsed) == 17
    result = json.loads((tmp_path / "help.json").read_text(encoding="utf-8"))
    by_title = {cell["label"]: args for cell, args in zip(result["cells"], parsed, strict=True)}
    assert list(by_title)[-1] == "SimCSE"
    assert {(args.max_steps, args.evaluate_steps, args.pooling, args.seed) for args in parsed} == {(400, 50, "cls", 1)}
    for title, (model, auxiliary, data, translations) in {
        "SimCSE": ("base", None, "wiki.txt", None),
        "SimCSE on the translated sentences": ("base", None, "en.txt", None),
        "Twins with German": ("base", None, "en.txt", "de.txt"),
        "Twins on the translated sentences": ("base", None, "en.txt", None),
        "InfoCSE": ("stage1", "stage1", "wiki.txt", None),
        "InfoCSE without stage 1": ("base", None, "wiki.txt", None),
        "InfoCSE, SimCSE's head": ("stage1", "stage1", "wiki.txt", None),
        "SimCSE from stage 1": ("stage1", None, "wiki.txt", None),
    }.items():
        args = by_title[title]
        assert (args.model, args.auxiliary, args.data, args.translations) == (model, auxiliary, data, translations)
    assert by_title["ConIsI-s"].learning_rate == 1e-4
    assert by_title["ConIsI-s, the paper's values"].learning_rate == 3e-5
    assert by_title["DiffCSE"].recipe == "mini-diffcse"
    before = {"cls": {"x test spearman": 0.5}}
    assert result["untrained"] == {"language": before, "language-stage1": before}
    # A suite that a cell lacks is scored without training again, and once; an untrained encoder too.
    scored.clear()
    monkeypatch.setattr("pathlib.Path.is_dir", lambda _: True)  # the models
    for _ in range(2):
        do_they_help.main([*words, "--seeds", "1", "--suite", "sts", "transfer"])
        assert len(scored) == 19
    assert {suites for _, suites in scored} == {("transfer",)}
    assert len(parsed) == 17


def test_transfer_is_held_to_simcse_from_the_same_encoder():
    """Differences are paired by seed; a task that one row lacks is left out."""
    cells = []
    for title, base, values in (
        ("InfoCSE", "language-stage1", (0.8, 0.9)),
        ("SimCSE", "language", (0.5, 0.6)),
        ("SimCSE from stage 1", "language-stage1", (0.7, 0.6, 0.1)),
    ):
        for seed, value in enumerate(values, start=1):
            scores = {"stsb dev spearman": 0.6, "mr test accuracy": value, "trec test accuracy": 0.4}
            about = {"label": title, "base": base, "data": "wiki", "seed": seed, "set": [], "options": ""}
            cells.append({**about, "scores": scores})
    cells[0]["scores"]["cr test accuracy"] = 0.9
    untrained = {"language": {"cls": {"mr test accuracy": 0.4, "trec test accuracy": 0.2}}}
    head, lines = _help.transferred({"cells": cells, "untrained": untrained}, "language")
    assert head == ["", "seeds", "mr", "trec", "mean", "compared with", "mean over it (95 %)"]
    assert lines == [
        ["untrained", "", "40.00", "20.00", "30.00", "", ""],
        ["SimCSE", "2", "55.00 ± 7.07", "40.00 ± 0.00", "47.50 ± 3.54", "", ""],
        ["InfoCSE", "2", "85.00 ± 7.07", "40.00 ± 0.00", "62.50 ± 3.54", "SimCSE from stage 1",
         "+10.00 (-53.53 to +73.53)"],
        ["SimCSE from stage 1", "3", "46.67 ± 32.15", "40.00 ± 0.00", "43.33 ± 16.07", "", ""],
    ]  # fmt: skip


def test_a_cell_that_fails_does_not_stop_the_others(words, tmp_path, monkeypatch, capsys):
    def trained(words, out, files):
        if "mini-conisi-s" in words:
            raise RuntimeError("out of memory")
        return {"best_step": 1, "seconds": 1.0}

    monkeypatch.setattr(replicate, "trained", trained)
    monkeypatch.setattr(replicate, "scored", lambda *_: {"stsb test spearman": 0.5})
    with pytest.raises(SystemExit, match="Failed: ConIsI-s, seed 1"):
        do_they_help.main([*words, "--seeds", "1", "--row", "SimCSE", "--row", "ConIsI-s", "--row", "InfoCSE"])
    assert "out of memory" in capsys.readouterr().err
    cells = json.loads((tmp_path / "help.json").read_text(encoding="utf-8"))["cells"]
    assert [cell["label"] for cell in cells] == ["SimCSE", "InfoCSE"]


def test_one_row_is_listed(words, capsys):
    do_they_help.main([*words, "--list", "--row", "Twins with German", "--seeds", "3", "4"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "--loss-arg temperature=0.1" in lines[0]
    assert "--loss-arg twins_weight=0.1" in lines[0]
    assert "--bf16" not in lines[0]
    do_they_help.main([*words, "--list", "--row", "SimCSE", "--seeds", "3", "--bf16"])
    assert "--pooling cls --bf16'" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--row 'Twin' is none of SimCSE, "):
        do_they_help.main([*words, "--row", "Twin"])
    with pytest.raises(SystemExit, match="holds a space"):
        do_they_help.main([*words, "--runs", "my runs"])


@pytest.mark.long
def test_the_rows_train(checkpoint, sentences, sts, tmp_path, monkeypatch):
    """From an encoder with a masked-LM head, through the commands themselves."""
    files = {}
    for name, lines in {"en.txt": sentences, "de.txt": sentences[::-1]}.items():
        files[name] = str(tmp_path / name)
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{a}\t{b}\n" for a, b in zip(sentences, sentences[::-1], strict=True)))
    base, dev = str(checkpoint("bert-mlm")), str(sts / "tiny" / "test.jsonl")
    more = ["--data", files["en.txt"], "--dev", dev, "--runs", str(tmp_path / "runs")]
    chosen = str(tmp_path / "choose.json")
    monkeypatch.setattr(choose, "TEMPERATURES", (0.05,))
    monkeypatch.setattr(choose, "RATES", (3e-5,))
    words = ["--pairs", str(pairs), "--json", chosen, "--base", base, "--stage1-steps", "2", "--batch-size", "4"]
    choose.main([*more, *words, "--first", "1", "--second", "1", "--every", "1"])
    titles = ["InfoCSE", "Twins with German", "DiffCSE"]
    do_they_help.main(
        [*more, "--chosen", chosen, "--base", f"tiny={base}", "--stage1", str(tmp_path / "runs" / "stage1"), "--pairs",
         files["en.txt"], files["de.txt"], "--suites", str(sts.parent), "--suite", "sts", "--json",
         str(tmp_path / "help.json"), "--steps", "2", "--every", "1", "--seeds", "1",
         *(word for title in titles for word in ("--row", title))]
    )  # fmt: skip
    cells = json.loads((tmp_path / "help.json").read_text())["cells"]
    assert sorted(cell["label"] for cell in cells) == sorted(titles)
    assert all([step for step, _ in cell["curve"]] == [1, 2] for cell in cells)
    assert {cell["base"] for cell in cells if cell["label"] == "InfoCSE"} == {"tiny-stage1"}
    assert not list((tmp_path / "runs" / "checkpoints").iterdir())
    assert len(list((tmp_path / "runs" / "models").glob("*/training_run.json"))) == len(titles)
    assert str(tmp_path) not in (tmp_path / "help.json").read_text()


def _cell(label, seed, dev, test, data="wiki", base="language"):
    scores = {"stsb dev spearman": dev / 100, "stsb test spearman": test / 100, "mr test accuracy": 0.5}
    return {"label": label, "seed": seed, "data": data, "base": base, "scores": scores, "set": [], "options": ""}


def test_the_table_holds_each_row_to_simcse_on_the_same_sentences():
    cells = [
        *(_cell("ConIsI-s", seed, 81 + seed, 71) for seed in (0, 1)),
        *(_cell("SimCSE", seed, 79, 72) for seed in (0, 1)),
        *(_cell("SimCSE, the paper's values", seed, 80, 70) for seed in (0, 1)),
        *(_cell("SimCSE on the translated sentences", seed, 60, 50, "en") for seed in (0, 1)),
        *(_cell("Twins with German", seed, 61, 53, "en") for seed in (0, 1)),
        *(_cell("InfoCSE", seed, 90, 80, base="language-stage1") for seed in (0, 1)),
        *(_cell("SimCSE from stage 1", seed, 88, 79, base="language-stage1") for seed in (0, 1)),
        # Not finished: it has fewer of the seeds, and is nobody's baseline yet.
        _cell("SimCSE on the translated sentences, the paper's values", 0, 70, 40, "en"),
    ]
    del cells[0]["scores"]["mr test accuracy"]
    before = {"cls": _cell("", 0, 40, 30)["scores"]}
    result = {"cells": cells, "untrained": {"language-stage1": before, "language": before}}
    head, lines = _help.rows(result, "language")
    assert head[:5] == ["", "seeds", "dev", "stsb", "mean of the tests"]
    assert [line[0] for line in lines] == [
        "untrained", "untrained, after stage 1", "SimCSE", "SimCSE, the paper's values", "ConIsI-s", "InfoCSE",
        "SimCSE on the translated sentences", "SimCSE on the translated sentences, the paper's values",
        "Twins with German", "SimCSE from stage 1",
    ]  # fmt: skip
    by_title = {line[0]: dict(zip(head, line, strict=True)) for line in lines}
    assert by_title["untrained"]["dev"] == "40.00"
    assert by_title["SimCSE"]["transfer"] == "50.00 ± 0.00"
    assert by_title["ConIsI-s"]["transfer"] == ""  # of one of its seeds alone
    # The higher dev of SimCSE's two settings counts, 80: the mean of 1 and 2, whose deviation is sqrt(1/2).
    assert by_title["ConIsI-s"]["dev over it (95 %)"] == "+1.50 (-4.85 to +7.85)"
    assert by_title["ConIsI-s"]["compared with"] == "SimCSE, the paper's values"
    for title in ("SimCSE", "SimCSE, the paper's values", "SimCSE from stage 1"):
        assert by_title[title]["compared with"] == by_title[title]["tests over it (95 %)"] == ""
    assert by_title["Twins with German"]["tests over it (95 %)"] == "+3.00 (+3.00 to +3.00)"
    # From the same start: the steps of stage 1 are no part of what InfoCSE's loss adds.
    assert by_title["InfoCSE"]["compared with"] == "SimCSE from stage 1"
    assert by_title["InfoCSE"]["tests over it (95 %)"] == "+1.00 (+1.00 to +1.00)"
    assert _help.compared(result, "dev")["Twins with German"] == pytest.approx([1, 1])


def test_rows_that_differ_in_one_part_are_held_to_each_other():
    cells = [
        *(_cell("InfoCSE", seed, 80 + seed, 72) for seed in (1, 2, 3)),
        *(_cell("SimCSE from stage 1", seed, 79, 70 + seed) for seed in (1, 2)),
        _cell("ConIsI-s", 1, 80, 70),
    ]
    head, lines = _help.pairs({"cells": cells})
    assert head[:3] == ["", "minus", "seeds"]
    assert lines == [["InfoCSE", "SimCSE from stage 1", "2", "+2.50 (-3.85 to +8.85)", "+0.50 (-5.85 to +6.85)"]]


def test_two_settings_under_one_title_are_not_mixed():
    cells = [_cell("SimCSE", 1, 80, 70), {**_cell("SimCSE", 2, 80, 70), "set": ["temperature=0.1"]}]
    with pytest.raises(ValueError, match="SimCSE was trained with two settings"):
        _help.by_title(cells)


def test_the_candidates_as_a_table():
    first, second = METHODS["conisi-s"].candidates()[:2]
    cells = [
        {"method": "conisi-s", "steps": 100, **first, "dev": 0.7},
        {"method": "conisi-s", "steps": 100, **second, "dev": 0.71},
        {"method": "conisi-s", "steps": 300, **second, "dev": 0.75},
    ]
    head, lines = _help.chosen({"cells": cells, "chosen": {"conisi-s": cells[2]}})
    assert head[-2:] == ["dev, 100 steps", "dev, 300 steps"]
    assert lines == [["**ConIsI-s**", "**0.05**", "**3e-05**", "**0.3**", "**71.00**", "**75.00**"]]
    head, lines = _help.chosen({"cells": cells, "chosen": {}})  # the choice is under way
    assert lines == [["ConIsI-s", "0.05", "3e-05", "0.3", "71.00", "75.00"]]


def test_the_curve_of_the_base():
    curve = [{"step": step, "held_out": 4, "cls": 50, "mean": 60, "first_last": 65} for step in (0, 250, 500, 750)]
    assert [line[0] for line in _help.base_curve(curve)[1]] == ["0", "500", "750"]


def test_the_base_beside_what_is_published_for_bert():
    scores = {"sts12": 10.0, "stsb": 20.0}
    head, lines = _help.base_tests(dict.fromkeys(_help.READINGS, scores))
    assert head[1:4] == ["sts12", "stsb", "mean"]
    assert [line[3:] for line in lines] == [["15.0", "18.3"], ["15.0", "42.6"], ["15.0", "46.8"]]
