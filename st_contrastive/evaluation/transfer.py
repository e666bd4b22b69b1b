"""Transfer tasks by SentEval's protocol: logistic regression on frozen sentence vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from st_contrastive._checks import require_count
from st_contrastive.evaluation._data_files import (
    SPLIT_NAMES,
    EvaluationDataError,
    find,
    folders_in,
    read_rows,
    require_folder,
    text,
)
from st_contrastive.evaluation._encoding import Encoder, encoded
from st_contrastive.evaluation.report import Report, Score

#: The papers' seven tasks in the order of their tables.
PAPERS_TASKS = ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc")
#: SentEval's values of C, the inverse regularisation; the best on the validation folds is taken.
REGULARISATION = tuple(2.0**power for power in range(-2, 4))
#: The same for tasks with a test set whose C is chosen by folds of train (TREC, MRPC).
REGULARISATION_OF_TEST = tuple(2.0**power for power in range(-1, 6))
#: SentEval's number of folds and its seed.
FOLDS, SEED = 10, 1111
_STEPS = 1000


@dataclass(frozen=True)
class TransferSplit:
    """Texts, or pairs of them, and their classes."""

    texts: tuple[tuple[str, ...], ...]  # one entry a column
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class TransferTask:
    """A task's splits: ``all``, which is divided into folds; or ``train``, ``test`` and perhaps ``dev``."""

    name: str
    splits: dict[str, TransferSplit]


def read_transfer(folder: str | Path) -> list[TransferTask]:
    """The tasks in a folder.

    They are files ``<task>/<split>.jsonl[.gz]`` with ``label`` and ``text``, or ``sentence1`` and ``sentence2``.

    Raises:
        EvaluationDataError: there is none, or a file can't be used.
    """
    root = require_folder(folder, "one folder per task, such as mr/all.jsonl.gz")
    names = {"all": ("all",), **SPLIT_NAMES}
    tasks = []
    for place in folders_in(root, PAPERS_TASKS):
        splits = {split: path for split, own in names.items() if (path := find(place, *own)) is not None}
        if "all" in splits or {"train", "test"} <= splits.keys():
            task = TransferTask(place.name, {split: _read(path) for split, path in splits.items()})
            _check_alike(task)
            tasks.append(task)
    if not tasks:
        raise EvaluationDataError(
            f"{root} holds no task: a folder each, with all.jsonl, or with train.jsonl and test.jsonl (.gz)."
        )
    return tasks


def _check_alike(task: TransferTask) -> None:
    """Refuse splits that a classifier of train can't be scored on."""
    train = task.splits.get("train")
    if train is None:
        return
    for split, own in task.splits.items():
        if len(own.texts) != len(train.texts):
            raise EvaluationDataError(f"{task.name}: train and {split} differ in the number of texts per row.")
        if more := set(own.labels) - set(train.labels):
            known = ", ".join(map(repr, sorted(set(train.labels))))
            raise EvaluationDataError(
                f"{task.name}: {split} has the label {min(more)!r}, and train only {known}: write the "
                "labels alike in all splits, and leave out rows without one."
            )


def _read(path: Path) -> TransferSplit:
    rows, labels = [], []
    for row, where in read_rows(path, "text|sentence1", "label"):
        columns = ("text",) if "text" in row else ("sentence1", "sentence2")
        if columns[-1] not in row:
            raise EvaluationDataError(f"{where} has sentence1 and no sentence2.")
        if row["label"] is None:
            raise EvaluationDataError(f"{where}: label is null; give each row a label.")
        rows.append(tuple(text(row, column, where) for column in columns))
        labels.append(str(row["label"]))
    if len(set(labels)) < 2:
        raise EvaluationDataError(f"{path} holds {len(rows)} row(s) of {len(set(labels))} class(es); 2 are needed.")
    if len({len(row) for row in rows}) > 1:
        raise EvaluationDataError(f"{path} mixes rows of one text with rows of two.")
    return TransferSplit(tuple(zip(*rows, strict=True)), tuple(labels))


