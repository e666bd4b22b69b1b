"""Replacement of words by their antonyms, for ConIsI-o2."""

from __future__ import annotations

import random
import re

from st_contrastive._checks import require_number
from st_contrastive.augmentations._words import core, join, split
from st_contrastive.augmentations.lexicon import antonym, require_wordnet

_AUXILIARY = frozenset("have has had having am is are was were be been being get gets got getting".split())
# By sound: "an hour", "a union", but "an unimportant day".
_TAKES_AN = re.compile(r"(?!uni[^mn]|us[aeu]|ut[eio]|eu|ewe|once|one\b)[aeiou]|hono|honest|hour|heir", re.IGNORECASE)


class AntonymReplacement:
    """Replaces words by their WordNet antonyms (Sun and Huang, CCL 2022, section 3.2.1, ConIsI-o2).

    The antonym is that of the word's most frequent part of speech, in the word's form and case; "a" and "an" before it
    are adapted. Function words and negations stay, as do capitalised words inside a sentence and a first word with one
    after it, which are names. A text in which no word has an antonym is returned unchanged;
    ``ConIsILoss(strategy="given")`` then takes another sentence.

    Args:
        rate: of the words that have an antonym, max(1, round(rate * words)) are replaced, drawn at random. The paper
            "randomly substitutes some full words with antonyms" and gives no number; the default replaces all.

    Example:
        >>> import random
        >>> from st_contrastive.augmentations import AntonymReplacement
        >>> AntonymReplacement()("An easy day was not hotter.", random.Random(0))
        'A difficult night was not colder.'
    """

    def __init__(self, rate: float = 1.0) -> None:
        require_number("rate", rate, most=1)
        require_wordnet()
        self.rate = rate

    def __call__(self, text: str, rng: random.Random) -> str:
        pieces = split(text)
        words = [core(word) for _, word in pieces]
        antonyms: dict[int, str] = {}
        for place, (_, word, _) in enumerate(words):
            previous = words[place - 1][1].lower() if place else ""
            if word and (text.isupper() or not _is_name(words, place)):
                name = antonym(word.lower(), previous in _AUXILIARY)
                if name:
                    antonyms[place] = _in_case_of(word, name)
        if not antonyms:
            return text
        count = max(1, round(self.rate * len(antonyms)))
        for place in rng.sample(sorted(antonyms), count) if self.rate < 1 else antonyms:
            space, _ = pieces[place]
            before, _, after = words[place]
            pieces[place] = (space, before + antonyms[place] + after)
            if place and not before and not words[place - 1][2] and words[place - 1][1].lower() in ("a", "an"):
                article = "an" if _TAKES_AN.match(antonyms[place]) else "a"
                start, old, _ = words[place - 1]
                pieces[place - 1] = (pieces[place - 1][0], start + _in_case_of(old, article, text.isupper()))
        return join(pieces)


def _is_name(words: list[tuple[str, str, str]], place: int) -> bool:
    """Whether a word is capitalised inside a text, or at its start with a capitalised word right after it."""
    word = words[place][1]
    if word.islower() or place > 0 or not word[1:].islower():
        return not word.islower()
    following = words[1] if len(words) > 1 else ("", "", "")
    return not words[0][2] and not following[0] and following[1][:1].isupper() and following[1] != "I"


def _in_case_of(word: str, text: str, capitals: bool = False) -> str:
    if word.isupper() and (len(word) > 1 or capitals):
        return text.upper()
    return text.capitalize() if word[0].isupper() else text
