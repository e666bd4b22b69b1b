"""Random repetition of words."""

from __future__ import annotations

import random

from st_contrastive._checks import require_number
from st_contrastive.augmentations._words import join, space_before, split


class WordRepetition:
    """Repeats random words, as ESimCSE does (Wu et al., COLING 2022), but whole words and not subwords.

    The number of words is drawn from 0 to max(2, rate * words). A Chinese or Japanese character is a word; in other
    scripts without spaces, all text between two spaces is one.

    Args:
        rate: the limit on the share of repeated words; the paper's is 0.32.

    Example:
        >>> import random
        >>> WordRepetition()("It rains in Oslo.", random.Random(0))
        'It rains in Oslo. Oslo.'
    """

    def __init__(self, rate: float = 0.32) -> None:
        require_number("rate", rate, most=1)
        self.rate = rate

    def __call__(self, text: str, rng: random.Random) -> str:
        pieces = split(text)
        count = min(len(pieces), rng.randint(0, max(2, int(self.rate * len(pieces)))))
        for place in sorted(rng.sample(range(len(pieces)), count), reverse=True):
            word = pieces[place][1]
            pieces.insert(place + 1, (space_before(word), word))
        return join(pieces) if count else text