def features(model: Encoder, split: TransferSplit, *, batch_size: int = 64) -> Any:
    """The classifier's input, as in SentEval: each text's vector u, (N, d); of pairs ``[|u - v|, u * v]``, (N, 2 d)."""
    columns = [encoded(model, column, batch_size=batch_size) for column in split.texts]
    if len(columns) == 1:
        return columns[0]
    first, second = columns
    return np.hstack([np.abs(first - second), first * second])


def transfer_scores(
    model: Encoder, task: TransferTask, *, folds: int = FOLDS, seed: int = SEED, jobs: int = -1, batch_size: int = 64
) -> dict[str, float]:
    """Accuracy on one task; for pairs labelled 0 and 1, or false and true, also F1 of the second label.

    With a split "all": the mean over outer folds, each with its C chosen by inner folds of the rest. With train and
    test: C is chosen on dev, or by folds of train if there is no dev, and the classifier is trained on all of train.
    NaN for an encoder whose vectors are not finite.

    Args:
        model: anything with ``encode``.
        task: the task.
        folds: number of outer and of inner folds; fewer if a class has fewer rows.
        seed: of the folds.
        jobs: processes; -1 uses all cores.
        batch_size: of encoding.

    Raises:
        EvaluationDataError: a class has too few rows for folds.
    """
    from sklearn.metrics import accuracy_score, f1_score

    _check_classes(task, folds)
    made = {
        name: (features(model, split, batch_size=batch_size), np.asarray(split.labels))
        for name, split in task.splits.items()
    }
    positive = _positive(task)
    if not all(np.isfinite(vectors).all() for vectors, _ in made.values()):
        return {"accuracy": math.nan, **({} if positive is None else {"f1": math.nan})}
    if "all" in made:
        return {"accuracy": _over_folds(*made["all"], folds, seed, jobs)}
    x, y = made["train"]
    if "dev" in made:
        strength = _best(REGULARISATION, [_accuracies(made["train"], made["dev"], REGULARISATION, seed)])
    else:
        strength = _by_folds(x, y, _possible(folds, _rarest(y)), seed, REGULARISATION_OF_TEST, jobs)
    chosen = _classifier(seed, C=strength).fit(x, y)
    test, gold = made["test"]
    found = chosen.predict(test)
    scores = {"accuracy": float(accuracy_score(gold, found))}
    if positive is not None:
        scores["f1"] = float(f1_score(gold, found, pos_label=positive))
    return scores


def _of_pairs(task: TransferTask) -> bool:
    """Whether the task has F1: two classes of pairs, and a test set."""
    train = task.splits.get("train")
    return train is not None and "all" not in task.splits and len(train.texts) == 2 and len(set(train.labels)) == 2


def _positive(task: TransferTask) -> str | None:
    """The label of the pairs that mean the same; None without F1, or if the labels don't say which it is."""
    labels = sorted(set(task.splits["train"].labels)) if _of_pairs(task) else []
    return labels[1] if [label.lower() for label in labels] in (["0", "1"], ["false", "true"]) else None


def _check_classes(task: TransferTask, folds: int) -> None:
    """Refuse a class with too few rows for every fold to have one."""
    nested = 3 if folds > 2 else 4  # folds within folds
    split, needed = ("all", nested) if "all" in task.splits else ("train", 1 if "dev" in task.splits else 2)
    labels = task.splits[split].labels
    least = _rarest(np.asarray(labels))
    if least < needed:
        rare = min(set(labels), key=labels.count)
        raise EvaluationDataError(
            f"{task.name}: {split} has {least} row(s) of class {rare!r}, and folds need {needed} of each class."
        )


def _rarest(labels: Any) -> int:
    """The number of rows of the rarest class."""
    return int(np.unique(labels, return_counts=True)[1].min())


def _possible(folds: int, least: int) -> int:
    """The number of folds, at most that of the rarest class's rows."""
    return max(2, min(folds, least))


def _folds(x: Any, y: Any, folds: int, seed: int) -> Iterator[tuple[Any, Any]]:
    """Rows and classes of train and of test, for each fold."""
    from sklearn.model_selection import StratifiedKFold

    for train, test in StratifiedKFold(folds, shuffle=True, random_state=seed).split(x, y):
        yield (x[train], y[train]), (x[test], y[test])


