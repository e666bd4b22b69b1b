"""The page of a run: whole, by itself, and of what the run was."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from html.parser import HTMLParser

import pytest

from st_contrastive.cli import main, report
from tests.filters import TRAINING

pytest.importorskip("matplotlib")
pytestmark = [pytest.mark.filterwarnings("ignore:TwinsLoss was given one column"), *TRAINING]


class Page(HTMLParser):
    """Counts the tags, and holds each open one to its end."""

    VOID = ("meta", "path", "use", "rect", "br")

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open[-1] != tag:
            assert self.open.pop() in self.VOID
        self.open.pop()


def test_one_page_of_two_runs(checkpoint, sentences, tmp_path, capsys):
    corpus, sts = tmp_path / "corpus.txt", tmp_path / "sts" / "tiny"
    corpus.write_text("\n".join(sentences * 3), encoding="utf-8")
    sts.mkdir(parents=True)
    rows = [
        {"sentence1": a, "sentence2": b, "score": score % 6}
        for score, (a, b) in enumerate(zip(sentences * 2, sentences[::-1] * 2, strict=True))
    ]
    (sts / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for method in ("twins", "conisi"):
        words = [
            "train",
            "--method",
            method,
            "--model",
            str(checkpoint("bert")),
            "--data",
            str(corpus),
            "--epochs",
            "2",
        ]
        words += ["--output", str(tmp_path / method), "--batch-size", "3", "--dev", str(sts / "dev.jsonl")]
        assert main([*words, "--evaluate-steps", "5"]) == 0
    scores = tmp_path / "scores.json"
    assert main(["evaluate", str(tmp_path / "twins"), "--eval-data", str(sts.parent), "--json", str(scores)]) == 0
    page = tmp_path / "pages" / "report.html"
    words = ["report", str(tmp_path / "twins"), str(tmp_path / "conisi"), "--html", str(page), "--scores", str(scores)]
    capsys.readouterr()
    assert main(words) == 0
    text = page.read_text(encoding="utf-8")
    parser = Page()
    parser.feed(text)
    assert parser.open == []
    # The development curve; of each run its terms and similarities; the queue of the one that has it.
    assert parser.seen.count("svg") == 1 + 2 * 2 + 1
    assert "TwinsLoss" in text
    assert "ConIsILoss" in text
    assert not re.search(r'(src|href)="(?!#)', re.sub(r'xmlns:\w+="[^"]*"|xlink:href="#[^"]*"', "", text))
    assert str(tmp_path) not in text
    record = json.loads((tmp_path / "twins" / "training_run.json").read_text())
    assert f"{100 * record['best']['value']:.2f} at step {record['best']['step']}" in text
    assert hashlib.sha256(corpus.read_bytes()).hexdigest() in text
    found = json.loads(scores.read_text())["scores"][0]
    assert f"{100 * found['value']:.2f}" in text
    assert record["queue"][-1] == [20, 9]
    assert record["log"][-1]["seconds"] <= record["seconds"]
    # Again, over the same page, with another run whose folder has the same name.
    shutil.copytree(tmp_path / "twins", tmp_path / "seed1" / "twins")
    words = ["report", str(tmp_path / "twins"), str(tmp_path / "seed1" / "twins"), "--html", str(page)]
    assert main(words) == 0
    again = page.read_text(encoding="utf-8")
    assert f"<h1>{tmp_path.name}/twins, seed1/twins</h1>" in again
    assert str(tmp_path) not in again
    (tmp_path / "notes.html").write_text("mine")
    assert main([*words[:-1], str(tmp_path / "notes.html")]) == 2
    assert "exists and holds no page of st-contrastive report" in capsys.readouterr().err
    after = record["similarities"]["after"]
    assert sum(len(band["similarities"]) for band in after) == len(rows)
    assert [band["from"] for band in after] == [0, 1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore:.*the trained model is that of the last step")
def test_runs_that_went_wrong(checkpoint, sentences, tmp_path, capsys):
    """One that diverged says so, and has a page; so has one that was too short to log, and any name."""
    corpus, dev = tmp_path / "corpus.txt", tmp_path / "dev.jsonl"
    corpus.write_text("\n".join(sentences * 6), encoding="utf-8")
    rows = [
        {"sentence1": a, "sentence2": b, "score": score}
        for score, (a, b) in enumerate(zip(sentences, sentences[::-1], strict=True))
    ]
    dev.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["train", "--method", "conisi", "--loss-arg", "strategy=subword", "--model", str(checkpoint("bert-mlm"))]
    words += ["--data", str(corpus), "--batch-size", "2", "--dev", str(dev), "--evaluate-steps", "10"]
    names = {
        "long": ["--max-steps", "20"],
        "_short": ["--max-steps", "2"],
        r"$\frac$": ["--max-steps", "20", "--learning-rate", "1e30"],
    }
    output = {}
    for name, more in names.items():
        assert main([*words, "--output", str(tmp_path / name), *more]) == (1 if "1e30" in more else 0)
        output[name] = capsys.readouterr().err
    assert re.search(r"diverged: the loss is not a number at step \d+\. The saved weights are not", output[r"$\frac$"])
    assert "diverged" not in output["long"]
    page = tmp_path / "report.html"
    assert main(["report", *(str(tmp_path / name) for name in names), "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "to nan</td>" in text
    assert text.count("<h2>Similarity against gold") == 2
    assert "Terms of _short" not in text
    drawn = text.split("<h2>Settings")[0]
    assert "<!-- sum -->" in drawn
    assert "fallback_share" not in drawn


def test_scored_models_are_told_apart():
    reports = [{"model": name, "scores": []} for name in ("a/out", "b/out", "a/out", "")]
    assert report._models(reports) == ["a/out", "b/out", "a/out", ""]
    assert report._models(reports[-1:]) == [""]


@pytest.mark.parametrize("change", [{"log": None}, {"loss": {}}, {"steps": "3"}, {"best": {"value": 0.5}}])
def test_a_record_of_another_form_is_named(tmp_path, capsys, change):
    record = {"options": {}, "loss": {"class": "SimCSELoss"}, "log": [], "versions": {}, "steps": 3, "seconds": 1.0}
    (tmp_path / "training_run.json").write_text(json.dumps({**record, **change}))
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "x.html")]) == 2
    assert f"{tmp_path / 'training_run.json'} is not as st-contrastive wrote it" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize(
    ("made", "message"),
    [(None, "holds no training_run.json"), ("{", "Expecting"), ("{}", "is not the record of a training run")],
)
def test_bad_input(tmp_path, capsys, made, message):
    if made is not None:
        (tmp_path / "training_run.json").write_text(made)
    assert main(["report", str(tmp_path), "--html", str(tmp_path / "x.html")]) == 2
    assert message in capsys.readouterr().err
