"""Semantic textual similarity as the papers score it: Spearman correlation of cosine similarity and gold score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.stats import spearmanr

from st_contrastive.evaluation._encoding import Encoder, encoded, unit
from st_contrastive.evaluation._files import SPLIT_NAMES, EvaluationDataError, find, number, read_rows, text
from st_contrastive.evaluation.report import Report, Score

#: The seven sets of the papers' tables in their order, and how many test pairs SentEval's versions have.
PAPERS_SETS = {"sts12": 3108, "sts13": 1500, "sts14": 3750, "sts15": 3000, "sts16": 1186, "stsb": 1379, "sickr": 4927}
#: Splits that are scored unless others are asked for, in the order of a table.
SPLITS = ("dev", "test")
#: Every pair of a set. Asked for by name but for SICK-R, which MTEB scores so.
ALL = "all"
SICK_ALL = 9927
_HUB = {name: (f"mteb/{name}-sts", {"test": "test"}) for name in list(PAPERS_SETS)[:5]} | {
    "stsb": ("mteb/stsbenchmark-sts", {"train": "train", "dev": "validation", "test": "test"}),
    "sickr": ("mteb/sickr-sts", {ALL: "test"}),  # the hub's test split is all of SICK
}

Setting = Literal["all", "mean", "wmean"]


@dataclass(frozen=True)
class STSPairs:
    """Sentence pairs with their gold scores, and the subset of the set that each is of ("" where it has none)."""

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
            self.subsets + other.subsets,
        )


def read_sts(path: str | Path) -> STSPairs:
    """Read pairs, one JSON object a line: ``sentence1``, ``sentence2`` and ``score``; ``subset``, if it has one.

    SimCLUE's form, with a ``label`` of 0 or 1 in place of the score, is read too.

    Raises:
        EvaluationDataError: the file can't be read, or a line is not as it must be; the line is named.
    """
    pairs: list[tuple[str, str, float, str]] = []
    for row, where in read_rows(Path(path), "sentence1", "sentence2", "score|label"):
        gold = number(row, "score", where) if "score" in row else number(row, "label", where, written=True)
        subset = row.get("subset")
        pairs.append((text(row, "sentence1", where), text(row, "sentence2", where), gold, str(subset or "")))
    if len(pairs) < 2:
        raise EvaluationDataError(f"{path} holds {len(pairs)} pair(s); a correlation needs at least 2.")
    return STSPairs(*zip(*pairs, strict=True))


def similarities(model: Encoder, pairs: STSPairs, *, batch_size: int = 64, progress: bool = False) -> Any:
    """Cosine similarity of each pair under the model, a float32 array; each sentence is encoded once."""
    vectors = encoded(model, (*pairs.first, *pairs.second), batch_size=batch_size, progress=progress)
    first, second = np.split(unit(vectors), 2)
    # What rounding alone would tell apart, such as pairs of equal sentences, is equal in float32, and a tie.
    return (first * second).sum(axis=1).astype(np.float32)


def sts_spearman(
    model: Encoder, pairs: STSPairs, *, setting: Setting = "all", batch_size: int = 64, progress: bool = False
) -> float:
    """Spearman correlation of cosine similarity and gold score; no regression.

    NaN where the model gives every pair the same similarity.

    Args:
        model: anything with ``encode``.
        pairs: the pairs.
        setting: "all" correlates all pairs at once, SentEval's setting of that name and the papers'; "mean" takes the
            mean of the subsets' correlations, "wmean" the mean weighted by their sizes.
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
    """
    if setting not in ("all", "mean", "wmean"):
        raise ValueError(f"setting must be 'all', 'mean' or 'wmean', got {setting!r}.")
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
        folder: one folder a set.
        splits: which are wanted; "dev" may be called validation or trial too. "all" is every pair of a set, of
            ``all.jsonl`` or of its train, dev and test files together; SICK-R has it unasked, where its three files
            are there.

    Raises:
        EvaluationDataError: the folder holds no such file.
    """
    root = Path(folder)
    if not root.is_dir():
        raise EvaluationDataError(f"{root} is not a folder. It must hold one folder a set, such as stsb/test.jsonl.gz.")
    found: dict[tuple[str, str], list[Path]] = {}
    order = {name: place for place, name in enumerate(PAPERS_SETS)}
    for place in sorted(root.iterdir(), key=lambda path: (order.get(plain(path.name), len(order)), path.name)):
        if not place.is_dir():
            continue
        wanted = [*splits, ALL] if plain(place.name) == "sickr" and tuple(splits) == SPLITS else splits
        for split in dict.fromkeys(wanted):
            files = split_files(place, split)
            if files:
                found[place.name, split] = files
    if not found:
        raise EvaluationDataError(
            f"{root} holds no set with a split of {', '.join(splits)}, such as stsb/test.jsonl.gz."
        )
    return found


def plain(name: str) -> str:
    """A set's name as others spell it: STS-B, STSBenchmark, stsb; SICK-R, sickr, SICKRelatedness."""
    letters = "".join(letter for letter in name.lower() if letter.isalnum())
    return {"stsbenchmark": "stsb", "sick": "sickr", "sickrelatedness": "sickr"}.get(letters, letters)


