"""Settings chosen by halving, and shares of trained weights: each cell once, also after a run that was cut short."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

from benchmarks import _adapted, choose, keep_share, training_pairs
from benchmarks._results import claimed
from st_contrastive.inputs import read_parallel
from tests.filters import TRAINING
from tests.selection import crossed

pytestmark = [*TRAINING, pytest.mark.filterwarnings("ignore:TwinsLoss was given one column")]


@pytest.fixture
def corpus(tmp_path, sentences):
    file = tmp_path / "corpus.txt"
    file.write_text("".join(f"{sentence}\n" for sentence in sentences))
    return str(file)


@pytest.fixture
def dev(tmp_path, sentences):
    file = tmp_path / "dev.jsonl"
    rows = [
        {"sentence1": a, "sentence2": b, "score": score}
        for score, (a, b) in enumerate(zip(sentences, sentences[3:] + sentences[:3], strict=True))
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture
def words(checkpoint, corpus, dev, tmp_path):
    return [
        "--data", corpus, "--dev", dev, "--runs", str(tmp_path / "runs"), "--json", str(tmp_path / "choose.json"),
        "--base", str(checkpoint("bert-mlm")), "--first", "2", "--second", "2", "--every", "1", "--batch-size", "4",
        "--stage1-steps", "1",
    ]  # fmt: skip


@pytest.mark.long
def test_the_better_half_goes_on(words, tmp_path, monkeypatch):
    steps = []
    halt = choose._Halt.on_step_end

    def counted(self, args, state, control, **kwargs):
        steps.append(state.global_step)
        if len(steps) == 6:
            raise KeyboardInterrupt
        halt(self, args, state, control, **kwargs)

    monkeypatch.setattr(choose, "TEMPERATURES", (0.05, 0.1))
    monkeypatch.setattr(choose._Halt, "on_step_end", counted)
    with pytest.raises(KeyboardInterrupt):  # in the second step of the third candidate
        choose.main([*words, "--methods", "simcse"])
    assert len(json.loads((tmp_path / "choose.json").read_text())["cells"]) == 2
    choose.main([*words, "--methods", "simcse"])
    # The third goes on from its first step; the better half makes the steps 3 and 4 alone.
    assert steps == [1, 2, 1, 2, 1, 2, 2, 1, 2, 3, 4, 3, 4]
    result = json.loads((tmp_path / "choose.json").read_text())
    first, second = ([cell for cell in result["cells"] if cell["steps"] == until] for until in (2, 4))
    assert [(cell["temperature"], cell["lr"]) for cell in first] == [
        (0.05, 3e-5),
        (0.05, 1e-4),
        (0.1, 3e-5),
        (0.1, 1e-4),
    ]
    best = sorted(first, key=lambda cell: -cell["dev"])[:2]
    assert [(cell["temperature"], cell["lr"]) for cell in second] == [(c["temperature"], c["lr"]) for c in best]
    for cell, before in zip(second, best, strict=True):
        assert [step for step, _ in cell["curve"]] == [1, 2, 3, 4]
        assert cell["curve"][:2] == before["curve"]
        assert cell["dev"] == max(value for _, value in cell["curve"])
    assert result["chosen"]["simcse"] == max(second, key=lambda cell: cell["dev"])
    assert not list((tmp_path / "runs" / "simcse").iterdir())
    choose.main([*words, "--methods", "simcse"])
    assert len(steps) == 13
    with pytest.raises(SystemExit, match=r"was made with another every, batch_size"):
        choose.main([*words, "--methods", "simcse", "--every", "2", "--batch-size", "2"])


@pytest.mark.parametrize(
    "name", crossed(["infocse", "twins-german", "conisi-s", "twins", "simcse-pairs"], quick="twins".__eq__)
)
def test_every_method_runs(name, words, tmp_path, sentences, monkeypatch):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{a}\t{b}\n" for a, b in zip(sentences, sentences[::-1], strict=True)))
    monkeypatch.setattr(choose, "TEMPERATURES", (0.05,))
    monkeypatch.setattr(choose, "RATES", (1e-4,))
    method = choose.METHODS[name]
    fewer = {"weights": method.weights[:2]}
    monkeypatch.setitem(choose.METHODS, name, choose.Method(**{**vars(method), **fewer}))
    choose.main([*words, "--methods", name, "--pairs", str(pairs)])
    result = json.loads((tmp_path / "choose.json").read_text())
    count = len(method.weights[:2]) or 1
    assert [cell["steps"] for cell in result["cells"]] == [2] * count + [4]
    assert set(result["chosen"]) == {name}


def test_a_method_that_another_process_trains_is_left_to_it(words, tmp_path):
    with claimed(tmp_path / "runs" / "simcse.lock") as mine:
        assert mine
        choose.main([*words, "--methods", "simcse"])
    assert json.loads((tmp_path / "choose.json").read_text())["cells"] == []


@pytest.mark.long
def test_the_first_stage_is_made_once_for_the_same_encoder_and_steps(words, tmp_path, checkpoint):
    args = argparse.Namespace(
        runs=str(tmp_path / "runs"), base=str(checkpoint("bert-mlm")), data=words[1], length=8, batch_size=4,
        stage1_steps=2, seed=0, limit=None, bf16=False,
    )  # fmt: skip
    folder = choose.stage1(args)
    made = (Path(folder) / "training_run.json").stat().st_mtime_ns
    assert json.loads((Path(folder) / "training_run.json").read_text())["steps"] == 2
    assert SentenceTransformer(folder).max_seq_length == SentenceTransformer(args.base).max_seq_length > 8
    assert choose.stage1(args) == folder
    assert (Path(folder) / "training_run.json").stat().st_mtime_ns == made
    other = tmp_path / "other.txt"
    other.write_text("Another corpus.\n", encoding="utf-8")
    for changed, named in (
        ({"stage1_steps": 3}, "max_steps"),
        ({"base": str(checkpoint("bert"))}, "model"),
        ({"data": str(other), "length": 16}, "max_length, data"),
    ):
        with pytest.raises(SystemExit, match=f"was made with another {named}: name another --runs"):
            choose.stage1(argparse.Namespace(**{**vars(args), **changed}))


def test_the_first_candidate_is_the_papers():
    for method in choose.METHODS.values():
        first = method.candidates()[0]
        assert (first.pop("temperature"), first.pop("lr")) == (0.05, 3e-5)
        paper = {"interaction_weight": 0.8, "twins_weight": 1.0, "mlm_weight": 1e-5}
        assert first.items() <= paper.items()
    assert [len(method.candidates()) for method in choose.METHODS.values()] == [18, 18, 18, 6, 6, 6]


def test_a_run_is_halted_at_an_evaluation(words):
    with pytest.raises(SystemExit, match="must be multiples of --every 3"):
        choose.main([*words, "--every", "3"])


@pytest.fixture
def retrieval(tmp_path, sentences):
    folder = tmp_path / "retrieval"
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": f"d{place}", "text": sentence} for place, sentence in enumerate(sentences)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"_id": f"q{place}", "text": sentence.split()[-1]} for place, sentence in enumerate(sentences)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, places in (("train", range(4)), ("test", range(4, 7))):
        lines = "".join(f"q{place}\td{place}\t1\n" for place in places)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    return str(folder)


def test_each_share_is_scored_once(checkpoint, corpus, sts, retrieval, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    file = tmp_path / "keep_share.json"
    words = [
        "--data", corpus, "--sts", str(sts), "--retrieval", retrieval, "--models", str(tmp_path / "models"), "--base",
        str(checkpoint("bert-mlm")), "--steps", "2", "--batch-size", "4", "--json", str(file), "--recipes",
        "mini-simcse", "mini-twins-one-column", "--shares", "0", "0.5", "1", "--retrieval-length", "16",
    ]  # fmt: skip
    scored, made = keep_share.scored, []

    def cut(*args):
        made.append(args)
        if len(made) == 3:
            raise KeyboardInterrupt
        if len(made) == 1:  # another process scores the untrained encoder at the same time
            twin = {"recipe": "mini-simcse", "pooling": "cls", "seed": 0, "share": 0.0}
            file.write_text(json.dumps({"cells": [twin | scored(*args)]}))
        return scored(*args)

    monkeypatch.setattr(keep_share, "scored", cut)
    with pytest.raises(KeyboardInterrupt):
        keep_share.main([*words, "--seeds", "0"])
    keep_share.main([*words, "--seeds", "0"])
    cells = json.loads(file.read_text())["cells"]
    assert [(cell["recipe"], cell["share"]) for cell in cells] == [
        ("mini-simcse", 0), ("mini-simcse", 0.5), ("mini-simcse", 1),
        ("mini-twins-one-column", 0.5), ("mini-twins-one-column", 1),
    ]  # fmt: skip
    assert len(made) == 6
    assert {cell["queries"] for cell in cells} == {7}
    assert all(0 <= cell["ndcg@10"] <= 100 and list(cell["sts"]) == ["tiny"] for cell in cells)
    assert {path.name for path in Path(tmp_path, "models").iterdir() if path.suffix not in (".run", ".lock")} == {
        "mini-simcse-cls-0-2", "mini-twins-one-column-cls-0-2",
    }  # fmt: skip
    _adapted.shares_picture({"cells": cells}, tmp_path / "shares.png")
    assert (tmp_path / "shares.png").stat().st_size > 1000
    assert keep_share.curve(cells, "mini-simcse", "cls")[0.5] == [(cells[1]["sts"]["tiny"], cells[1]["ndcg@10"])]
    keep_share.main([*words, "--seeds", "0"])
    assert len(made) == 6
    keep_share.main([*words, "--seeds", "0", "--recipes", "mini-simcse", "--pooling", "mean"])
    cells = json.loads(file.read_text())["cells"]
    assert [(cell["recipe"], cell["share"]) for cell in cells if cell["pooling"] == "mean"] == [
        ("mini-simcse", 0), ("mini-simcse", 0.5), ("mini-simcse", 1),
    ]  # fmt: skip
    cls, mean = (keep_share.curve(cells, "mini-simcse", pooling)[0.0] for pooling in ("cls", "mean"))
    assert cls != mean
    with pytest.raises(SystemExit, match=r"keep_share.json was made with another bf16"):
        keep_share.main([*words, "--bf16"])
    other = [str(tmp_path / "bf16.json") if word == str(file) else word for word in words]
    keep_share.main([*other, "--seeds", "0", "--recipes", "mini-simcse", "--shares", "1", "--bf16"])
    assert [cell["share"] for cell in json.loads((tmp_path / "bf16.json").read_text())["cells"]] == [1]
    weights = [tmp_path / "models" / f"mini-simcse-cls-0-2{end}" / "model.safetensors" for end in ("", "-bf16")]
    assert weights[0].read_bytes() != weights[1].read_bytes()
    with pytest.raises(SystemExit, match="give recipes of simcse, conisi, twins, infocse on one column"):
        keep_share.main([*words, "--recipes", "mini-diffcse"])


def test_mixtures_are_held_to_the_untrained_encoder():
    cls, mean = {"pooling": "cls"}, {"pooling": "mean"}
    cells = [
        {**cls, "recipe": "mini-simcse", "seed": 0, "share": 0.0, "sts": {"a": 60.0, "b": 70.0}, "ndcg@10": 50.0},
        *(
            {**cls, "recipe": "mini-simcse", "seed": seed, "share": 1.0, "sts": {"a": 68.0}, "ndcg@10": score}
            for seed, score in ((0, 48.0), (2, 50.0))
        ),
        {**mean, "recipe": "mini-simcse", "seed": 0, "share": 0.0, "sts": {"a": 80.0}, "ndcg@10": 60.0},
        {**mean, "recipe": "mini-simcse", "seed": 0, "share": 0.5, "sts": {"a": 81.0}, "ndcg@10": 58.0},
        {**cls, "recipe": "mini-infocse", "seed": 0, "share": 0.5, "sts": {"a": 61.0, "b": 71.0}, "ndcg@10": 50.5},
    ]
    _, lines = _adapted.shares({"cells": cells})
    assert lines == [
        ["untrained", "[CLS]", "0", "", "65.00", "50.00", "", ""],
        [
            "SimCSE", "[CLS]", "1", "2", "68.00 ± 0.00", "49.00 ± 1.41", "+3.00 (+3.00 to +3.00)",
            "-1.00 (-13.71 to +11.71)",
        ],
        ["InfoCSE without stage 1", "[CLS]", "0.5", "1", "66.00", "50.50", "+1.00", "+0.50"],
        ["untrained", "mean", "0", "", "80.00", "60.00", "", ""],
        ["SimCSE", "mean", "0.5", "1", "81.00", "58.00", "+1.00", "-2.00"],
    ]  # fmt: skip


def test_the_pairs_hold_no_sentence_of_a_test_and_none_twice(dev, sentences, tmp_path):
    sts = tmp_path / "sts" / "stsb"
    sts.mkdir(parents=True)
    Path(dev).replace(sts / "dev.jsonl")
    own = ["A dog runs.", f" {sentences[0].upper()} ", "a dog runs.", "Two cats sleep."]
    for name, texts in {"first": own, "second": ["Two cats sleep.", "A bird sings."]}.items():
        rows = [json.dumps({"en": text, "de": f"{place} auf Deutsch"}) for place, text in enumerate(texts)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    files = [str(tmp_path / f"{name}.jsonl") for name in ("first", "second")]
    words = [*files, "--languages", "en", "de", "--output", str(tmp_path / "pairs")]
    training_pairs.main([*words, "--sts", str(sts.parent)])
    made = read_parallel(tmp_path / "pairs.jsonl.gz", languages=("en", "de"))
    assert made.sentences == ["A dog runs.", "Two cats sleep.", "A bird sings."]
    assert made.translations == ["0 auf Deutsch", "3 auf Deutsch", "1 auf Deutsch"]
    for language, texts in (("en", made.sentences), ("de", made.translations)):
        assert (tmp_path / f"pairs.{language}.txt").read_text().splitlines() == texts
    with pytest.raises(SystemExit, match=r"holds no SET/SPLIT\.jsonl"):
        training_pairs.main([*words, "--sts", str(tmp_path)])
