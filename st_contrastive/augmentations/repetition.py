"""Word repetition."""

from __future__ import annotations

import random
from typing import final

from st_contrastive._checks import require_number
from st_contrastive.augmentations._words import check_text, join, space_before, split


@final
class WordRepetition:
    """Repeats random words behind themselves, as ESimCSE does (Wu et al., COLING 2022), here on words.

    How many is drawn from 0 to max(2, rate * words). A Chinese or Japanese character is a word; of other scripts
    without spaces, such as Thai, all that stands between two spaces is one, so that there it repeats too much.

    Args:
        rate: the paper's 0.32.

    Raises:
        ValueError: a rate out of range.

    Example:
        >>> import random
        >>> WordRepetition()("It rains in Oslo.", random.Random(0))
        'It rains in Oslo. Oslo.'
    """

    def __init__(self, rate: float = 0.32) -> None:
        require_number("rate", rate, most=1)
        self.rate = rate

    def __call__(self, text: str, rng: random.Random) -> str:
        """``text`` with words said twice."""
        check_text(text)
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
