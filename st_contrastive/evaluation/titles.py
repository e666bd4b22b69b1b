"""Whether titles belong to their bodies, before anything is trained on them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from sentence_transformers import SentenceTransformer

from st_contrastive.evaluation.paired import interval

#: Of titles that are nearer to their own body than to another's; less is a warning.
_USUAL = 0.8


@dataclass(frozen=True)
class TitleAgreement:
    """Titles beside their own bodies and beside others, by an encoder that has not been trained on them.

    Attributes:
        pairs: how many were compared.
        own, other: mean similarity of a title with its own body, and with that of another row.
        closer, low, high: part of the titles that are closer to their own body, and its 95 % interval; chance is 0.5.
    """

    pairs: int
    own: float
    other: float
    closer: float
    low: float
    high: float

    @property
    def decision(self) -> Literal["good", "weak", "equal"]:
        """Equal where chance does as well, weak where fewer than 80 of 100 titles are closer to their own body."""
        return "equal" if self.low <= 0.5 else "weak" if self.closer < _USUAL else "good"

    def __str__(self) -> str:
        return (
            f"Of {self.pairs:,} titles, {100 * self.closer:.0f} % are closer to their own body than to another row's "
            f"(mean similarity {self.own:.2f} and {self.other:.2f}; by chance it is 50 %)."
        )


def title_agreement(
    model: SentenceTransformer, pairs: Iterable[tuple[str, str]], *, limit: int = 500, seed: int = 0
) -> TitleAgreement:
    """Compare titles with their own bodies and with those of other rows, in a random sample of the pairs.

    Raises:
        ValueError: there are fewer than two different bodies.
    """
    rows = [*{body: (title, body) for title, body in pairs}.values()]
    if len(rows) < 2:
        raise ValueError("pairs need two different bodies or more, so that a title can be compared with another's.")
    sample = random.Random(seed).sample(rows, min(limit, len(rows)))
    titles = model.encode_query([title for title, _ in sample], convert_to_tensor=True)
    bodies = model.encode_document([body for _, body in sample], convert_to_tensor=True)
    own, other = (
        model.similarity_pairwise(titles, each).double().cpu().numpy() for each in (bodies, bodies.roll(1, dims=0))
    )
    closer = interval((own > other) + 0.5 * (own == other), np.arange(len(own)))
    return TitleAgreement(len(own), float(own.mean()), float(other.mean()), *closer)
