"""SentEval's protocol, compared with explicit loops."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from st_contrastive.evaluation import evaluate_transfer, read_transfer
from st_contrastive.evaluation.transfer import REGULARISATION, REGULARISATION_OF_TRAIN, features, first_of_best
from tests.evaluation.encoders import Constant, Letters, write

# Too few rows for the solver's last digits now and then.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def texts(count, seed, noise=0.25, classes=2):
    """Texts whose class is, with noise, their most frequent letter."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        label = draw.randrange(classes)
        letters = draw.choices("abc", weights=[3 if place == label else 1 for place in range(3)], k=12)
        rows.append({"text": "".join(letters), "label": label if draw.random() > noise else draw.randrange(classes)})
    return rows


def data(rows):
    vectors = [[row["text"].count(letter) for letter in "abc"] for row in rows]
    return np.array(vectors, dtype=np.float32), np.array([str(row["label"]) for row in rows])


def best_strength(x, y, folds, seed, grid=REGULARISATION):
    """The C whose mean accuracy on the validation folds is the largest as SentEval rounds it, the first of equals."""
    scores = []
    for strength in grid:
        accuracies = []
        for train, dev in StratifiedKFold(folds, shuffle=True, random_state=seed).split(x, y):
            fitted = LogisticRegression(C=strength, max_iter=1000).fit(x[train], y[train])
            accuracies.append(fitted.score(x[dev], y[dev]))
        scores.append(round(100 * np.mean(accuracies), 2))
    return grid[int(np.argmax(scores))]


def test_folds_within_folds(tmp_path):
    rows = texts(90, 0)
    write(tmp_path / "mr" / "all.jsonl.gz", rows)
    x, y = data(rows)
    expected = []
    for train, test in StratifiedKFold(3, shuffle=True, random_state=1111).split(x, y):
        strength = best_strength(x[train], y[train], 3, 1111)
        expected.append(LogisticRegression(C=strength, max_iter=1000).fit(x[train], y[train]).score(x[test], y[test]))
    report = evaluate_transfer(Letters(), tmp_path, folds=3, jobs=1)
    assert report.value("mr", "test") == pytest.approx(np.mean(expected), abs=1e-12)
    assert 0.5 < report.value("mr", "test") < 0.95
    assert report.scores[0].size == 90


def test_train_and_test_of_several_classes(tmp_path):
    train, test = texts(80, 1, classes=3), texts(60, 2, classes=3)
    write(tmp_path / "trec" / "train.jsonl", train)
    write(tmp_path / "trec" / "test.jsonl", test)
    x, y = data(train)
    fitted = LogisticRegression(C=best_strength(x, y, 4, 1111, REGULARISATION_OF_TRAIN), max_iter=1000).fit(x, y)
    expected = fitted.score(*data(test))
    assert evaluate_transfer(Letters(), tmp_path, folds=4, jobs=1).value("trec", "test") == pytest.approx(expected)


def test_dev_chooses_c_and_is_not_trained_on(tmp_path):
    parts = {name: texts(60, seed) for seed, name in enumerate(("train", "dev", "test"), start=3)}
    for name, rows in parts.items():
        write(tmp_path / "sst2" / f"{name}.jsonl", rows)
    splits = {name: data(rows) for name, rows in parts.items()}
    tried = [LogisticRegression(C=strength, max_iter=1000).fit(*splits["train"]) for strength in REGULARISATION]
    best = tried[int(np.argmax([one.score(*splits["dev"]) for one in tried]))]
    value = evaluate_transfer(Letters(), tmp_path, jobs=1).value("sst2", "test")
    assert value == pytest.approx(best.score(*splits["test"]))


