"""ConIsI-o2: words replaced with their antonyms."""

from __future__ import annotations

import random
import re
from typing import final

from st_contrastive._checks import require_number
from st_contrastive.augmentations._words import check_text
from st_contrastive.augmentations.lexicon import Lexicon

# Words of letters; one with a hyphen or an apostrophe is one word, and has no antonym.
_WORD = re.compile(r"[^\W\d_]+(?:['’\-][^\W\d_]+)*")
_AUXILIARY = frozenset("have has had having am is are was were be been being get gets got getting".split())
_ARTICLE = re.compile(r"\b(an?)\s+$", re.IGNORECASE)
# By sound: "an hour", "a union", but "an unimportant day".
_TAKES_AN = re.compile(r"[aeio]|u(?!ni(?!m|n|dent)|s[aeu]|t[eio]|b)|hono|honest|hour|heir")
_TAKES_A = re.compile(r"eu|ewe|once|one(?![a-z])")


@final
class AntonymReplacement:
    """Replaces words with their WordNet antonyms (Sun and Huang, CCL 2022, construction -o2).

    - The antonym has the part of speech that the word has most often, and the word's form and casing: see
      :class:`~st_contrastive.augmentations.lexicon.Lexicon`. ``better`` becomes ``worse``. A past form that is also
      a participle is one behind a form of "have", "be" or "get".
    - Function words and negation are left alone (``not``, ``never``, ``without``, ``isn't``), and so are words with a
      capital inside a sentence, which are names, and words with a hyphen or an apostrophe.
    - ``a`` and ``an`` follow the word behind them.

    A text without any antonym comes back unchanged; ``ConIsILoss(strategy="given")`` takes another sentence for such a
    row, and tells their share.

    Args:
        rate: share of the words that have an antonym which are replaced: max(1, round(rate * words)) of them, drawn at
            random. The paper "randomly substitutes some full words with antonyms" (section 3.2.1) and gives no number;
            1, our default, replaces all.
        lexicon: None takes one on NLTK's WordNet.

    Raises:
        WordNetError: when it is made, where there is no WordNet.
        ValueError: a rate out of range.

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
        self.lexicon = Lexicon.loaded(lexicon)

    def __call__(self, text: str, rng: random.Random) -> str:
        """``text`` with antonyms in it; ``rng`` is asked only for a rate below 1."""
        check_text(text)
        found: list[tuple[re.Match[str], str]] = []
        before, first = "", True
        shouted = text.isupper()
        for match in _WORD.finditer(text):
            word = match.group()
            # A capital inside a sentence is a name's.
            lowered = word.lower()
            if word.islower() or (first and word[1:].islower()) or shouted:
                antonyms = self.lexicon.antonyms(lowered)
                forms = antonyms.as_participle if before in _AUXILIARY else antonyms.forms
                if forms:
                    found.append((match, _cased(forms[0], word)))
            before, first = lowered, False
        if found and self.rate < 1:
            count = max(1, round(self.rate * len(found)))
            found = [found[place] for place in sorted(rng.sample(range(len(found)), count))]
        return _replaced(text, found)


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
    """ "a" or "an" before the word, in the casing of the article that stood there."""
    lowered = word.lower()
    right = "an" if _TAKES_AN.match(lowered) and not _TAKES_A.match(lowered) else "a"
    if right == article.lower():
        return article
    if article.isupper() and (len(article) > 1 or word.isupper()):
        return right.upper()
    return right.capitalize() if article[0].isupper() else right
