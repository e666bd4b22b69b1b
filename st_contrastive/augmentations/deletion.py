"""Random deletion of words."""

from __future__ import annotations

import random
from typing import final

from st_contrastive._checks import require_number, require_string
from st_contrastive.augmentations._words import join, split


@final
class RandomDeletion:
    """Deletes each word with a probability; if none is left, a random one stays (Wei and Zou, EMNLP 2019).

    Args:
        rate: the probability for each word.

    Raises:
        ValueError: ``rate`` is not from 0 to 1.

    Example:
        >>> import random
        >>> RandomDeletion(0.5)("It rains in Oslo again.", random.Random(0))
        'It rains again.'
    """

    def __init__(self, rate: float = 0.1) -> None:
        require_number("rate", rate, most=1)
        self.rate = rate

    def __call__(self, text: str, rng: random.Random) -> str:
        """``text`` without some of its words."""
        require_string("text", text)
        pieces = split(text)
        if not pieces:
            return text
        kept = [piece for piece in pieces if rng.random() >= self.rate] or [rng.choice(pieces)]
        return text if len(kept) == len(pieces) else join(kept)
