"""Semantic textual similarity as the papers score it: Spearman correlation of cosine similarity and gold score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from scipy.stats import spearmanr

from st_contrastive._checks import require_choice
from st_contrastive.evaluation._data_files import (
    SPLIT_NAMES,
    EvaluationDataError,
    find,
    folders_in,
    number,
    read_rows,
    require_folder,
    text,
)
from st_contrastive.evaluation._encoding import Encoder, encoded, unit
from st_contrastive.evaluation.report import Report, Score

#: The seven sets of the papers' tables in their order, with the number of test pairs in SentEval's versions.
PAPERS_SETS = {"sts12": 3108, "sts13": 1500, "sts14": 3750, "sts15": 3000, "sts16": 1186, "stsb": 1379, "sickr": 4927}
#: Splits that are scored by default, in the order of a table.
SPLITS = ("dev", "test")
#: The split of all pairs of a set. MTEB scores SICK-R on it, so that SICK-R has it by default.
ALL = "all"
SICK_ALL = 9927
_HUB = {name: (f"mteb/{name}-sts", {"test": "test"}) for name in list(PAPERS_SETS)[:5]} | {
    "stsb": ("mteb/stsbenchmark-sts", {"train": "train", "dev": "validation", "test": "test"}),
    "sickr": ("mteb/sickr-sts", {ALL: "test"}),  # its test split there is all of SICK
}

#: The sets that SentEval divides into subsets.
_WITHOUT_SUBSETS = tuple(PAPERS_SETS)[5:]  # in SentEval, though files of them may name genres
Setting = Literal["all", "mean", "wmean"]


@dataclass(frozen=True)
class STSPairs:
    """Sentence pairs with their gold scores, and the subset of the set that each belongs to ("" for none)."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: tuple[float, ...]
    subsets: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.scores)

    def __add__(self, other: STSPairs) -> STSPairs:
        return STSPairs(
            self.first + other.first,
            self.second + other.second,
            self.scores + other.scores,
            self._all_subsets() + other._all_subsets() if self.subsets or other.subsets else (),
        )

    def _all_subsets(self) -> tuple[str, ...]:
        return self.subsets or ("",) * len(self)


def read_sts(path: str | Path) -> STSPairs:
    """Read pairs, one JSON object per line: ``sentence1``, ``sentence2``, ``score`` and, if there are any, ``subset``.

    SimCLUE's form, with a ``label`` of 0 or 1 instead of the score, is read too.

    Raises:
        EvaluationDataError: the file can't be read, or a line has another form; the message names the line.
    """
    pairs: list[tuple[str, str, float, str]] = []
    for row, where in read_rows(Path(path), "sentence1", "sentence2", "score|label"):
        gold = number(row, "score", where) if "score" in row else number(row, "label", where, parse=True)
        subset = row.get("subset")
        pairs.append((text(row, "sentence1", where), text(row, "sentence2", where), gold, str(subset or "")))
    if len(pairs) < 2:
        raise EvaluationDataError(f"{path} holds {len(pairs)} pair(s); a correlation needs at least 2.")
    return STSPairs(*zip(*pairs, strict=True))


def similarities(model: Encoder, pairs: STSPairs, *, batch_size: int = 64, progress: bool = False) -> Any:
    """Cosine similarity of each pair under the model, a float32 array; each sentence is encoded once."""
    vectors = encoded(model, (*pairs.first, *pairs.second), batch_size=batch_size, progress=progress)
    first, second = np.split(unit(vectors), 2)
    # In float32, similarities that differ only by rounding, such as those of equal sentences, are ties.
    return (first * second).sum(axis=1).astype(np.float32)


