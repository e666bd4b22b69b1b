"""The language-model base: a run that was cut short ends as one that was not, and its checkpoint loads everywhere."""

from __future__ import annotations

import gzip
import json

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers.base.modules import Transformer
from transformers import AutoModelForMaskedLM

from benchmarks import language_base


@pytest.fixture
def words(checkpoint, tmp_path, sentences):
    """The command's arguments, for a tiny encoder; more may follow."""
    files = [tmp_path / f"part{place}.txt.gz" for place in range(2)]
    for file, own in zip(files, (sentences[:5], sentences[5:]), strict=True):
        file.write_bytes(gzip.compress("".join(f"{sentence}\n" for sentence in own).encode()))
    folder = tmp_path / "sts" / "stsb"
    folder.mkdir(parents=True)
    rows = [
        {"sentence1": a, "sentence2": b, "score": score}
        for score, (a, b) in enumerate(zip(sentences, sentences[3:] + sentences[:3], strict=True))
    ]
    for split in ("dev", "test"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        "--data", *map(str, files), "--sts", str(folder.parent), "--base", str(checkpoint("bert")), "--batch-size", "3",
        "--held-out", "2", "--steps", "4", "--every", "2", "--lr", "1e-2", "--mask-rate", "0.5",
    ]  # fmt: skip


def test_a_run_that_was_cut_short_ends_as_one_that_was_not(words, tmp_path, monkeypatch):
    language_base.main([*words, "--out", str(tmp_path / "whole")])
    learn, made = language_base.Run.learn, []

    def killed(run):
        made.append(run.step)
        if len(made) > 3:
            raise KeyboardInterrupt
        return learn(run)

    monkeypatch.setattr(language_base.Run, "learn", killed)
    with pytest.raises(KeyboardInterrupt):
        language_base.main([*words, "--out", str(tmp_path / "cut")])
    assert [row["step"] for row in json.loads((tmp_path / "cut" / "curve.json").read_text())["curve"]] == [0, 2]
    assert not (tmp_path / "cut" / "model").exists()
    with pytest.raises(SystemExit, match=r"was made with lr 0.01, not 0.02"):
        language_base.main([*words, "--out", str(tmp_path / "cut"), "--lr", "0.02"])
    monkeypatch.setattr(language_base.Run, "learn", learn)
    language_base.main([*words, "--out", str(tmp_path / "cut")])
    one, other = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "cut"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    curves = [json.loads((tmp_path / name / "curve.json").read_text())["curve"] for name in ("whole", "cut")]
    assert [row["step"] for row in curves[0]] == [0, 2, 4]
    for name in ("held_out", "cls", "mean", "first_last"):
        assert [row[name] for row in curves[0]] == [row[name] for row in curves[1]]
    assert len({row["held_out"] for row in curves[0]}) == 3


def test_it_stops_where_the_head_is_good_and_loads_with_it(words, tmp_path):
    out = tmp_path / "base"
    language_base.main([*words, "--out", str(out), "--stop-loss", "1e9", "--layers", "2"])
    assert [row["step"] for row in json.loads((out / "curve.json").read_text())["curve"]] == [0]
    assert {path.name for path in out.iterdir()} == {"curve.json", "model"}
    result = json.loads((out / "curve.json").read_text())
    assert result["tests"].keys() == {"cls", "mean", "first_last"}
    for reading, scores in result["tests"].items():  # the same pairs as dev here
        assert scores == {"stsb": pytest.approx(result["curve"][0][reading])}
    model, report = AutoModelForMaskedLM.from_pretrained(out / "model", output_loading_info=True)
    assert not report["missing_keys"]
    assert model.config.num_hidden_layers == 2
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    transformer = Transformer(str(out / "model"))
    body = dict(transformer.model.named_parameters())
    trained = dict(model.bert.named_parameters())
    assert all(torch.equal(body[name], trained[name]) for name in trained)
    (out / "curve.json").write_text(json.dumps({**result, "tests": {}}))
    language_base.main([*words, "--out", str(out)])  # is there already
    assert json.loads((out / "curve.json").read_text())["tests"] == {}
    with pytest.raises(SystemExit, match=r"--layers must be from 1 to 4"):
        language_base.main([*words, "--out", str(tmp_path / "other"), "--layers", "9"])


def test_the_loss_is_that_of_transformers_own_model(words, tmp_path):
    args, made = [*words, "--out", str(tmp_path / "base"), "--stop-loss", "1e9"], []
    train = language_base.Run.evaluated

    def kept(run):
        made.append(run)
        return train(run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language_base.Run, "evaluated", kept)
        language_base.main(args)
    run = made[0]
    run.model.eval()
    features, labels = run.masked(run.sentences[:4])
    count = (labels != -100).sum()
    assert count > 0
    own = run.model(**features, labels=labels).loss
    torch.testing.assert_close(run.loss(features, labels) / count, own)


def test_batches_hold_each_row_at_most_once_and_are_of_like_length():
    lengths = [1 + place % 17 for place in range(1003)]
    found = language_base.batches(lengths, 4, "0 0")
    rows = [row for batch in found for row in batch]
    assert len(found) == 1003 // 4
    assert len(set(rows)) == len(rows)
    assert {len(batch) for batch in found} == {4}
    apart = [max(lengths[row] for row in batch) - min(lengths[row] for row in batch) for batch in found]
    assert sum(apart) / len(apart) < 2
    assert found == language_base.batches(lengths, 4, "0 0")
    assert found != language_base.batches(lengths, 4, "0 1")
