"""Random edits of words: ConIsI-o2's antonyms, ESimCSE's repetition, and EDA's three, which Twins is compared with."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from st_contrastive._arguments import Share, checked
from st_contrastive.augmentations.lexicon import antonym, require_wordnet, synonyms

#: Characters of scripts without spaces, and their punctuation.
_IDEOGRAPH = (
    "\u2e80-\u2fdf\u3001-\u303f\uff01-\uff60\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
)
_PIECE = re.compile(rf"(\s*)([{_IDEOGRAPH}]|[^\s{_IDEOGRAPH}]+)")
_IS_IDEOGRAPH = re.compile(f"[{_IDEOGRAPH}]")
#: Punctuation, a word of the letters a to z, punctuation. Not parts of addresses, words with a hyphen or an apostrophe,
#: or letters under a combining accent or before a soft hyphen.
_CORE = re.compile(r"([^\w#@/\\]*)([A-Za-z]+)(?![\u0300-\u036f\u00ad])([^\w@/\\]*)")
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
    """

    @checked
    def __init__(self, rate: Share = 1.0) -> None:
        require_wordnet()
        self.rate = rate

    def __call__(self, text: str, rng: random.Random) -> str:
        pieces = split(text)
        words = [core(word) for _, word in pieces]
        antonyms: dict[int, str] = {}
        for index, (_, word, _) in enumerate(words):
            previous = words[index - 1][1].lower() if index else ""
            if not word or (_is_name(words, index) and not text.isupper()):
                continue
            if name := antonym(word.lower(), previous in _AUXILIARY):
                antonyms[index] = _in_case_of(word, name)
        if not antonyms:
            return text
        count = max(1, round(self.rate * len(antonyms)))
        for index in rng.sample(sorted(antonyms), count) if self.rate < 1 else antonyms:
            space, _ = pieces[index]
            before, _, after = words[index]
            pieces[index] = (space, before + antonyms[index] + after)
            if index and not before and not words[index - 1][2] and words[index - 1][1].lower() in ("a", "an"):
                article = "an" if _TAKES_AN.match(antonyms[index]) else "a"
                start, old, _ = words[index - 1]
                pieces[index - 1] = (pieces[index - 1][0], start + _in_case_of(old, article, text.isupper()))
        return join(pieces)


def _is_name(words: list[tuple[str, str, str]], index: int) -> bool:
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


class WordRepetition:
    """Repeats 0 to max(2, rate * words) random words, as ESimCSE (Wu et al., COLING 2022) does with subwords.

    In scripts without spaces other than Chinese and Japanese, all text between two spaces is one word.
    """

    @checked
    def __init__(self, rate: Share = 0.32) -> None:
        self.rate = rate

    def __call__(self, text: str, rng: random.Random) -> str:
        pieces = split(text)
        count = min(len(pieces), rng.randint(0, max(2, int(self.rate * len(pieces)))))
        for index in sorted(rng.sample(range(len(pieces)), count), reverse=True):
            word = pieces[index][1]
            pieces.insert(index + 1, (space_before(word), word))
        return join(pieces) if count else text


class RandomDeletion:
    """Deletes each word with probability ``rate``; if none is left, a random one stays (Wei and Zou, EMNLP 2019)."""

    @checked
    def __init__(self, rate: Share = 0.1) -> None:
        self.rate = rate

    def __call__(self, text: str, rng: random.Random) -> str:
        pieces = split(text)
        left = [piece for piece in pieces if rng.random() >= self.rate]
        if len(left) == len(pieces):
            return text
        return join(left or [rng.choice(pieces)])


class RandomInsertion:
    """Inserts max(1, int(rate * words)) synonyms of random words at random positions (Wei and Zou, EMNLP 2019)."""

    @checked
    def __init__(self, rate: Share = 0.1) -> None:
        require_wordnet()
        self.rate = rate

    def __call__(self, text: str, rng: random.Random) -> str:
        pieces = split(text)
        pools = [names for _, names in _with_synonyms(pieces)]
        if not pools:
            return text
        for _ in range(max(1, int(self.rate * len(pieces)))):
            word = rng.choice(rng.choice(pools))
            pieces.insert(rng.randint(0, len(pieces)), (space_before(word), word))
        return join(pieces)


class SynonymReplacement:
    """Replaces max(1, int(rate * words)) words by single-word WordNet synonyms (Wei and Zou, EMNLP 2019)."""

    @checked
    def __init__(self, rate: Share = 0.1) -> None:
        require_wordnet()
        self.rate = rate

    def __call__(self, text: str, rng: random.Random) -> str:
        pieces = split(text)
        candidates = _with_synonyms(pieces)
        count = min(len(candidates), max(1, int(self.rate * len(pieces))))
        for index, names in rng.sample(candidates, count):
            space, word = pieces[index]
            before, _, after = core(word)
            pieces[index] = (space, before + rng.choice(names) + after)
        return join(pieces) if count else text


def _with_synonyms(pieces: list[tuple[str, str]]) -> list[tuple[int, tuple[str, ...]]]:
    """The indices of lower-case words that have synonyms, and these."""
    words = enumerate(core(word)[1] for _, word in pieces)
    return [(index, names) for index, word in words if word.islower() and (names := synonyms(word))]


def split(text: str) -> list[tuple[str, str]]:
    """The words, each after its white space. Words end at white space; a Chinese or Japanese character is a word."""
    return _PIECE.findall(text.rstrip())  # white space that no word follows would take quadratic time


def core(word: str) -> tuple[str, str, str]:
    """The punctuation before a word, the word, the punctuation after it; the word is "" if it is no plain one."""
    match = _CORE.fullmatch(word)
    return (match[1], match[2], match[3]) if match else (word, "", "")


def join(pieces: list[tuple[str, str]]) -> str:
    """The text of these pieces, with a space where two words would become one."""
    out: list[str] = []
    for space, word in pieces:
        if out and not space and not _IS_IDEOGRAPH.match(word) and not _IS_IDEOGRAPH.match(out[-1]):
            space = " "
        out += [space if out else "", word]
    return "".join(out)


def space_before(word: str) -> str:
    """The white space to put before an added word."""
    return "" if _IS_IDEOGRAPH.match(word) else " "


_CLASSES: dict[str, Callable[..., Callable[[str, random.Random], str]]] = {
    "antonyms": AntonymReplacement,
    "repetition": WordRepetition,
    "deletion": RandomDeletion,
    "insertion": RandomInsertion,
    "synonyms": SynonymReplacement,
}


def augmentation(text: str) -> Callable[[str, random.Random], str]:
    """An augmentation by "NAME" or "NAME=RATE": antonyms, repetition, deletion, insertion or synonyms.

    Raises:
        ValueError: there is no such name, the rate is no share, or NLTK has no WordNet.

    Example:
        >>> augmentation("deletion=0.5")("It rains in Oslo again.", random.Random(0))
        'It rains again.'
    """
    name, equals, value = str(text).partition("=")
    try:
        return _CLASSES[name](*([float(value)] if equals else []))
    except (LookupError, ValueError) as error:
        known = f"augment={text!r}: {error}"
        unknown = f"augment must be one of {', '.join(_CLASSES)}, or NAME=RATE; got {text!r}."
        raise ValueError(known if name in _CLASSES else unknown) from error
