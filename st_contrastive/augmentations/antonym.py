"""Replacement of words by their antonyms, for ConIsI-o2."""

from __future__ import annotations

import random
import re
from typing import final

from st_contrastive._checks import require_number, require_string
from st_contrastive.augmentations.lexicon import Lexicon

# A word with a hyphen or an apostrophe is one word; it has no antonym. Accents may be characters of their own.
_LETTERS = r"[^\W\d_]+(?:[\u0300-\u036f\u00ad]+[^\W\d_]*)*"
_WORD = re.compile(rf"{_LETTERS}(?:['’\-]{_LETTERS})*")
# Around a word, what makes it a part of an address, a path or a file's name.
_BEFORE, _AFTER = re.compile(r"(?:[@/\\_#]|\w[.:])$"), re.compile(r"[@/\\_]|[.:]\w")
_AUXILIARY = frozenset("have has had having am is are was were be been being get gets got getting".split())
_ARTICLE = re.compile(r"\b(an?)\s+$", re.IGNORECASE)
# By sound: "an hour", "a union", but "an unimportant day".
_TAKES_AN = re.compile(r"[aeio]|u(?!ni(?!m|n|dent)|s[aeu]|t[eio]|b)|hono|honest|hour|heir")
_TAKES_A = re.compile(r"eu|ewe|once|one(?![a-z])")


@final
class AntonymReplacement:
    """Replaces words by their WordNet antonyms (Sun and Huang, CCL 2022, construction -o2).

    - The antonym has the word's most frequent part of speech, its form and its case; see
      :class:`~st_contrastive.augmentations.lexicon.Lexicon`. ``better`` becomes ``worse``. A past form that can also
      be a participle is taken as one after a form of "have", "be" or "get".
    - Function words and negations (``not``, ``never``, ``without``, ``isn't``) are kept, as are words with a hyphen or
      an apostrophe, and parts of addresses and paths.
    - Names are kept: capitalised words inside a sentence, and a first word with one after it ("New York"). A single
      name at the start ("Rose went home.") is taken for another word.
    - ``a`` and ``an`` are adapted to the word after them.

    A text in which no word has an antonym is returned unchanged; ``ConIsILoss(strategy="given")`` takes another
    sentence for such a row, and reports the share of these rows.

    Args:
        rate: of the words that have an antonym, max(1, round(rate * words)) are replaced, drawn at random. The paper
            "randomly substitutes some full words with antonyms" (section 3.2.1) and gives no number; the default
            replaces all.
        lexicon: None uses NLTK's WordNet.

    Raises:
        WordNetError: there is no WordNet.
        ValueError: ``rate`` is not from 0 to 1.

    Example:
        >>> import random
        >>> from st_contrastive.augmentations import AntonymReplacement
        >>> replace = AntonymReplacement()
        >>> replace("An easy day was not hotter.", random.Random(0))
        'A difficult night was not colder.'
    """

    def __init__(self, rate: float = 1.0, lexicon: Lexicon | None = None) -> None:
        require_number("rate", rate, most=1)
        self.rate = rate
        self.lexicon = (lexicon or Lexicon()).load()

    def __call__(self, text: str, rng: random.Random) -> str:
        """``text`` with antonyms; ``rng`` is used only for a rate below 1."""
        require_string("text", text)
        found: list[tuple[re.Match[str], str]] = []
        previous = ""
        all_capitals = text.isupper()
        matches = list(_WORD.finditer(text))
        for place, match in enumerate(matches):
            word = match.group()
            lowered = word.lower()
            # A word with a capital inside a sentence is a name, as is a first word with such a one after it.
            is_name = not word.islower() and (place > 0 or not word[1:].islower() or _name_follows(text, matches))
            if all_capitals or not is_name:
                antonym = self.lexicon.antonym(lowered, is_participle=previous in _AUXILIARY)
                if antonym and not _in_address(text, match):
                    found.append((match, _cased(antonym, word)))
            previous = lowered
        if found and self.rate < 1:
            count = max(1, round(self.rate * len(found)))
            found = [found[place] for place in sorted(rng.sample(range(len(found)), count))]
        return _replaced(text, found)


def _name_follows(text: str, matches: list[re.Match[str]]) -> bool:
    """Whether the second word is capitalised, with nothing but a space before it; "I" does not count."""
    if len(matches) < 2 or text[matches[0].end() : matches[1].start()] != " ":
        return False
    word = matches[1].group()
    return word[0].isupper() and word != "I" and not word.startswith(("I'", "I’"))


def _in_address(text: str, match: re.Match[str]) -> bool:
    before, after = text[max(0, match.start() - 2) : match.start()], text[match.end() : match.end() + 2]
    return bool(_BEFORE.search(before) or _AFTER.match(after))


def _cased(antonym: str, word: str) -> str:
    if len(word) > 1 and word.isupper():
        return antonym.upper()
    return antonym[0].upper() + antonym[1:] if word[0].isupper() else antonym


def _replaced(text: str, found: list[tuple[re.Match[str], str]]) -> str:
    parts: list[str] = []
    end = 0
    for match, antonym in found:
        between = text[end : match.start()]
        article = _ARTICLE.search(between)
        if article:
            between = between[: article.start(1)] + _article(article[1], antonym) + between[article.end(1) :]
        parts += [between, antonym]
        end = match.end()
    return "".join([*parts, text[end:]])


def _article(article: str, word: str) -> str:
    """ "a" or "an" for the word, in the case of the article that it replaces."""
    lowered = word.lower()
    right = "an" if _TAKES_AN.match(lowered) and not _TAKES_A.match(lowered) else "a"
    if right == article.lower():
        return article
    if article.isupper() and (len(article) > 1 or word.isupper()):
        return right.upper()
    return right.capitalize() if article[0].isupper() else right
