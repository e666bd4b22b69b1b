"""The plan of the papers' runs, and slices that go on where they stopped; no run is made."""

from __future__ import annotations

import json
import os
import sys

import pytest

from benchmarks import papers, replicate
from st_contrastive import cli
from st_contrastive.recipes import recipe

GIVEN = ["--data", "wiki.txt", "--dev", "dev.jsonl", "--suites", "data", "--out"]


def test_the_plan_is_of_recipes_at_the_papers_steps():
    for one in json.loads(papers.PLAN.read_text(encoding="utf-8"))["runs"]:
        chosen = recipe(one["recipe"])
        assert chosen.options["batch_size"] == 64
        assert one["steps"] == chosen.options["epochs"] * 1_000_000 // 64
        assert bool(one.get("translations")) == chosen.translations


def test_a_dry_run_prints_the_commands_and_makes_nothing(tmp_path, capsys):
    out = str(tmp_path / "papers")
    assert papers.main([*GIVEN, out, "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert "1 language-base: to do" in output
    assert f"python -m benchmarks.language_base --data wiki.txt --sts data/sts --out {out}/language-base" in output
    assert "2 simcse-bert-base 42: to do" in output
    assert "twins-bert-base 42: left out: needs --translations" in output
    assert not (tmp_path / "papers").exists()
    papers.main([*GIVEN, out, "--dry-run", "--base", "bert=folder", "--translations", "de.txt", "--fraternal", "none"])
    output = capsys.readouterr().out
    assert "left out" not in output
    assert "language_base" not in output


def test_the_commands_are_ones_that_replicate_and_train_take(tmp_path, monkeypatch):
    for name in ("wiki.txt", "dev.jsonl", "de.txt"):
        (tmp_path / name).write_text("a\n", encoding="utf-8")
    (tmp_path / "bert").mkdir()
    (tmp_path / "papers").mkdir()
    (tmp_path / "bert" / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    parsed = []

    def trained(words, out, files):
        parsed.append((cli.parse([*words, "--output", out]), out))
        return {"best_step": 1, "seconds": 1.0}

    monkeypatch.setattr(replicate, "trained", trained)
    monkeypatch.setattr(replicate, "scored", lambda *_: {})
    given = papers_arguments(["--base", "bert=bert", "--translations", "de.txt", "--fraternal", "none"])
    runs = papers.planned(given)
    for run in runs[:4]:
        monkeypatch.setattr(sys, "argv", run.words)
        replicate.main()
    for run, (args, out) in zip(runs, parsed, strict=False):
        assert run.name == f"{args.recipe} {args.seed}"
        assert (args.bf16, args.resume, args.checkpoint_steps, args.model) == (True, True, 1500, "bert")
        assert out.startswith(f"papers/models/{args.recipe}-{args.seed}-")
        assert args.checkpoints == out.replace("models", "checkpoints")
    assert [args.max_steps for args, _ in parsed] == [15625, 15625, 15625, 31250]
    assert [args.translations for args, _ in parsed] == [None, None, "de.txt", None]
    result = json.loads((tmp_path / "papers" / "replicate.json").read_text(encoding="utf-8"))
    assert len(result["cells"]) == 4


def papers_arguments(more):
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(papers, "dry_run", lambda *_: None)
        patch.setattr(papers, "planned", lambda args: seen.append(args) or [])
        papers.main([*GIVEN, "papers", "--dry-run", *more])
    return seen[0]


def test_slices_go_on_where_they_stopped(tmp_path, monkeypatch):
    path, called = str(tmp_path / "state.json"), []

    def within(words, seconds):
        called.append(words[0])
        if words == ["slow"] and called.count("slow") < 2:
            return "cut short", ""
        return ("failed", "it went wrong") if words == ["bad"] else ("done", "")

    monkeypatch.setattr(papers, "within", within)
    runs = [papers.Run(name, [name]) for name in ("good", "bad", "slow", "last")]
    runs.insert(2, papers.Run("twins", ["twins"], "--translations"))
    assert papers.go_on(runs, path, 5) == 2
    state = json.loads((tmp_path / "state.json").read_text(encoding="utf-8"))
    states = {name: one["state"] for name, one in state.items()}
    assert states == {"good": "done", "bad": "failed", "slow": "cut short"}
    assert state["bad"]["output"] == "it went wrong"
    assert papers.go_on(runs, path, 0) == 2  # no time for any
    assert papers.go_on(runs, path, 5) == 0
    state = json.loads((tmp_path / "state.json").read_text(encoding="utf-8"))
    assert (state["slow"]["state"], state["slow"]["calls"], state["last"]["state"]) == ("done", 2, "done")
    assert papers.go_on(runs, path, 5, retry=True) == 0
    assert called == ["good", "bad", "slow", "slow", "last", "bad"]


def test_a_command_is_stopped_with_what_it_started(tmp_path):
    note = tmp_path / "pid"
    child = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert papers.within(["timeit", "-n", "1", "-r", "1", parent], 3)[0] == "cut short"
    if note.is_file() and note.read_text():  # it had begun
        with pytest.raises(ProcessLookupError):
            os.kill(int(note.read_text()), 0)
    assert papers.within(["timeit", "-n", "1", "-r", "1", "pass"], 300)[0] == "done"
    state, output = papers.within(["no_such_module"], 300)
    assert (state, "No module named no_such_module" in output) == ("failed", True)


def test_no_run_starts_from_an_encoder_that_was_not_made(tmp_path):
    runs = [papers.Run("base", ["no_such_module"], starts_others=True), papers.Run("other", ["this"])]
    for _ in range(2):
        with pytest.raises(SystemExit, match="--retry"):
            papers.go_on(runs, str(tmp_path / "state.json"), 5)
    assert list(json.loads((tmp_path / "state.json").read_text(encoding="utf-8"))) == ["base"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "add --gpu"),
        (["--dry-run", "--translations", "a b"], "holds a space"),
        (["--dry-run", "--base", "bert"], "give NAME=FOLDER"),
        (["--dry-run", "--plan", "none.json"], "can't be used: FileNotFoundError"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, more, message):
    with pytest.raises(SystemExit, match=message):
        papers.main([*GIVEN, str(tmp_path / "papers"), *more])
