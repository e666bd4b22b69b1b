"""Compares two encoders on the same questions, beyond chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

#: Standard deviations. Of the 251 changes that it was chosen on, the rule accepts 17 of 24 that gained 1 or more in
#: judged search, and none of 171 that lost more than 0.3. Two steps of training make 0.01.
_LEAST_LEAD = 0.2


@dataclass(frozen=True)
class Judgement:
    """How an encoder answers N questions about documents. Arrays are (N,), NaN where its vectors are not finite.

    Attributes:
        owners: number of the document that each question was taken from.
        ranks: place of that document among all, from 1; ties count against the encoder.
        leads: by how many standard deviations its similarity is above the mean of all documents.
        mixed_ranks: its place when the similarities are mixed with BM25; None without BM25.
        digest: a hash of the questions and the documents, as in ``CorpusEvaluator.get_config_dict()``.
    """

    owners: NDArray[np.int64]
    ranks: NDArray[np.float64]
    leads: NDArray[np.float64]
    mixed_ranks: NDArray[np.float64] | None = None
    digest: str = ""

    @property
    def ndcg(self) -> float:
        """Mean nDCG@10."""
        return float(ndcg_at_10(self.ranks).mean())

    @property
    def mixed_ndcg(self) -> float | None:
        """The same of ``mixed_ranks``."""
        return None if self.mixed_ranks is None else float(ndcg_at_10(self.mixed_ranks).mean())


@dataclass(frozen=True)
class Comparison:
    """An encoder against another on the same questions.

    ``higher`` and ``lower`` count the questions whose document stands higher than before, and lower. ``gain`` is the
    change of nDCG@10 with its 95 % interval, ``rank_gain`` the mean of log2(rank before / rank after), and ``lead`` the
    change of the mean of ``Judgement.leads`` with its interval.
    """

    questions: int
    higher: int
    lower: int
    gain: float
    low: float
    high: float
    rank_gain: float
    lead: float
    lead_low: float
    lead_high: float

    @property
    def decision(self) -> Literal["better", "worse", "no difference"]:
        """Better if nDCG@10, the ranks and the lead rose, the first or the last beyond chance, and the lead by 0.2 or
        more; worse if all fell, one beyond chance.

        nDCG@10 seldom rises beyond chance on a few hundred questions, and the lead also where search gets worse.
        """
        changes = (self.gain, self.rank_gain, self.lead)
        if min(changes) > 0 and self.lead >= _LEAST_LEAD and max(self.low, self.lead_low) > 0:
            return "better"
        return "worse" if max(changes) < 0 and min(self.high, self.lead_high) < 0 else "no difference"

    def __str__(self) -> str:
        return (
            f"Of {self.questions:,} questions, {self.higher:,} find their document higher than before and "
            f"{self.lower:,} lower: {100 * self.gain:+.2f} nDCG@10 "
            f"(95 % interval {100 * self.low:+.2f} to {100 * self.high:+.2f}). Its similarity above the mean of all "
            f"documents: {self.lead:+.2f} standard deviations ({self.lead_low:+.2f} to {self.lead_high:+.2f})."
        )


def compare_paired(before: Judgement, after: Judgement) -> Comparison:
    """Compare two encoders question by question.

    Raises:
        ValueError: the judgements are of different questions or documents.
    """
    if before.digest != after.digest or not np.array_equal(before.owners, after.owners):
        raise ValueError("before and after answer different questions: judge both encoders with the same evaluator.")
    gain = interval(ndcg_at_10(after.ranks) - ndcg_at_10(before.ranks), before.owners)
    lead = interval(after.leads - before.leads, before.owners)
    higher, lower = int((after.ranks < before.ranks).sum()), int((after.ranks > before.ranks).sum())
    rank_gain = float(np.log2(before.ranks / after.ranks).mean())
    return Comparison(len(before.ranks), higher, lower, *gain, rank_gain, *lead)


def ndcg_at_10(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """nDCG@10 of one right answer: 1 / log2(1 + rank), and 0 below the tenth place.

    >>> ndcg_at_10(np.array([1.0, 3.0, 11.0])).tolist()
    [1.0, 0.5, 0.0]
    """
    return np.where(ranks > 10, 0.0, 1 / np.log2(1 + ranks))


def interval(values: NDArray[np.float64], owners: NDArray[np.int64]) -> tuple[float, float, float]:
    """Mean of (N,) values and its 95 % interval, by the bootstrap over documents: one's questions are drawn together.

    >>> interval(np.array([1.0, 1.0, 1.0]), np.array([0, 0, 1]))
    (1.0, 1.0, 1.0)
    """
    _, rows = np.unique(owners, return_inverse=True)
    sums, counts = np.bincount(rows, values), np.bincount(rows)
    times = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=2000)
    low, high = np.quantile(times @ sums / (times @ counts), (0.025, 0.975))
    return float(values.mean()), float(low), float(high)
