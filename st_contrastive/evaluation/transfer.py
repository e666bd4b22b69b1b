"""Transfer tasks by SentEval's protocol: logistic regression on the vectors of a frozen encoder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from st_contrastive._checks import require_texts
from st_contrastive.evaluation.encoding import Encoder, collapse_notes, encode_texts
from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.set_files import mean_note, set_folders, split_file
from st_contrastive.inputs.tables import read_table

#: The seven tasks in the order of the papers' tables.
PAPERS_TASKS = ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc")
#: SentEval's values of C, the inverse regularization: for outer folds or a dev split, and for folds of train.
REGULARISATION = tuple(2.0**power for power in range(-2, 4))
REGULARISATION_OF_TRAIN = tuple(2.0**power for power in range(-1, 6))
#: SentEval's number of folds and its seed.
FOLDS, SEED = 10, 1111


@dataclass(frozen=True)
class TransferSplit:
    """One or two columns of texts, and the class of each row."""

    texts: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...]


def read_transfer(folder: str | Path) -> dict[str, dict[str, TransferSplit]]:
    """Read the transfer tasks in a folder: the splits of each task by its name.

    Splits are tables such as ``<task>/<split>.jsonl.gz`` with the columns ``label`` and ``text``, or ``label``,
    ``sentence1`` and ``sentence2``. A task has either the split "all", which is divided into folds, or the splits
    "train", "test" and, if there is one, "dev".

    Raises:
        ValueError: the folder has no task, or a file can't be used.
    """
    tasks = {}
    for task_folder in set_folders(folder, PAPERS_TASKS):
        paths = {split: path for split in ("all", "train", "dev", "test") if (path := split_file(task_folder, split))}
        if "all" in paths:
            tasks[task_folder.name] = {"all": _read(paths["all"])}
        elif {"train", "test"} <= paths.keys():
            tasks[task_folder.name] = splits = {split: _read(path) for split, path in paths.items()}
            for split, rows in splits.items():
                if unknown := {*rows.labels} - {*splits["train"].labels}:
                    raise ValueError(f"{paths[split]} has the label {min(unknown)!r}, which no row of train has.")
    if not tasks:
        raise ValueError(f"{folder} has no task, such as mr/all.jsonl, or trec/train.jsonl and test.jsonl.")
    return tasks


def _read(path: Path) -> TransferSplit:
    names = [name for name in ("text", "sentence1", "sentence2", "label") if name in read_table(path).column_names]
    table = read_table(path, names)  # all cells as text, including numbers
    labels = table["label"][:] if names in (["text", "label"], ["sentence1", "sentence2", "label"]) else []
    if any(label is None or not str(label).strip() for label in labels) or len(set(labels)) < 2:
        raise ValueError(
            f"{path} must have the column text, or the columns sentence1 and sentence2, and the column label, with a "
            "class in every row and two classes or more."
        )
    texts = tuple(tuple(require_texts(f"{path}: {name}", table[name][:])) for name in names[:-1])
    return TransferSplit(texts, tuple(map(str, labels)))


def features(model: Encoder, split: TransferSplit, *, batch_size: int = 64) -> NDArray[Any]:
    """Input of the classifier, as in SentEval: vectors u of texts, (N, d); of pairs ``[|u - v|, u * v]``, (N, 2 d)."""
    columns = [encode_texts(model, column, batch_size=batch_size) for column in split.texts]
    if len(columns) == 1:
        return columns[0]
    first, second = columns
    return np.hstack([np.abs(first - second), first * second])


def accuracy(data: dict[str, tuple[Any, Any]], *, folds: int = FOLDS, jobs: int = -1) -> float:
    """Accuracy of a classifier on the splits of a task.

    With the split "all", the mean over outer folds: C is chosen for each by inner folds of the remaining rows. With
    "train" and "test", C is chosen on "dev" or by folds of "train", and the classifier is trained on all of "train".

    Args:
        data: features and labels by split.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score

    def classifier(**options: Any) -> Any:
        return LogisticRegression(max_iter=1000, random_state=SEED, **options)

    cuts = StratifiedKFold(folds, shuffle=True, random_state=SEED)

    def search(grid: tuple[float, ...], jobs: int) -> Any:
        return GridSearchCV(classifier(), {"C": grid}, cv=cuts, refit=first_of_best, n_jobs=jobs, error_score="raise")

    if "all" in data:
        chosen = search(REGULARISATION, 1)
        scores = cross_val_score(chosen, *data["all"], cv=cuts, n_jobs=jobs, error_score="raise")
        return float(np.mean(scores))
    if "dev" in data:
        tried = [classifier(C=strength).fit(*data["train"]) for strength in REGULARISATION]
        chosen = tried[first_of_best({"mean_test_score": [one.score(*data["dev"]) for one in tried]})]
    else:
        chosen = search(REGULARISATION_OF_TRAIN, jobs).fit(*data["train"])
    return float(chosen.score(*data["test"]))


def first_of_best(results: dict[str, Any]) -> int:
    """Index of the first of the highest mean accuracies, rounded to hundredths of a per cent as in SentEval."""
    return int(np.argmax(np.round(100 * np.asarray(results["mean_test_score"]), 2)))


def evaluate_transfer(
    model: Encoder,
    folder: str | Path,
    *,
    name: str = "model",
    folds: int = FOLDS,
    jobs: int = -1,
    batch_size: int = 64,
) -> Report:
    """Score a model on every transfer task in a folder. A score is NaN if the model's vectors are not finite.

    The classifier is scikit-learn's logistic regression, as in SentEval with ``usepytorch=False``. The papers used
    SentEval's PyTorch classifier, which gives other accuracies on the same vectors (65.4 and not 68.2 on TREC), so do
    not compare figures of the two.

    Args:
        folder: see :func:`read_transfer`.
        folds: number of outer and of inner folds; 10 in SentEval and in the papers.
        jobs: number of processes; -1 uses all cores.

    Raises:
        OSError, ValueError: the folder or a file can't be used. All files are read before anything is encoded.
    """
    tasks = read_transfer(folder)
    scores: list[Score] = []
    notes: list[str] = []
    for task, splits in tqdm(tasks.items(), desc="transfer", disable=None):
        data = {
            split: (features(model, rows, batch_size=batch_size), np.asarray(rows.labels))
            for split, rows in splits.items()
        }
        split = "all" if "all" in splits else "test"
        finite = all(np.isfinite(vectors).all() for vectors, _ in data.values())
        value = accuracy(data, folds=folds, jobs=jobs) if finite else math.nan
        # All tasks are reported under one split, so that the mean is over all of them.
        scores.append(Score(task, "test", "accuracy", value, len(splits[split].labels)))
        notes += collapse_notes(task, np.concatenate([vectors for vectors, _ in data.values()]))
    notes += mean_note(list(tasks), PAPERS_TASKS)
    return Report(name, tuple(scores), {"suite": "transfer", "folds": folds, "seed": SEED}, tuple(notes))