def sts_spearman(
    model: Encoder, pairs: STSPairs, *, setting: Setting = "all", batch_size: int = 64, progress: bool = False
) -> float:
    """Spearman correlation of cosine similarity and gold score, without regression.

    NaN if the model gives every pair the same similarity.

    Args:
        model: anything with ``encode``.
        pairs: the pairs.
        setting: SentEval's. "all", which the papers use, correlates all pairs at once; "mean" takes the mean of the
            subsets' correlations, "wmean" the mean weighted by their sizes.
        batch_size: of encoding.
        progress: show a bar over the batches.

    Example:
        >>> import numpy as np
        >>> class Letters:
        ...     def encode(self, sentences, *, batch_size, show_progress_bar):
        ...         return np.array([[text.count(letter) for letter in "abc"] for text in sentences])
        >>> pairs = STSPairs(("a", "ab", "ab"), ("a", "a", "c"), (5.0, 3.0, 0.0))
        >>> round(sts_spearman(Letters(), pairs), 6)
        1.0

    Raises:
        ValueError: there is no such setting.
    """
    require_choice("setting", setting, get_args(Setting))
    found = similarities(model, pairs, batch_size=batch_size, progress=progress)
    gold = np.asarray(pairs.scores)
    if setting == "all" or not pairs.subsets:
        return _spearman(found, gold)
    subsets = np.asarray(pairs.subsets)
    names, sizes = np.unique(subsets, return_counts=True)
    values = [_spearman(found[subsets == name], gold[subsets == name]) for name in names]
    return float(np.average(values, weights=sizes if setting == "wmean" else None))


def _spearman(found: Any, gold: Any) -> float:
    if len(found) < 2 or np.ptp(found) == 0 or np.ptp(gold) == 0:
        return float("nan")
    return float(spearmanr(found, gold).statistic)


def sts_files(folder: str | Path, splits: Sequence[str] = SPLITS) -> dict[tuple[str, str], list[Path]]:
    """The data files under ``folder``, by set and split: ``<set>/<split>.jsonl[.gz]``, the papers' sets first.

    Args:
        folder: one folder per set.
        splits: which are wanted. A file of "dev" may also be called validation or trial. "all" is every pair of a set,
            from ``all.jsonl`` or from its train, dev and test files together. For SICK-R it is among the default.

    Raises:
        EvaluationDataError: the folder holds no such file.
        TypeError: ``splits`` is a string.
    """
    _check_splits(splits)
    root = require_folder(folder, "one folder per set, such as stsb/test.jsonl.gz")
    found: dict[tuple[str, str], list[Path]] = {}
    for place in folders_in(root, tuple(PAPERS_SETS), plain):
        wanted = [*splits, ALL] if plain(place.name) == "sickr" and tuple(splits) == SPLITS else splits
        for split in dict.fromkeys(wanted):
            if files := split_files(place, split):
                found[place.name, split] = files
    if not found:
        raise EvaluationDataError(
            f"{root} holds no set with a split of {', '.join(splits)}, such as stsb/test.jsonl.gz."
        )
    return found


def _check_splits(splits: Sequence[str]) -> None:
    if isinstance(splits, str):  # whose letters would be taken for names
        raise TypeError(f"splits must be a sequence of names, such as ({splits!r},), got {splits!r}.")


def plain(name: str) -> str:
    """One spelling of a set's name: stsb for STS-B and STSBenchmark, sickr for SICK-R and SICKRelatedness."""
    letters = "".join(letter for letter in name.lower() if letter.isalnum())
    return {"stsbenchmark": "stsb", "sick": "sickr", "sickrelatedness": "sickr"}.get(letters, letters)


def split_files(place: Path, split: str) -> list[Path]:
    """The files of one split in a set's folder; empty if it has no such split."""
    path = find(place, *SPLIT_NAMES.get(split, (split,)))
    if path is not None:
        return [path]
    if split != ALL:
        return []
    parts = [find(place, *names) for names in SPLIT_NAMES.values()]
    return [path for path in parts if path is not None] if all(parts) else []


def read_split(files: Iterable[Path]) -> STSPairs:
    """The pairs of all the files together."""
    pairs = [read_sts(path) for path in files]
    return sum(pairs[1:], start=pairs[0])


