"""Random insertion of words."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import final

from st_contrastive._checks import require_number, require_string
from st_contrastive.augmentations._words import join, space_before, split
from st_contrastive.augmentations.lexicon import Lexicon
from st_contrastive.augmentations.synonym import candidates


@final
class RandomInsertion:
    """Inserts a synonym of a random word at a random place, several times, as EDA does (Wei and Zou, EMNLP 2019).

    Args:
        rate: share of the text's words, 0 to 1; of n words, max(1, int(rate * n)) are added.
        words: words to insert in place of synonyms, for a language without WordNet.
        lexicon: None uses NLTK's WordNet, unless ``words`` is given.

    Raises:
        WordNetError: there is no WordNet, and ``words`` is not given.
        ValueError: ``rate`` is not from 0 to 1.
        TypeError: ``words`` is not a sequence of single words.

    Example:
        >>> import random
        >>> RandomInsertion(words=["so", "well"])("It rains in Oslo.", random.Random(6))
        'It rains well in Oslo.'
    """

    def __init__(self, rate: float = 0.1, words: Sequence[str] | None = None, lexicon: Lexicon | None = None) -> None:
        require_number("rate", rate, most=1)
        self.rate = rate
        self.words: tuple[str, ...] = ()
        self.lexicon: Lexicon | None = None
        if words is None:
            self.lexicon = (lexicon or Lexicon()).load()
            return
        # The order of a set differs between processes.
        refused = isinstance(words, (str, set, frozenset)) or not isinstance(words, Iterable)
        self.words = () if refused else tuple(words)
        if not self.words or not all(isinstance(word, str) and len(split(word)) == 1 for word in self.words):
            raise TypeError("words must be a sequence of single words, each a string without spaces.")

    def __call__(self, text: str, rng: random.Random) -> str:
        """``text`` with words inserted; unchanged if there are none to insert."""
        require_string("text", text)
        pieces = split(text)
        pools: list[Sequence[str]] = [self.words]
        if self.lexicon is not None:
            pools = [synonyms for *_, synonyms in candidates(self.lexicon, [word for _, word in pieces])]
        if not pieces or not pools:
            return text
        for _ in range(max(1, int(self.rate * len(pieces)))):
            word = rng.choice(rng.choice(pools))
            pieces.insert(rng.randint(0, len(pieces)), (space_before(word), word))
        return join(pieces)
