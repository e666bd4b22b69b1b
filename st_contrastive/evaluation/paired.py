"""Compares two encoders on the same questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

#: How far the lead must rise, in standard deviations. See ``Comparison.decision``.
LEAST_LEAD = 0.2


@dataclass(frozen=True)
class Judgement:
    """How an encoder answers N questions about documents. Arrays are (N,), NaN where its vectors are not finite.

    Attributes:
        owners: number of the document that each question was taken from.
        ranks: rank of that document among all, from 1. Ties count against the encoder.
        leads: z-score of that document's similarity among those of all documents.
        ranks_with_bm25: that document's rank when the similarities are mixed with BM25. None without BM25.
        digest: a hash of the questions and the documents, as in ``CorpusEvaluator.get_config_dict()``.
    """

    owners: NDArray[np.int64]
    ranks: NDArray[np.float64]
    leads: NDArray[np.float64]
    ranks_with_bm25: NDArray[np.float64] | None = None
    digest: str = ""

    @property
    def ndcg(self) -> float:
        """Mean nDCG@10."""
        return float(ndcg_at_10(self.ranks).mean())

    @property
    def ndcg_with_bm25(self) -> float | None:
        """Mean nDCG@10 of ``ranks_with_bm25``."""
        return None if self.ranks_with_bm25 is None else float(ndcg_at_10(self.ranks_with_bm25).mean())

    @property
    def gain_by_bm25(self) -> Change | None:
        """The change of nDCG@10 that BM25 brings. None without BM25."""
        return None if self.ranks_with_bm25 is None else _gain(self.ranks, self.ranks_with_bm25, self.owners)


@dataclass(frozen=True)
class Change:
    """The mean change of a value over questions, with its 95 % interval."""

    mean: float
    low: float
    high: float

    def describe(self, scale: float = 1.0) -> str:
        """The change and its interval, times ``scale``.

        >>> Change(0.0115, 0.0054, 0.0182).describe(100)
        '+1.15 (95 % interval +0.54 to +1.82)'
        """
        mean, low, high = (scale * value for value in (self.mean, self.low, self.high))
        return f"{mean:+.2f} (95 % interval {low:+.2f} to {high:+.2f})"


@dataclass(frozen=True)
class Comparison:
    """An encoder compared with an earlier one on the same questions.

    Attributes:
        questions: their number.
        higher, lower: how many of them find their document at a higher, or lower, place than before.
        gain: the change of nDCG@10.
        lead: the change of the mean of ``Judgement.leads``.
        gain_with_bm25: the change of nDCG@10 when both are mixed with BM25. None without BM25.
    """

    questions: int
    higher: int
    lower: int
    gain: Change
    lead: Change
    gain_with_bm25: Change | None = None

    @property
    def decision(self) -> Literal["better", "worse", "no difference"]:
        """Better if nDCG@10 rose and the lead rose by 0.2 or more. Worse if both fell, one of them beyond chance.

        On a few hundred questions, nDCG@10 seldom rises beyond chance, so its interval can't decide. The lead is
        measured ten times as precisely, but may rise where search gets worse, so nDCG@10 has to agree.

        The rule was chosen on benchmarks/results: 240 changes of judge.jsonl, and the runs of own_text.jsonl. Of 19
        changes that gained 1 point or more in judged search, it accepts 12. Among these, it accepts none that got worse
        beyond chance. On CF, a corpus measured later, it accepts ten sets of weights that did. With the interval of
        nDCG@10 instead of the lead, it would accept 4 of the 19. Without the lead, it would accept twice as many
        changes, with a mean of +0.8 instead of +1.4.
        """
        if self.gain.mean > 0 and self.lead.mean >= LEAST_LEAD:
            return "better"
        fell = max(self.gain.mean, self.lead.mean) < 0 and min(self.gain.high, self.lead.high) < 0
        return "worse" if fell else "no difference"

    @property
    def reason(self) -> str:
        """The conditions of the decision with their figures, in one sentence."""
        gain, lead = f"{100 * self.gain.mean:+.2f}", f"{self.lead.mean:+.2f}"
        if self.decision == "better":
            return f"nDCG@10 rose ({gain}), and the lead rose by {LEAST_LEAD} or more ({lead})."
        if self.decision == "worse":
            return f"nDCG@10 ({gain}) and the lead ({lead}) both fell."
        failed = [] if self.gain.mean > 0 else [f"nDCG@10 did not rise ({gain})"]
        if not self.lead.mean >= LEAST_LEAD:
            failed.append(f"the lead did not rise by {LEAST_LEAD} or more ({self.lead.mean:+.3f})")
        return f"{' and '.join(failed)}."

    def __str__(self) -> str:
        return (
            f"Of {self.questions:,} questions, {self.higher:,} find their document higher than before and "
            f"{self.lower:,} lower: {self.gain.describe(100)} nDCG@10. Lead of the right document over the mean of all "
            f"documents, in standard deviations: {self.lead.describe()}."
        )


def compare_paired(before: Judgement, after: Judgement) -> Comparison:
    """Compare two encoders question by question.

    Raises:
        ValueError: the judgements are of different questions or documents.
    """
    if before.digest != after.digest or not np.array_equal(before.owners, after.owners):
        raise ValueError("before and after answer different questions: judge both encoders with the same evaluator.")
    gain = _gain(before.ranks, after.ranks, before.owners)
    lead = Change(*interval(after.leads - before.leads, before.owners))
    mixed = None
    if before.ranks_with_bm25 is not None and after.ranks_with_bm25 is not None:
        mixed = _gain(before.ranks_with_bm25, after.ranks_with_bm25, before.owners)
    higher, lower = int((after.ranks < before.ranks).sum()), int((after.ranks > before.ranks).sum())
    return Comparison(len(before.ranks), higher, lower, gain, lead, mixed)


def _gain(before: NDArray[np.float64], after: NDArray[np.float64], owners: NDArray[np.int64]) -> Change:
    return Change(*interval(ndcg_at_10(after) - ndcg_at_10(before), owners))


def ndcg_at_10(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """nDCG@10 of questions with one right answer: 1 / log2(1 + rank), and 0 below rank 10.

    >>> ndcg_at_10(np.array([1.0, 3.0, 11.0])).tolist()
    [1.0, 0.5, 0.0]
    """
    return np.where(ranks > 10, 0.0, 1 / np.log2(1 + ranks))


def interval(values: NDArray[np.float64], owners: NDArray[np.int64]) -> tuple[float, float, float]:
    """Mean of (N,) values and its 95 % interval, by a bootstrap over documents, which keeps their questions together.

    >>> interval(np.array([1.0, 1.0, 1.0]), np.array([0, 0, 1]))
    (1.0, 1.0, 1.0)
    """
    _, rows = np.unique(owners, return_inverse=True)
    sums, counts = np.bincount(rows, values), np.bincount(rows)
    times = np.random.default_rng(0).multinomial(len(sums), np.full(len(sums), 1 / len(sums)), size=2000)
    low, high = np.quantile(times @ sums / (times @ counts), (0.025, 0.975))
    return float(values.mean()), float(low), float(high)
