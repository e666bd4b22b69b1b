"""The baselines that the benchmarks train beside the package's losses: DCLR against slow forms, CT's batches."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from sentence_transformers.sentence_transformer.losses import ContrastiveTensionLoss

from benchmarks import baselines, replicate
from st_contrastive import SimCSELoss
from st_contrastive.encoder import Rows
from tests.conftest import switch_off_dropout


def _cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def test_weighted_contrast_is_the_papers_sum():
    generator = torch.Generator().manual_seed(1)
    anchors, positives = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    kept = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 1], [0, 0, 1, 0], [1, 1, 1, 0]]).bool()
    found = baselines.weighted_contrast(anchors, positives, noise, kept, temperature=0.3)
    rows = []
    for i, anchor in enumerate(anchors.tolist()):
        own = math.exp(_cosine(anchor, positives[i].tolist()) / 0.3)
        others = sum(
            math.exp(_cosine(anchor, other) / 0.3)
            for j, other in enumerate(positives.tolist())
            if j != i and kept[i, j]
        )
        rows.append(-math.log(own / (own + others + sum(math.exp(_cosine(anchor, h) / 0.3) for h in noise.tolist()))))
    assert found.item() == pytest.approx(sum(rows) / 4, rel=1e-12)


def test_noise_climbs_the_contrast_by_steps_of_the_given_length():
    anchors, positives = torch.randn(2, 5, 6, dtype=torch.float64)
    options = {"temperature": 0.2, "step_size": 0.01}

    def after(steps):
        torch.manual_seed(3)
        return baselines.noise_negatives(anchors, positives, 4, steps=steps, **options)

    def contrast(noise):
        everything = torch.ones(5, 5, dtype=torch.bool)
        return baselines.weighted_contrast(anchors, positives, noise, everything, temperature=0.2)

    start, once, thrice = after(0), after(1), after(3)
    assert not thrice.requires_grad
    torch.testing.assert_close((once - start).norm(dim=1), torch.full((4,), 0.01, dtype=torch.float64))
    assert contrast(start) < contrast(once) < contrast(thrice)
    numeric = torch.zeros_like(start)
    for place in range(start.numel()):
        step = torch.zeros(start.numel(), dtype=torch.float64)
        step[place] = 1e-5
        step = step.view_as(start)
        numeric.view(-1)[place] = (contrast(start + step) - contrast(start - step)) / 2e-5
    torch.testing.assert_close(once - start, 0.01 * F.normalize(numeric, dim=1), rtol=1e-5, atol=1e-9)


def _dclr(build, **options):
    model = build("bert")
    torch.manual_seed(4)
    loss = baselines.DCLRLoss(model, build("bert"), **options)
    switch_off_dropout(loss)
    return loss, model


def test_dclr_that_excludes_nothing_and_has_no_noise_is_simcse(build, sentences):
    found = []
    for kind in ("dclr", "simcse"):
        if kind == "dclr":
            loss, model = _dclr(build, threshold=1.1, noise_multiple=0.0, temperature=0.1)
        else:
            model = build("bert")
            torch.manual_seed(4)
            loss = SimCSELoss(model, temperature=0.1)
            switch_off_dropout(loss)
        value = loss([model.preprocess(sentences)])["contrastive"]
        value.backward()
        found.append((value.detach(), model[0].model.encoder.layer[0].attention.self.query.weight.grad))
    torch.testing.assert_close(found[0], found[1])
    assert found[0][1].abs().sum() > 0


def test_dclr_leaves_out_what_the_complementary_model_takes_for_the_same(build, sentences):
    loss, model = _dclr(build, threshold=0.99999)
    batch = [sentences[0], sentences[1], sentences[0], sentences[2]]
    kept = loss.kept(Rows.of(model.preprocess(batch), model))
    same = [[0, 2], [1], [0, 2], [3]]
    assert [[j for j in range(4) if not row[j]] for row in kept.tolist()] == same
    loss([model.preprocess(batch)])
    assert loss.excluded_share == pytest.approx(2 / 12)


def test_the_complementary_model_is_neither_trained_nor_in_training_mode(build, sentences):
    loss, model = _dclr(build)
    complementary = loss._complementary[0]
    loss.train()
    loss([model.preprocess(sentences)])["contrastive"].backward()
    assert not complementary.training
    assert model.training
    theirs = {id(parameter) for parameter in complementary.parameters()}
    assert theirs
    assert not theirs & {id(parameter) for parameter in loss.parameters()}
    assert all(parameter.grad is None for parameter in complementary.parameters())


def test_tension_batches_have_one_positive_to_seven_negatives():
    texts = [f"sentence {number}" for number in range(40)]
    made = baselines.tension_dataset(texts, steps=3, pairs=16, seed=0)  # 30 sentences a batch: three epochs
    assert len(made) == 48
    for row in range(48):
        assert made[row]["label"] == (row % 8 == 0)
        assert (made[row]["sentence_a"] == made[row]["sentence_b"]) == (row % 8 == 0)
    batches = list(baselines.in_order(made, batch_size=16, drop_last=False))
    assert batches == [list(range(start, start + 16)) for start in (0, 16, 32)]
    assert made[:16] != made[16:32]
    assert made["sentence_a"][:] == baselines.tension_dataset(texts, 3, 16, seed=0)["sentence_a"][:]
    with pytest.raises(ValueError, match="give --data more"):
        baselines.tension_dataset(texts[:20], steps=1, pairs=16, seed=0)


def test_the_librarys_tension_loss_is_the_papers(build, sentences):
    """Binary cross-entropy of the dot product of two copies, added up over the pairs."""
    model = build("bert", dropout=False)
    loss = ContrastiveTensionLoss(model)
    labels = torch.tensor([1, 0, 0])
    columns = [model.preprocess(texts) for texts in (sentences[:3], [sentences[0], *sentences[4:6]])]
    found = loss([dict(column) for column in columns], labels)
    left, right = (model(dict(column))["sentence_embedding"] for column in columns)
    dots = (left * right).sum(dim=1).tolist()
    expected = sum(math.log1p(math.exp(-dot if label else dot)) for dot, label in zip(dots, labels, strict=True))
    assert found.item() == pytest.approx(expected, rel=1e-4)


@pytest.fixture
def tiny_setting(monkeypatch, checkpoint):
    options = {
        "model": str(checkpoint("bert")),
        "learning_rate": 1e-3,
        "batch_size": 8,
        "max_steps": 2,
        "max_length": 16,
    }
    made = SimpleNamespace(options={**options, "evaluate_steps": 1}, loss_arguments={"temperature": 0.1})
    monkeypatch.setattr(baselines, "recipe", lambda name: made)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("method", ["ct", "dclr"])
def test_a_cell_is_trained_and_recorded(method, bf16, tiny_setting, build, sentences, sts, tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("\n".join(f"{text} {word}" for text in sentences for word in ("and", "so", "too")) + "\n")
    simcse = str(tmp_path / "simcse")
    build("bert").save_pretrained(simcse)
    args = argparse.Namespace(data=str(data), dev=str(sts / "tiny" / "test.jsonl"), steps=None, bf16=bf16, lr=None)
    out = tmp_path / "out"
    more = baselines.train(method, 0, args, simcse, str(out))
    Path(f"{out}.commit").write_text("0", encoding="utf-8")
    about = replicate.trained([], str(out), {})
    assert [step for step, _ in about["curve"]] == [1, 2]
    assert about["best_step"] in (1, 2)
    assert about["steps"] == 2
    names = {"ct": "ContrastiveTensionLoss", "dclr": "DCLRLoss"}
    assert about["loss"]["class"] == names[method]
    assert set(about["files"]) == {"data", "dev"}
    assert more == ({"pairs": 8, "negatives_per_positive": 7, "optimizer": "AdamW"} if method == "ct" else more)
    if method == "dclr":
        assert 0 <= more["excluded_share"] <= 1
        assert about["loss"]["temperature"] == 0.1
    from sentence_transformers import SentenceTransformer

    before, after = (SentenceTransformer(folder).encode(sentences) for folder in (simcse, str(out)))
    assert abs(before - after).max() > 1e-4


def test_cells_in_the_file_are_not_run_again(monkeypatch, tmp_path, capsys):
    data, file = tmp_path / "data.txt", tmp_path / "found.json"
    data.write_text("a\nb\n")
    run = []

    def cell(method, seed, args, folder):
        run.append((method, seed))
        return {"best_step": 1, "seconds": 1.0, "scores": {"stsb test spearman": 0.5}}

    monkeypatch.setattr(baselines, "cell", cell)
    words = [
        "baselines",
        "--methods",
        "simcse",
        "ct",
        "dclr",
        "--data",
        str(data),
        "--suites",
        "x",
        "--json",
        str(file),
    ]
    monkeypatch.setattr("sys.argv", [*words, "--seeds", "0"])
    baselines.main()
    monkeypatch.setattr("sys.argv", [*words, "--seeds", "0", "1"])
    baselines.main()
    assert run == [(method, seed) for seed in (0, 1) for method in ("simcse", "ct", "dclr")]
    assert capsys.readouterr().out.count("not run again") == 3
    monkeypatch.setattr("sys.argv", [*words, "--seeds", "0", "--lr", "1e-5"])
    baselines.main()
    assert run[6:] == [("ct", 0)]  # --lr is CT's alone
    cells = json.loads(file.read_text())["cells"]
    assert len({replicate.key(one) for one in cells}) == len(cells) == 7
    assert {one["recipe"] for one in cells} == {"mini-simcse", "ct", "dclr"}
