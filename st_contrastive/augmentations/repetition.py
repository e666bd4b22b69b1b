"""Random repetition of words."""

from __future__ import annotations

import random
from typing import final

from st_contrastive._checks import require_number, require_string
from st_contrastive.augmentations._words import join, space_before, split


@final
class WordRepetition:
    """Repeats random words, as ESimCSE does (Wu et al., COLING 2022), but whole words and not subwords.

    The number of words is drawn from 0 to max(2, rate * words). A Chinese or Japanese character is a word. In other
    scripts without spaces, such as Thai, all text between two spaces is one word, so that too much is repeated.

    Args:
        rate: the limit on the share of repeated words; the paper's is 0.32.

    Raises:
        ValueError: ``rate`` is not from 0 to 1.

    Example:
        >>> import random
        >>> WordRepetition()("It rains in Oslo.", random.Random(0))
        'It rains in Oslo. Oslo.'
    """

    def __init__(self, rate: float = 0.32) -> None:
        require_number("rate", rate, most=1)
        self.rate = rate

    def __call__(self, text: str, rng: random.Random) -> str:
        """``text`` with some words twice."""
        require_string("text", text)
        pieces = split(text)
        count = min(len(pieces), rng.randint(0, max(2, int(self.rate * len(pieces)))))
        if not count:
            return text
        chosen = set(rng.sample(range(len(pieces)), count))
        repeated: list[tuple[str, str]] = []
        for place, (space, word) in enumerate(pieces):
            repeated.append((space, word))
            if place in chosen:
                repeated.append((space_before(word), word))
        return join(repeated)