def split_files(place: Path, split: str) -> list[Path]:
    """The files of one split in a set's folder; none where it has it not."""
    path = find(place, *SPLIT_NAMES.get(split, (split,)))
    if path is not None:
        return [path]
    if split != ALL:
        return []
    parts = [find(place, *names) for names in SPLIT_NAMES.values()]
    return [path for path in parts if path is not None] if all(parts) else []


def read_split(files: Iterable[Path]) -> STSPairs:
    """The pairs of all files together."""
    pairs = [read_sts(path) for path in files]
    return sum(pairs[1:], start=pairs[0])


def hub_sts(splits: Sequence[str] = SPLITS, names: Sequence[str] = tuple(_HUB)) -> dict[tuple[str, str], STSPairs]:
    """The papers' sets from the hub, by set and split. SICK-R has all its 9,927 pairs there, "all".

    Raises:
        EvaluationDataError: one can't be had.
    """
    from datasets import load_dataset

    found = {}
    for name in names:
        repository, has = _HUB[name]
        for split in splits if name != "sickr" else (ALL,):
            if split not in has:
                continue
            try:
                rows = load_dataset(repository, split=has[split])
            except Exception as error:  # of the network, of the hub, of a file
                raise EvaluationDataError(
                    f"{repository} can't be had from the hub ({type(error).__name__}): name local files of it."
                ) from error
            found[name, split] = STSPairs(
                tuple(rows["sentence1"]), tuple(rows["sentence2"]), tuple(map(float, rows["score"]))
            )
    return found


def evaluate_sts(
    model: Encoder,
    folder: str | Path | None,
    *,
    name: str = "model",
    splits: Sequence[str] = SPLITS,
    setting: Setting = "all",
    batch_size: int = 64,
    progress: bool = False,
) -> Report:
    """Score a model on every set in a folder, or on the papers' seven from the hub.

    Args:
        model: anything with ``encode``.
        folder: ``<set>/<split>.jsonl[.gz]``, see :func:`read_sts`. All sets that it holds are scored. None takes the
            papers' sets from the hub, whose SICK-R is "all" alone, and which has no subsets.
        name: the model's name in the report.
        splits: which splits are scored where a set has them. SICK-R is scored on its 4,927 test pairs, as in the
            papers, and as "all", MTEB's 9,927, where all are there.
        setting: see :func:`sts_spearman`. The means are taken where SentEval takes them, on STS12 to STS16: the others
            have no subsets there.
        batch_size: of encoding.
        progress: show a bar over the files.

    Raises:
        EvaluationDataError: a file or the folder can't be used. All files are read before anything is encoded.
    """
    from tqdm.auto import tqdm

    if folder is None:
        sets = hub_sts(splits)
    else:
        sets = {key: read_split(paths) for key, paths in sts_files(folder, splits).items()}
        for task, split in list(sets):
            if plain(task) == "sickr" and split == "test" and len(sets[task, split]) == SICK_ALL:
                # MTEB's test split of that name, which is no part of the papers' mean.
                pairs = sets.pop((task, split))
                sets.setdefault((task, ALL), pairs)
    items: Iterable[tuple[tuple[str, str], STSPairs]] = tqdm(sets.items(), desc="STS", disable=not progress)
    scores = tuple(
        Score(
            task,
            split,
            "spearman",
            sts_spearman(model, pairs, setting=setting if plain(task) in _YEARS else "all", batch_size=batch_size),
            len(pairs),
        )
        for (task, split), pairs in items
    )
    notes = tuple(
        f"{task} {split} has {len(pairs):,} pairs, the papers' {PAPERS_SETS[plain(task)]:,}: not the same set."
        for (task, split), pairs in sets.items()
        if split == "test" and len(pairs) != PAPERS_SETS.get(plain(task), len(pairs))
    )
    notes += tuple(_of_the_mean(sets, splits, setting))
    return Report(name, scores, {"suite": "sts", "setting": setting, "similarity": "cosine"}, notes)


def _of_the_mean(sets: dict[tuple[str, str], STSPairs], splits: Sequence[str], setting: Setting) -> Iterable[str]:
    """What a reader who compares the mean with the papers' must know."""
    if setting != "all":
        single = [
            f"{task} {split}"
            for (task, split), pairs in sets.items()
            if plain(task) in _YEARS and len(set(pairs.subsets)) < 2
        ]
        if single:
            yield f"Scored over all pairs at once, for their files name no subsets: {', '.join(single)}."
    tests = {plain(task): task for task, split in sets if split == "test"}
    if "test" in splits and len(tests) > 1:
        missing = [name for name in PAPERS_SETS if name not in tests]
        more = [task for name, task in tests.items() if name not in PAPERS_SETS]
        if missing or more:
            told = [f"{word} {', '.join(names)}" for word, names in (("without", missing), ("with", more)) if names]
            yield f"The mean is not that of the papers' seven test sets: {', and '.join(told)}."


_YEARS = tuple(PAPERS_SETS)[:5]
