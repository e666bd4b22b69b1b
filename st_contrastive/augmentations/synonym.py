"""Replacement of words by synonyms."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import final

from st_contrastive._checks import require_number, require_string
from st_contrastive.augmentations._words import join, split
from st_contrastive.augmentations.lexicon import Lexicon

# A letter under a combining accent, or before a soft hyphen, is not the end of a word.
_CORE = re.compile(r"^(\W*)([a-z]+)(?![\u0300-\u036f\u00ad])(\W*)$")


def candidates(lexicon: Lexicon, words: list[str]) -> list[tuple[int, str, str, Sequence[str]]]:
    """For each lower-case word with synonyms: its place, the punctuation before and after it, and the synonyms."""
    found = []
    for place, word in enumerate(words):
        if (match := _CORE.match(word)) and (synonyms := lexicon.synonyms(match[2])):
            found.append((place, match[1], match[3], synonyms))
    return found


@final
class SynonymReplacement:
    """Replaces some words by single-word WordNet synonyms, as EDA does (Wei and Zou, EMNLP 2019).

    Args:
        rate: share of the text's words, 0 to 1. Of n words, max(1, int(rate * n)) are replaced, or all that have a
            synonym if these are fewer.
        lexicon: None uses NLTK's WordNet.

    Raises:
        WordNetError: there is no WordNet.
        ValueError: ``rate`` is not from 0 to 1.
    """

    def __init__(self, rate: float = 0.1, lexicon: Lexicon | None = None) -> None:
        require_number("rate", rate, most=1)
        self.rate = rate
        self.lexicon = (lexicon or Lexicon()).load()

    def __call__(self, text: str, rng: random.Random) -> str:
        """``text`` with synonyms; unchanged if no word has one."""
        require_string("text", text)
        pieces = split(text)
        found = candidates(self.lexicon, [word for _, word in pieces])
        count = min(len(found), max(1, int(self.rate * len(pieces))))
        for place, before, after, synonyms in rng.sample(found, count):
            pieces[place] = (pieces[place][0], before + rng.choice(synonyms) + after)
        return join(pieces) if count else text
