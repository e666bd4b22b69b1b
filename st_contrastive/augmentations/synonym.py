"""Synonym substitution."""

from __future__ import annotations

import random
import re
from typing import final

from st_contrastive._checks import require_number
from st_contrastive.augmentations._words import check_text, join, split
from st_contrastive.augmentations.lexicon import Lexicon, Words

_CORE = re.compile(r"^(\W*)([a-z]+)(\W*)$")


def candidates(lexicon: Lexicon, words: list[str]) -> list[tuple[int, str, str, Words]]:
    """Place, what stands before and behind, and synonyms of each word that has some: lower-case words only."""
    found = []
    for place, word in enumerate(words):
        match = _CORE.match(word)
        if match:
            synonyms = lexicon.synonyms(match[2])
            if synonyms.forms:
                found.append((place, match[1], match[3], synonyms))
    return found


@final
class SynonymReplacement:
    """Replaces a share of the words with WordNet synonyms, as EDA does (Wei and Zou, EMNLP 2019), one word for one.

    Args:
        rate: max(1, rate * words) words are replaced, or as many as have a synonym.
        lexicon: None takes one on NLTK's WordNet.

    Raises:
        WordNetError: when it is made, where there is no WordNet.
        ValueError: a rate out of range.
    """

    def __init__(self, rate: float = 0.1, lexicon: Lexicon | None = None) -> None:
        require_number("rate", rate, most=1)
        self.rate = rate
        self.lexicon = Lexicon.loaded(lexicon)

    def __call__(self, text: str, rng: random.Random) -> str:
        """``text`` with synonyms in it; unchanged where no word has one."""
        check_text(text)
        pieces = split(text)
        found = candidates(self.lexicon, [word for _, word in pieces])
        count = min(len(found), max(1, int(self.rate * len(pieces))))
        for place, before, behind, synonyms in rng.sample(found, count):
            pieces[place] = (pieces[place][0], before + rng.choice(synonyms.forms) + behind)
        return join(pieces) if count else text
