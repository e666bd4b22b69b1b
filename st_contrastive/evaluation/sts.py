"""Semantic textual similarity in the SentEval "all" setting."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
from scipy.stats import spearmanr

from st_contrastive.evaluation.report import Report, Score

#: Splits that are scored unless others are asked for, in the order of a table.
SPLITS = ("dev", "test")
_ENDINGS = (".jsonl", ".jsonl.gz")


class Encoder(Protocol):
    """Anything with sentence-transformers' ``encode``."""

    def encode(self, sentences: list[str], /, *, batch_size: int, show_progress_bar: bool) -> Any:
        """(N, d) array of the N sentences."""


class STSError(ValueError):
    """A data file or folder that can't be used; the message names it and the cure."""


@dataclass(frozen=True)
class STSPairs:
    """Sentence pairs with their gold scores."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    scores: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.scores)


def read_sts(path: str | Path) -> STSPairs:
    """Read pairs from a .jsonl or .jsonl.gz: ``sentence1``, ``sentence2`` and ``score`` a line, whatever else it has.

    Raises:
        STSError: the file can't be read, or a line is not as it must be; the line is named.
    """
    path = Path(path)
    rows: list[tuple[str, str, float]] = []
    try:
        with _open_text(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    rows.append(_pair(line, f"{path}, line {number}"))
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise STSError(f"{path} is damaged or cut short ({error}).") from error
    except OSError as error:
        raise STSError(f"{path} can't be read: {error.strerror or error}.") from error
    if len(rows) < 2:
        raise STSError(f"{path} holds {len(rows)} pair(s); a correlation needs at least 2.")
    first, second, scores = zip(*rows, strict=True)
    return STSPairs(first, second, scores)


def _open_text(path: Path) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _pair(line: str, where: str) -> tuple[str, str, float]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # also of numbers and nestings that are too long
        raise STSError(f"{where} is not JSON ({str(error).splitlines()[0]}).") from error
    if not isinstance(row, dict) or not {"sentence1", "sentence2", "score"} <= row.keys():
        raise STSError(f"{where} must be an object with sentence1, sentence2 and score.")
    first, second, score = row["sentence1"], row["sentence2"], row["score"]
    if not isinstance(first, str) or not isinstance(second, str):
        raise STSError(f"{where}: sentence1 and sentence2 must be strings.")
    for name, text in (("sentence1", first), ("sentence2", second)):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise STSError(f"{where}: {name} holds half of a surrogate pair, which no tokenizer takes.") from None
    try:
        value = math.nan if isinstance(score, (bool, str)) else float(score)
    except (TypeError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise STSError(f"{where}: score must be a finite number, got {score!r:.80}.")
    return first, second, value


def similarities(model: Encoder, pairs: STSPairs, *, batch_size: int = 64, progress: bool = False) -> Any:
    """Cosine similarity of each pair under the model, a float64 array; each sentence is encoded once."""
    sentences = list(dict.fromkeys((*pairs.first, *pairs.second)))
    vectors = np.asarray(model.encode(sentences, batch_size=batch_size, show_progress_bar=progress), dtype=np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors / np.where(lengths == 0, 1, lengths)
    place = {sentence: row for row, sentence in enumerate(sentences)}
    rows = [[place[sentence] for sentence in side] for side in (pairs.first, pairs.second)]
    return (vectors[rows[0]] * vectors[rows[1]]).sum(axis=1)


def sts_spearman(model: Encoder, pairs: STSPairs, *, batch_size: int = 64, progress: bool = False) -> float:
    """Spearman correlation of cosine similarity and gold score over all pairs at once; no regression.

    NaN where the model gives every pair the same similarity.

    Example:
        >>> import numpy as np
        >>> class Letters:
        ...     def encode(self, sentences, *, batch_size, show_progress_bar):
        ...         return np.array([[text.count(letter) for letter in "abc"] for text in sentences])
        >>> pairs = STSPairs(("a", "ab", "ab"), ("a", "a", "c"), (5.0, 3.0, 0.0))
        >>> round(sts_spearman(Letters(), pairs), 6)
        1.0
    """
    found = similarities(model, pairs, batch_size=batch_size, progress=progress)
    if np.ptp(found) == 0:
        return float("nan")
    return float(spearmanr(found, pairs.scores).statistic)


def sts_files(folder: str | Path, splits: Sequence[str] = SPLITS) -> dict[tuple[str, str], Path]:
    """The data files under ``folder``, by set and split: ``<set>/<split>.jsonl`` or ``.jsonl.gz``, sets by name.

    Raises:
        STSError: the folder holds no such file.
    """
    root = Path(folder)
    if not root.is_dir():
        raise STSError(f"{root} is not a folder. It must hold one folder a set, such as stsb/test.jsonl.gz.")
    found = {
        (place.name, split): place / f"{split}{ending}"
        for place in sorted(root.iterdir())
        for split in splits
        for ending in _ENDINGS
        if (place / f"{split}{ending}").is_file()
    }
    if not found:
        raise STSError(f"{root} holds no set with a split of {', '.join(splits)}, such as stsb/test.jsonl.gz.")
    return found


def evaluate_sts(
    model: Encoder,
    folder: str | Path,
    *,
    name: str = "model",
    splits: Sequence[str] = SPLITS,
    batch_size: int = 64,
    progress: bool = False,
) -> Report:
    """Score a model on every set in a folder: all subsets of a set concatenated, the SentEval "all" setting.

    Args:
        model: anything with ``encode``.
        folder: ``<set>/<split>.jsonl[.gz]``, see :func:`read_sts`. All sets that it holds are scored.
        name: the model's name in the report.
        splits: which splits are scored where a set has them.
        batch_size: of encoding.
        progress: show a bar over the files.

    Raises:
        STSError: a file or the folder can't be used. All files are read before anything is encoded.
    """
    from tqdm.auto import tqdm

    sets = {key: read_sts(path) for key, path in sts_files(folder, splits).items()}
    items: Iterable[tuple[tuple[str, str], STSPairs]] = tqdm(sets.items(), desc="STS", disable=not progress)
    scores = tuple(
        Score(task, split, "spearman", sts_spearman(model, pairs, batch_size=batch_size), len(pairs))
        for (task, split), pairs in items
    )
    return Report(name, scores, {"suite": "sts", "setting": "all", "similarity": "cosine"})
