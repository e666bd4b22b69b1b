"""The plan of the papers' runs, and slices that go on where they stopped; no run is made."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from st_contrastive.cli._common import loss_arguments

from benchmarks import papers, replicate
from st_contrastive import cli
from st_contrastive.methods import METHODS
from st_contrastive.recipes import recipe

GIVEN = ["--data", "wiki.txt", "--dev", "dev.jsonl", "--suites", "data", "--out"]


PLANS = (papers.PLAN, papers.PLAN.with_name("papers_ablations.json"))


@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.stem)
def test_the_plan_is_of_recipes_at_the_papers_steps(plan):
    entries = json.loads(plan.read_text(encoding="utf-8"))["runs"]
    assert len(entries) >= 10
    for one in entries:
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


def test_the_ablations_are_told_apart_by_what_they_change():
    runs = papers.planned(papers_arguments(["--translations", "de.txt", "--plan", str(PLANS[1])]))
    assert len({run.name for run in runs}) == len(runs) == 35
    words = {run.name: run.words for run in runs}
    weights = words["conisi-s-bert-base interaction_weight=0.5 42"]
    assert weights[weights.index("--loss-arg") + 1] == "interaction_weight=0.5"
    assert weights[weights.index("--suite") + 1] == "sts"
    without = words["infocse-bert-base --auxiliary none 42"]
    assert without[-1] == "--options=--bf16 --max-steps 31250 --workers 4 --auxiliary none"
    scored = papers.planned(papers_arguments(["--plan", str(PLANS[1]), "--suite", "sts", "transfer"]))[1].words
    assert scored[scored.index("--suite") + 1 :][:2] == ["sts", "transfer"]


@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.stem)
def test_the_commands_are_ones_that_replicate_and_train_take(plan, tmp_path, monkeypatch):
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
    more = ["--base", "bert=bert", "--translations", "de.txt", "--fraternal", "none", "--plan", str(plan)]
    runs = papers.planned(papers_arguments(more))
    for run in runs:
        monkeypatch.setattr(sys, "argv", run.words)
        replicate.main()
    for run, (args, out) in zip(runs, parsed, strict=True):
        options = ["--auxiliary", "none"] if args.auxiliary == "none" else []
        assert run.name == " ".join([args.recipe, *args.loss_arg, *options, str(args.seed)])
        assert (args.bf16, args.resume, args.checkpoint_steps, args.model) == (True, True, 1500, "bert")
        assert out.startswith(f"papers/models/{args.recipe}-{args.seed}-")
        assert args.checkpoints == out.replace("models", "checkpoints")
        chosen = recipe(args.recipe)
        assert args.max_steps == chosen.options["epochs"] * 15625
        assert args.translations == ("de.txt" if chosen.translations else None)
        changed = loss_arguments(METHODS[chosen.method], args.loss_arg)
        assert all(f"{name}=" in run.name for name in changed)
    result = json.loads((tmp_path / "papers" / "replicate.json").read_text(encoding="utf-8"))
    assert len(result["cells"]) == len(runs)


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
        (["--dry-run", "--plan", "misspelt.json"], "can't be used: TypeError: .*'loss_args'"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, monkeypatch, more, message):
    monkeypatch.chdir(tmp_path)
    entry = {"recipe": "simcse-bert-base", "steps": 1, "seeds": [1], "loss_args": ["temperature=1"]}
    Path("misspelt.json").write_text(json.dumps({"runs": [entry]}), encoding="utf-8")
    with pytest.raises(SystemExit, match=message):
        papers.main([*GIVEN, str(tmp_path / "papers"), *more])