def _over_folds(x: Any, y: Any, folds: int, seed: int, jobs: int) -> float:
    """Mean accuracy over outer folds, each with the best C on inner folds of the rest."""
    from sklearn.utils.parallel import Parallel, delayed

    least = _rarest(y)
    outer = _possible(folds, least)
    inner = _possible(folds, least - math.ceil(least / outer))
    own = (delayed(_nested)(*fold, inner, seed) for fold in _folds(x, y, outer, seed))
    return float(np.mean(Parallel(n_jobs=jobs)(own)))


def _nested(train: tuple[Any, Any], test: tuple[Any, Any], folds: int, seed: int) -> float:
    """Accuracy on test with the best C on folds of train."""
    strength = _by_folds(*train, folds, seed, REGULARISATION)
    return float(_classifier(seed, C=strength).fit(*train).score(*test))


def _by_folds(x: Any, y: Any, folds: int, seed: int, grid: Sequence[float], jobs: int = 1) -> float:
    """The C with the best mean accuracy over folds."""
    from sklearn.utils.parallel import Parallel, delayed

    own = (delayed(_accuracies)(*fold, grid, seed) for fold in _folds(x, y, folds, seed))
    return _best(grid, Parallel(n_jobs=jobs)(own))


def _accuracies(train: tuple[Any, Any], test: tuple[Any, Any], grid: Sequence[float], seed: int) -> list[float]:
    """Accuracy on test with each C. A fit starts from the weights of the C before it, which saves a third or more."""
    classifier = _classifier(seed, warm_start=True)
    return [classifier.set_params(C=strength).fit(*train).score(*test) for strength in grid]


def _classifier(seed: int, **options: Any) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=_STEPS, random_state=seed, **options)


def _best(grid: Sequence[float], accuracies: Sequence[Sequence[float]]) -> float:
    """The C with the best mean over folds, (folds, len(grid)), in per cent and rounded to two decimals, as in SentEval.

    The first of equals.
    """
    return grid[int(np.argmax(np.round(100 * np.mean(accuracies, axis=0), 2)))]


def evaluate_transfer(
    model: Encoder,
    folder: str | Path,
    *,
    name: str = "model",
    folds: int = FOLDS,
    seed: int = SEED,
    jobs: int = -1,
    batch_size: int = 64,
    progress: bool = False,
) -> Report:
    """Score a model on every transfer task in a folder.

    Args:
        model: anything with ``encode``.
        folder: see :func:`read_transfer`.
        name: the model's name in the report.
        folds: see :func:`transfer_scores`; 10 in SentEval and the papers.
        seed: of the folds.
        jobs: processes; -1 uses all cores.
        batch_size: of encoding.
        progress: show a bar over the tasks.

    Raises:
        EvaluationDataError: the folder or a file can't be used. All files are read before anything is encoded.
        ValueError: ``folds`` is less than 2.
    """
    from tqdm.auto import tqdm

    require_count("folds", folds, least=2)
    tasks: Sequence[TransferTask] = read_transfer(folder)
    scores: list[Score] = []
    notes = []
    for task in tasks:
        _check_classes(task, folds)
    for task in tqdm(tasks, desc="transfer", disable=not progress):
        found = transfer_scores(model, task, folds=folds, seed=seed, jobs=jobs, batch_size=batch_size)
        split = "all" if "all" in task.splits else "test"
        # One name for the split, so that there is one mean over all tasks.
        scores += [Score(task.name, "test", metric, value, len(task.splits[split])) for metric, value in found.items()]
        if _of_pairs(task) and _positive(task) is None:
            notes.append(f"{task.name}: no F1, since the positive label is unknown; name the labels 0 and 1.")
        if math.isnan(found["accuracy"]):
            notes.append(f"{task.name}: the model's vectors are not finite.")
    return Report(name, tuple(scores), {"suite": "transfer", "folds": folds, "seed": seed}, tuple(notes))