def test_sentevals_choice():
    assert REGULARISATION == (0.25, 0.5, 1, 2, 4, 8)
    assert REGULARISATION_OF_TRAIN == (0.5, 1, 2, 4, 8, 16, 32)
    # Means that differ by less than SentEval's rounding are equal, and the first of equals is taken.
    assert first_of_best({"mean_test_score": [0.70001, 0.70004, 0.6]}) == 0
    assert first_of_best({"mean_test_score": [0.7000, 0.7002, 0.6]}) == 1


def test_pairs_by_hand(tmp_path):
    rows = [{"sentence1": "aab", "sentence2": "abc", "label": 1}, {"sentence1": "c", "sentence2": "bb", "label": 0}]
    for split in ("train", "test"):
        write(tmp_path / "mrpc" / f"{split}.jsonl", rows * 5)
    train = read_transfer(tmp_path)["mrpc"]["train"]
    # u = (2, 1, 0), v = (1, 1, 1) and u = (0, 0, 1), v = (0, 2, 0): |u - v| and u * v.
    assert features(Letters(), train)[:2].tolist() == [[1, 0, 1, 2, 1, 0], [0, 2, 1, 0, 0, 0]]
    report = evaluate_transfer(Letters(), tmp_path, folds=2, jobs=1)
    assert [(score.metric, score.value) for score in report.scores] == [("accuracy", 1.0)]


def test_tasks_come_in_the_papers_order(tmp_path):
    for name in ("zzz", "trec", "mr", "cr"):
        write(tmp_path / name / "all.jsonl", texts(12, 0))
    (tmp_path / "empty").mkdir()
    assert list(read_transfer(tmp_path)) == ["mr", "cr", "trec", "zzz"]
    notes = evaluate_transfer(Constant(1.0), tmp_path, folds=2, jobs=1).notes
    assert notes[-1].startswith("The mean is over mr, cr, trec, zzz;")


def test_vectors_that_are_not_finite_have_no_accuracy(tmp_path):
    write(tmp_path / "mr" / "all.jsonl", texts(12, 0))
    report = evaluate_transfer(Constant(math.nan), tmp_path, folds=2, jobs=1)
    assert math.isnan(report.value("mr", "test"))
    assert "not finite" in report.notes[0]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a", "label": 0}, {"text": "b"}], "label"),
        ([{"text": "a", "label": 0}] * 3, "two classes"),
        ([{"sentence1": "a", "label": 0}, {"text": "b", "label": 1}], "must have"),
        ([{"sentence1": "a", "sentence2": "b", "label": 0}, {"text": "b", "label": 1}], "must have"),
        ([{"text": "a", "label": None}, {"text": "b", "label": 1}], "label"),
        ([{"text": 3, "label": 0}, {"text": "b", "label": 1}], r"text\[0\] must be a string|text\) changed"),
    ],
)
def test_errors_name_the_file(tmp_path, rows, message):
    write(tmp_path / "mr" / "all.jsonl", rows)
    with pytest.raises((TypeError, ValueError), match=message) as error:
        read_transfer(tmp_path)
    assert "all.jsonl" in str(error.value)


def test_a_row_of_a_table_without_a_class_is_refused(tmp_path):
    write(tmp_path / "mr" / "all.csv", "text,label\na,pos\nb,\nc,neg\n")
    with pytest.raises(ValueError, match="a class in every row"):
        read_transfer(tmp_path)


def test_labels_that_train_does_not_have(tmp_path):
    write(tmp_path / "mr" / "train.jsonl", [{"text": "a", "label": 0}, {"text": "b", "label": 1}] * 2)
    write(tmp_path / "mr" / "test.jsonl", [{"text": "a", "label": label} for label in (0, 1, "no")])
    with pytest.raises(ValueError, match=r"mr/test\.jsonl (has the label 'no'|.*label\) changed)"):
        evaluate_transfer(Letters(), tmp_path, folds=2)


def test_a_task_without_a_test_split(tmp_path):
    write(tmp_path / "mr" / "train.jsonl", texts(9, 0))  # and no test
    with pytest.raises(ValueError, match="has no task"):
        read_transfer(tmp_path)