def hub_sts(splits: Sequence[str] = SPLITS, names: Sequence[str] = tuple(_HUB)) -> dict[tuple[str, str], STSPairs]:
    """The papers' sets from the Hugging Face Hub, by set and split. Its SICK-R is the split "all", of 9,927 pairs.

    Raises:
        EvaluationDataError: a set can't be loaded, or none has these splits.
        TypeError: ``splits`` is a string.
    """
    from datasets import load_dataset

    _check_splits(splits)
    found = {}
    for name in names:
        repository, has = _HUB[name]
        wanted = splits if name != "sickr" else [ALL] if {"test", ALL} & set(splits) else []
        for split in wanted:
            if split not in has:
                continue
            try:
                rows = load_dataset(repository, split=has[split])
            except Exception as error:  # the network's, the Hub's or a file's
                raise EvaluationDataError(
                    f"{repository} can't be loaded from the Hugging Face Hub ({type(error).__name__}). Use local "
                    "files: train --dev FILE, evaluate --eval-data DIR, or evaluate_sts(model, folder)."
                ) from error
            found[name, split] = STSPairs(
                tuple(rows["sentence1"]), tuple(rows["sentence2"]), tuple(map(float, rows["score"]))
            )
    if not found:
        raise EvaluationDataError(f"The Hugging Face Hub's sets have no split {' or '.join(map(repr, splits))}.")
    return found


def evaluate_sts(
    model: Encoder,
    folder: str | Path | None = None,
    *,
    name: str = "model",
    splits: Sequence[str] = SPLITS,
    setting: Setting = "all",
    batch_size: int = 64,
    progress: bool = False,
) -> Report:
    """Score a model on every set in a folder, or on the papers' seven from the Hugging Face Hub.

    Args:
        model: anything with ``encode``.
        folder: ``<set>/<split>.jsonl[.gz]``, see :func:`read_sts`. All sets in it are scored. None loads the
            papers' sets from the Hugging Face Hub, which has only "all" of SICK-R, and no subsets.
        name: the model's name in the report.
        splits: which splits are scored if a set has them. SICK-R is scored on its 4,927 test pairs, as in the papers,
            and on "all", MTEB's 9,927, if all of its files are there.
        setting: see :func:`sts_spearman`. "mean" and "wmean" apply to all sets whose files name subsets, except the
            STS Benchmark and SICK-R, of which SentEval has none.
        batch_size: of encoding.
        progress: show a bar over the files.

    Raises:
        EvaluationDataError: a file or the folder can't be used. All files are read before anything is encoded.
        TypeError: ``splits`` is a string.
    """
    from tqdm.auto import tqdm

    if folder is None:
        sets = hub_sts(splits)
    else:
        sets = {key: read_split(paths) for key, paths in sts_files(folder, splits).items()}
        for task, split in list(sets):
            if plain(task) == "sickr" and split == "test" and len(sets[task, split]) == SICK_ALL:
                # MTEB's test split, which is not the papers'.
                sets.setdefault((task, ALL), sets.pop((task, split)))
    items: Iterable[tuple[tuple[str, str], STSPairs]] = tqdm(sets.items(), desc="STS", disable=not progress)
    scores = []
    for (task, split), pairs in items:
        own_setting = "all" if plain(task) in _WITHOUT_SUBSETS else setting
        value = sts_spearman(model, pairs, setting=own_setting, batch_size=batch_size)
        scores.append(Score(task, split, "spearman", value, len(pairs)))
    notes = tuple(
        f"{task} {split} has {len(pairs):,} pairs, but the papers' set has {PAPERS_SETS[plain(task)]:,}."
        for (task, split), pairs in sets.items()
        if split == "test" and len(pairs) != PAPERS_SETS.get(plain(task), len(pairs))
    )
    notes += tuple(_notes_on_means(sets, splits, setting))
    return Report(name, tuple(scores), {"suite": "sts", "setting": setting, "similarity": "cosine"}, notes)


def _notes_on_means(sets: dict[tuple[str, str], STSPairs], splits: Sequence[str], setting: Setting) -> Iterable[str]:
    """Why means may differ from the papers'."""
    if setting != "all":
        single = [
            f"{task} {split}"
            for (task, split), pairs in sets.items()
            if plain(task) not in _WITHOUT_SUBSETS and len(set(pairs.subsets)) < 2
        ]
        if single:
            yield f"Scored over all pairs at once, since their files name no subsets: {', '.join(single)}."
    tests = {plain(task): task for task, split in sets if split == "test"}
    if "test" in splits and len(tests) > 1:
        missing = [name for name in PAPERS_SETS if name not in tests]
        more = [task for name, task in tests.items() if name not in PAPERS_SETS]
        if missing or more:
            parts = [f"{word} {', '.join(names)}" for word, names in (("without", missing), ("with", more)) if names]
            yield f"The mean is not that of the papers' seven test sets: {', and '.join(parts)}."
