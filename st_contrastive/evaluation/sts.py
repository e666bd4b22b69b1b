"""Semantic textual similarity: Spearman correlation of cosine similarity and gold score, as in the papers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator
from tqdm.auto import tqdm

from st_contrastive._checks import warn
from st_contrastive.evaluation.encoding import Encoder, collapse_notes, encode_texts
from st_contrastive.evaluation.report import Report, Score
from st_contrastive.evaluation.set_files import digest, mean_note, set_folders, split_file
from st_contrastive.inputs import load_graded_pairs

#: The seven sets in the order of the papers' tables, with the number of test pairs in SentEval.
PAPERS_SETS = {"sts12": 3108, "sts13": 1500, "sts14": 3750, "sts15": 3000, "sts16": 1186, "stsb": 1379, "sickr": 4927}
SPLITS = ("dev", "test")
_STSB_ON_HUB = "mteb/stsbenchmark-sts"


@dataclass(frozen=True)
class STSPairs:
    """Pairs of sentences and their gold scores."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.scores)

    def positives(self, min_score: float | None = None) -> tuple[float, list[int]]:
        """The lowest gold score of positive pairs, by default the highest of all, and the rows of these pairs."""
        least = max(self.scores) if min_score is None else min_score
        return least, [row for row, score in enumerate(self.scores) if score >= least]


def read_sts(source: str | Path | Dataset) -> STSPairs:
    """Read graded pairs: the columns ``sentence1``, ``sentence2`` and ``score``. Scores may have any scale.

    Args:
        source: a .csv, .tsv, .json, .jsonl or .parquet file, also compressed; a Dataset; a name on the hub, such as
            "sentence-transformers/stsb", whose split "validation" is read; or "stsb", MTEB's copy of this set.

    Raises:
        OSError, ValueError: the source can't be read or lacks a column, or all scores are equal.
    """
    rows = load_graded_pairs(_STSB_ON_HUB if source == "stsb" else source)
    pairs = STSPairs(tuple(rows["sentence1"]), tuple(rows["sentence2"]), tuple(rows["score"]))
    if len(set(pairs.scores)) < 2:
        raise ValueError(
            f"{source} has {len(pairs)} pair(s) with the same gold score: a correlation needs different scores."
        )
    return pairs


def similarities(model: Encoder, pairs: STSPairs, *, batch_size: int = 64) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """Cosine similarity of each of N pairs, (N,), and the 2 N vectors of their sentences."""
    vectors = encode_texts(model, (*pairs.first, *pairs.second), batch_size=batch_size)
    first, second = torch.from_numpy(vectors.astype(np.float64)).chunk(2)
    # In float32, similarities that differ only by rounding become ties, such as those of equal sentences.
    return F.cosine_similarity(first, second).numpy().astype(np.float32), vectors


def sts_spearman(model: Encoder, pairs: STSPairs, *, batch_size: int = 64) -> float:
    """Spearman correlation of cosine similarity and gold score; NaN if the similarities are all equal or one is NaN."""
    return spearman(similarities(model, pairs, batch_size=batch_size)[0], pairs)


def spearman(cosines: NDArray[np.float32], pairs: STSPairs) -> float:
    """Spearman correlation of (N,) similarities and gold scores; NaN if either are all equal."""
    gold = np.asarray(pairs.scores)
    if np.ptp(cosines) == 0 or np.ptp(gold) == 0:
        return float("nan")
    return float(spearmanr(cosines, gold).statistic)


def sts_sets(folder: str | Path, splits: Sequence[str] = SPLITS) -> dict[tuple[str, str], STSPairs]:
    """Read the sets in a folder: pairs by name of the set and split, the papers' sets first.

    Args:
        folder: a folder with one folder per set and one file per split: ``stsb/test.jsonl.gz``, ``mine/dev.csv``.
        splits: the splits to read. The file of "dev" may also be named validation or trial.

    Raises:
        OSError, ValueError: the folder or the splits do not exist, or a file can't be used.
    """
    pairs = {
        (set_folder.name, split): read_sts(path)
        for set_folder in set_folders(folder, tuple(PAPERS_SETS))
        for split in splits
        if (path := split_file(set_folder, split)) is not None
    }
    if not pairs:
        raise ValueError(f"{folder} has no set, such as stsb, with one of the splits {', '.join(splits)}.")
    return pairs


def evaluate_sts(
    model: Encoder,
    folder: str | Path,
    *,
    name: str = "model",
    splits: Sequence[str] = SPLITS,
    batch_size: int = 64,
) -> Report:
    """Score a model on every set and split that :func:`sts_sets` reads from a folder.

    Raises:
        OSError, ValueError: the folder or a file can't be used. All files are read before the first text is encoded.
    """
    sets = sts_sets(folder, splits)
    items: Iterable[tuple[tuple[str, str], STSPairs]] = tqdm(sets.items(), desc="STS", disable=None)
    scores: list[Score] = []
    notes: list[str] = []
    for (task, split), pairs in items:
        cosines, vectors = similarities(model, pairs, batch_size=batch_size)
        scores.append(Score(task, split, "spearman", spearman(cosines, pairs), len(pairs)))
        notes += collapse_notes(f"{task} {split}", vectors)
        if split == "test" and len(pairs) != PAPERS_SETS.get(task, len(pairs)):
            notes.append(f"{task} test has {len(pairs):,} pairs, but the papers' set has {PAPERS_SETS[task]:,}.")
    notes += mean_note([task for task, split in sets if split == "test"], PAPERS_SETS)
    return Report(name, tuple(scores), {"suite": "sts"}, tuple(notes))


class STSEvaluator(SentenceEvaluator):
    """Spearman correlation on a development split, as an evaluator for ``fit`` and the Trainer.

    A call returns ``{"<name>_spearman": value}``. InfoCSE evaluates every 125 steps on the STS Benchmark and keeps the
    best checkpoint.

    Args:
        pairs: the pairs, or a source for :func:`read_sts`. Never use a test split: the checkpoint is chosen on it.
        name: prefix of the metric's name.
    """

    def __init__(self, pairs: STSPairs | str | Path | Dataset, name: str = "stsb-dev", *, batch_size: int = 64) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pairs = pairs if isinstance(pairs, STSPairs) else read_sts(pairs)
        self.name, self.batch_size = name, batch_size
        self.primary_metric = f"{name}_spearman"

    def __call__(  # type: ignore[override]  # as in sentence-transformers
        self, model: SentenceTransformer, output_path: str | None = None, epoch: int = -1, steps: int = -1
    ) -> dict[str, float]:
        """Score the model, and warn if its scores mean nothing."""
        cosines, vectors = similarities(model, self.pairs, batch_size=self.batch_size)
        for note in collapse_notes(self.name, vectors):
            warn(note)
        metrics = {f"{self.name}_spearman": spearman(cosines, self.pairs)}
        self.store_metrics_in_model_card_data(model, metrics, epoch, steps)
        return metrics

    def get_config_dict(self) -> dict[str, Any]:
        pairs = self.pairs
        return {"pairs": len(pairs), "digest": digest(pairs.first, pairs.second, pairs.scores)}
