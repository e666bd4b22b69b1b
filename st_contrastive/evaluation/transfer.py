"""Transfer tasks by SentEval's protocol: logistic regression on frozen sentence vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from st_contrastive._checks import require_texts
from st_contrastive.evaluation._encoding import Encoder, collapse_notes, encoded
from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.set_files import mean_note, set_folders, split_file
from st_contrastive.inputs._tables import read_table

#: The papers' seven tasks in the order of their tables.
PAPERS_TASKS = ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc")
#: SentEval's values of C, the inverse regularisation: by outer folds or a dev split, and by folds of train.
REGULARISATION = tuple(2.0**power for power in range(-2, 4))
REGULARISATION_OF_TRAIN = tuple(2.0**power for power in range(-1, 6))
#: SentEval's number of folds and its seed.
FOLDS, SEED = 10, 1111


@dataclass(frozen=True)
class TransferSplit:
    """Columns of texts, one or two, and the class of each row."""

    texts: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...]


def read_transfer(folder: str | Path) -> dict[str, dict[str, TransferSplit]]:
    """The tasks in a folder, by name, and the splits of each.

    They are tables such as ``<task>/<split>.jsonl.gz`` with ``label`` and ``text``, or ``sentence1`` and ``sentence2``.
    A task has a split "all", which is divided into folds; or "train", "test" and perhaps "dev".

    Raises:
        ValueError: there is none, or a file can't be used.
    """
    tasks = {}
    for task_folder in set_folders(folder, PAPERS_TASKS):
        paths = {split: path for split in ("all", "train", "dev", "test") if (path := split_file(task_folder, split))}
        if "all" in paths:
            tasks[task_folder.name] = {"all": _read(paths["all"])}
        elif {"train", "test"} <= paths.keys():
            tasks[task_folder.name] = splits = {split: _read(path) for split, path in paths.items()}
            for split, own in splits.items():
                if unknown := {*own.labels} - {*splits["train"].labels}:
                    raise ValueError(f"{paths[split]} has the label {min(unknown)!r}, and train has no row of it.")
    if not tasks:
        raise ValueError(f"{folder} holds no task, such as mr/all.jsonl, or trec/train.jsonl and test.jsonl.")
    return tasks


def _read(path: Path) -> TransferSplit:
    names = [name for name in ("text", "sentence1", "sentence2", "label") if name in read_table(path).column_names]
    table = read_table(path, names)  # as text, whatever the cells look like
    labels = table["label"][:] if names in (["text", "label"], ["sentence1", "sentence2", "label"]) else []
    if None in labels or len(set(labels)) < 2:
        raise ValueError(
            f"{path} must have the columns text, or sentence1 and sentence2, and label, which holds two classes or "
            "more, and one for each row."
        )
    texts = tuple(tuple(require_texts(f"{path}: {name}", table[name][:])) for name in names[:-1])
    return TransferSplit(texts, tuple(map(str, labels)))


def features(model: Encoder, split: TransferSplit, *, batch_size: int = 64) -> NDArray[Any]:
    """The classifier's input, as in SentEval: each text's vector u, (N, d); of pairs ``[|u - v|, u * v]``, (N, 2 d)."""
    columns = [encoded(model, column, batch_size=batch_size) for column in split.texts]
    if len(columns) == 1:
        return columns[0]
    first, second = columns
    return np.hstack([np.abs(first - second), first * second])


def accuracy(data: dict[str, tuple[Any, Any]], *, folds: int = FOLDS, jobs: int = -1) -> float:
    """Accuracy on (features, labels) by split.

    With "all": the mean over outer folds, each with its C chosen by inner folds of the rest. With "train" and "test":
    C is chosen on "dev", or by folds of train, and the classifier is trained on all of train.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score

    def classifier(**options: Any) -> Any:
        return LogisticRegression(max_iter=1000, random_state=SEED, **options)

    cuts = StratifiedKFold(folds, shuffle=True, random_state=SEED)

    def search(grid: tuple[float, ...], jobs: int) -> Any:
        return GridSearchCV(classifier(), {"C": grid}, cv=cuts, refit=_best, n_jobs=jobs, error_score="raise")

    if "all" in data:
        chosen = search(REGULARISATION, 1)
        scores = cross_val_score(chosen, *data["all"], cv=cuts, n_jobs=jobs, error_score="raise")
        return float(np.mean(scores))
    if "dev" in data:
        tried = [classifier(C=strength).fit(*data["train"]) for strength in REGULARISATION]
        chosen = tried[_best({"mean_test_score": [one.score(*data["dev"]) for one in tried]})]
    else:
        chosen = search(REGULARISATION_OF_TRAIN, jobs).fit(*data["train"])
    return float(chosen.score(*data["test"]))


def _best(results: dict[str, Any]) -> int:
    """The best of the mean accuracies, in per cent and rounded to two decimals as in SentEval; the first of equals."""
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

    The classifier is scikit-learn's logistic regression, as in SentEval with ``usepytorch=False``. The papers' figures
    come from SentEval's own classifier in PyTorch, which gives other accuracies on the same vectors, such as 65.4 where
    this one gives 68.2 (TREC): compare only what one of them scored.

    Args:
        folder: see :func:`read_transfer`.
        folds: number of outer and of inner folds; 10 in SentEval and the papers.
        jobs: processes; -1 uses all cores.

    Raises:
        OSError, ValueError: the folder or a file can't be used. All files are read before anything is encoded.
    """
    tasks = read_transfer(folder)
    scores: list[Score] = []
    notes: list[str] = []
    for task, splits in tqdm(tasks.items(), desc="transfer", disable=None):
        data = {
            split: (features(model, own, batch_size=batch_size), np.asarray(own.labels))
            for split, own in splits.items()
        }
        split = "all" if "all" in splits else "test"
        finite = all(np.isfinite(vectors).all() for vectors, _ in data.values())
        value = accuracy(data, folds=folds, jobs=jobs) if finite else math.nan
        # One name for the split, so that there is one mean over all tasks.
        scores.append(Score(task, "test", "accuracy", value, len(splits[split].labels)))
        notes += collapse_notes(task, np.concatenate([vectors for vectors, _ in data.values()]))
    notes += mean_note(list(tasks), PAPERS_TASKS)
    return Report(name, tuple(scores), {"suite": "transfer", "folds": folds, "seed": SEED}, tuple(notes))
