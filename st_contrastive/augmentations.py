"""Constructed sentences for ConIsI-o2: words replaced by their antonyms, which NLTK's WordNet has."""

from __future__ import annotations

import os
import random
import re
import warnings
import zipfile
from functools import lru_cache
from typing import Any

from st_contrastive._arguments import Share, checked

_PIECE = re.compile(r"(\s*)(\S+)")
#: Punctuation, a word of the letters a to z, punctuation. Not parts of addresses, words with a hyphen or an apostrophe,
#: or letters under a combining accent or before a soft hyphen.
_CORE = re.compile(r"([^\w#@/\\]*)([A-Za-z]+)(?![\u0300-\u036f\u00ad])([^\w@/\\]*)")
# By sound: "an hour", "a union", but "an unimportant day".
_TAKES_AN = re.compile(r"(?!uni[^mn]|us[aeu]|ut[eio]|eu|ewe|once|one\b)[aeiou]|hono|honest|hour|heir", re.IGNORECASE)
#: Words of grammar and negation that WordNet has, mostly in other meanings ("in" as an inch, "he" as helium).
_FUNCTION_WORDS = frozenset(
    "a an some any each every either neither all both half such who i me mine he his it its us one ones am is are was "
    "were be been being have has had having do does did doing done can may might must will ought need dare used let "
    "not no never none nothing nobody nowhere without hardly scarcely barely or but if then else as while at by about "
    "between through before after above below in out on off over under than so too very just also there here when "
    "where why how again further once only own same other within across along around behind beside besides beyond "
    "despite except inside like near onto outside up down well more most less least ever since toward towards "
    "underneath unlike yet though".split()
)


class AntonymReplacement:
    """Replaces words by their WordNet antonyms (Sun and Huang, CCL 2022, section 3.2.1, ConIsI-o2).

    Called as ``replacement(text, rng)`` with a ``random.Random``. The antonym is that of the word's most frequent part
    of speech, in the word's case; "a" and "an" before it are adapted. Words that are more often a form of another
    ("cities", "lost") stay, as do function words, negations, and names: capitalised words inside a sentence, and a
    first word with one after it. A text in which no word has an antonym is returned unchanged;
    ``ConIsILoss(strategy="given")`` then takes another sentence. Of 3,000 sentences of Wikipedia, 67 % have one.

    Args:
        rate: of the words that have an antonym, max(1, round(rate * words)) are replaced, drawn at random. The paper
            "randomly substitutes some full words with antonyms" and gives no number; the default replaces all.

    Raises:
        OSError: NLTK has no WordNet.
    """

    @checked
    def __init__(self, rate: Share = 1.0) -> None:
        self.rate = rate
        try:
            _reader(os.getpid())
        except (LookupError, OSError, ValueError, zipfile.BadZipFile) as error:
            raise OSError(
                "NLTK cannot find a complete WordNet. Fetch it with `python -m nltk.downloader wordnet`."
            ) from error

    def __call__(self, text: str, rng: random.Random) -> str:
        pieces = _PIECE.findall(text.rstrip())  # white space that no word follows would take quadratic time
        matches = [_CORE.fullmatch(word) for _, word in pieces]
        words = [match.groups() if match else ("", "", "") for match in matches]
        antonyms: dict[int, str] = {}
        for index, (_, word, _) in enumerate(words):
            if not word or (_is_capitalised(words, index) and not text.isupper()):  # the latter is a name
                continue
            if name := antonym(word.lower()):
                antonyms[index] = _in_case_of(word, name)
        if not antonyms:
            return text
        count = max(1, round(self.rate * len(antonyms)))
        for index in rng.sample(sorted(antonyms), count) if self.rate < 1 else antonyms:
            before, _, after = words[index]
            pieces[index] = (pieces[index][0], before + antonyms[index] + after)
            if index and not before and not words[index - 1][2] and words[index - 1][1].lower() in ("a", "an"):
                article = "an" if _TAKES_AN.match(antonyms[index]) else "a"
                start, old, _ = words[index - 1]
                pieces[index - 1] = (pieces[index - 1][0], start + _in_case_of(old, article, text.isupper()))
        return "".join(space + word for space, word in pieces)


def _is_capitalised(words: list[tuple[str, ...]], index: int) -> bool:
    """Whether a word is capitalised inside a text, or at its start with a capitalised word right after it."""
    word = words[index][1]
    if word.islower() or index > 0 or not word[1:].islower():
        return not word.islower()
    following = words[1] if len(words) > 1 else ("", "", "")
    return not words[0][2] and not following[0] and following[1][:1].isupper() and following[1] != "I"


def _in_case_of(word: str, text: str, capitals: bool = False) -> str:
    if word.isupper() and (len(word) > 1 or capitals):
        return text.upper()
    return text.capitalize() if word[0].isupper() else text


@lru_cache(maxsize=1)
def _reader(process: int) -> Any:
    """NLTK's reader, with open files of this process alone: forked ones share the positions in theirs."""
    from nltk.corpus.reader.wordnet import WordNetCorpusReader
    from nltk.corpus.util import LazyCorpusLoader

    reader = LazyCorpusLoader("wordnet", WordNetCorpusReader, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about languages other than English
        reader.ensure_loaded()
    return reader


@lru_cache(maxsize=200_000)
def antonym(word: str) -> str | None:
    """The antonym of a lower-case word, by the most frequent sense that has one; no proper name, no compound."""
    if word in _FUNCTION_WORDS or len(word) < 2:
        return None
    _, senses = max((_usual_senses(word, pos) for pos in "arvn"), key=lambda found: (found[0], bool(found[1])))
    for sense in senses:
        for other in sorted(sense.antonyms(), key=lambda other: -other.count()):
            name: str = other.name()
            if name != word and name.isalpha() and name.islower():
                return name
    return None


def _usual_senses(word: str, pos: str) -> tuple[int, list[Any]]:
    """The uses of a word in WordNet's texts, and its senses without those that have a tenth of its own uses or less.

    None are given for a word that is more often a form of another, such as "found" of "find".
    """
    synsets = [synset.lemmas() for synset in _reader(os.getpid()).synsets(word, pos)]  # of the other word too
    senses = [sense for synset in synsets for sense in synset if sense.name() == word]
    counts = [sense.count() for sense in senses]
    others = sum(max(sense.count() for sense in synset) for synset in synsets if not {*synset} & {*senses})
    usual = [sense for sense, count in zip(senses, counts, strict=True) if count > 0.1 * sum(counts)]
    return sum(counts) + others, (usual or senses[:1]) if sum(counts) >= others else []
