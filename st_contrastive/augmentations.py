"""Augmentations of texts, as functions ``(text, rng) -> text`` for ``text_dataset`` and ``conisi_dataset``.

Antonyms are from ConIsI-o2. Synonyms, insertion and deletion are from Fig. 4a of Twins. Antonyms and synonyms are
English words from WordNet, which NLTK reads.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import warnings
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from st_contrastive._arguments import Share, checked

_PIECE = re.compile(r"\s*\S+")
#: Matches white space or punctuation, a word of the letters a to z, and punctuation. Does not match parts of addresses,
#: words with a hyphen or an apostrophe, or letters under a combining accent or before a soft hyphen.
_CORE = re.compile(r"([^\w#@/\\]*)([A-Za-z]+)(?![\u0300-\u036f\u00ad])([^\w@/\\]*)")
#: Chinese and Japanese characters and their punctuation, which are not separated by spaces.
_CHARACTERS = "\u2e80-\u2fdf\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uff60\U00020000-\U0003134f"
_DELETABLE = re.compile(rf"\s*(?:[{_CHARACTERS}]|[^\s{_CHARACTERS}]+)")
# Decides by sound: "an hour", "a union", but "an unimportant day".
_TAKES_AN = re.compile(r"(?!uni[^mn]|us[aeu]|ut[eio]|eu|ewe|once|one\b)[aeiou]|hono|honest|hour|heir", re.IGNORECASE)
#: Function words and negations that WordNet contains, mostly with other meanings ("in" as an inch, "he" as helium).
_FUNCTION_WORDS = frozenset(
    "a an some any each every either neither all both half such who i me mine he his it its us one ones am is are was "
    "were be been being have has had having do does did doing done can may might must will ought need dare used let "
    "not no never none nothing nobody nowhere without hardly scarcely barely or but if then else as while at by about "
    "between through before after above below in out on off over under than so too very just also there here when "
    "where why how again further once only own same other within across along around behind beside besides beyond "
    "despite except inside like near onto outside up down well more most less least ever since toward towards "
    "underneath unlike yet though".split()
)


class _WordNetEdit:
    """An edit of some of a text's words with WordNet."""

    @checked
    def __init__(self, rate: Share) -> None:
        self.rate = rate
        try:
            _reader(os.getpid())
        except (LookupError, OSError, ValueError, zipfile.BadZipFile) as error:
            raise OSError(
                "NLTK cannot find a complete WordNet. Fetch it with `python -m nltk.downloader wordnet`, or call "
                "st_contrastive.augmentations.copy_wordnet() if Debian's package wordnet-base is installed."
            ) from error


class AntonymReplacement(_WordNetEdit):
    """Replaces words by their WordNet antonyms (Sun and Huang, CCL 2022, section 3.2.1, ConIsI-o2).

    Called as ``replacement(text, rng)`` with a ``random.Random``. The antonym belongs to the word's most frequent part
    of speech and takes the word's case. "a" and "an" before it are adapted. Words that are more often a form of another
    word ("cities", "lost") stay, as do function words, negations and names. A name is a capitalised word inside a
    sentence, or a first word that is followed by a capitalised word. A text in which no word has an antonym is returned
    unchanged; ``ConIsILoss(strategy="given")`` then takes another sentence. 67 % of
    3,000 whole sentences from Wikipedia have one, and 42 % of the lines of ``wiki1m_for_simcse.txt``.

    Args:
        rate: share of the words with an antonym that are replaced. max(1, round(rate * words)) are drawn at random. The
            paper "randomly substitutes some full words with antonyms" and states no number. The default replaces all.

    Raises:
        OSError: NLTK has no WordNet.
    """

    def __init__(self, rate: Share = 1.0) -> None:
        super().__init__(rate)

    def __call__(self, text: str, rng: random.Random) -> str:
        pieces, words = _split(text)
        found = {place: name for place in _common_words(words, text) if (name := antonym(words[place][1].lower()))}
        if not found:
            return text
        count = max(1, round(self.rate * len(found)))
        for place in rng.sample(sorted(found), count) if self.rate < 1 else found:
            _replace(pieces, words, place, found[place], capitals=text.isupper())
        return "".join(pieces)


class SynonymReplacement(_WordNetEdit):
    """Replaces random words by random WordNet synonyms (Twins, Fig. 4a; Wei and Zou, EMNLP 2019).

    Called as ``replacement(text, rng)``. Case, articles and unchanged words are as in :class:`AntonymReplacement`. A
    synonym is a single lower-case word from a usual sense of the word. A text in which no word has one is returned
    unchanged.

    Args:
        rate: max(1, int(rate * n)) of a text's n words are replaced, or all words with a synonym if there are fewer.
            Spaces separate the words. Twins states no rate; 0.1 is the default of Wei and Zou.

    Raises:
        OSError: NLTK has no WordNet.
    """

    def __init__(self, rate: Share = 0.1) -> None:
        super().__init__(rate)

    def __call__(self, text: str, rng: random.Random) -> str:
        pieces, words = _split(text)
        found = {place: names for place in _common_words(words, text) if (names := synonyms(words[place][1].lower()))}
        if not found:
            return text
        count = min(len(found), max(1, int(self.rate * len(pieces))))
        for place in rng.sample(sorted(found), count):
            _replace(pieces, words, place, rng.choice(found[place]), capitals=text.isupper())
        return "".join(pieces)


class RandomInsertion(_WordNetEdit):
    """Inserts synonyms of random words at random places (Twins, Fig. 4a; Wei and Zou, EMNLP 2019).

    Called as ``insertion(text, rng)``. Synonyms are chosen as in :class:`SynonymReplacement`. A text in which no word
    has one is returned unchanged.

    Args:
        rate: max(1, int(rate * n)) words are inserted into a text of n words. Twins states no rate; 0.1 is the default
            of Wei and Zou.

    Raises:
        OSError: NLTK has no WordNet.
    """

    def __init__(self, rate: Share = 0.1) -> None:
        super().__init__(rate)

    def __call__(self, text: str, rng: random.Random) -> str:
        pieces, words = _split(text)
        found = [names for place in _common_words(words, text) if (names := synonyms(words[place][1].lower()))]
        for _ in range(max(1, int(self.rate * len(pieces))) if found else 0):
            name, place = rng.choice(rng.choice(found)), rng.randint(0, len(pieces))
            if place == 0 and not pieces[0][0].isspace():
                pieces[0] = " " + pieces[0]
            pieces.insert(place, name if place == 0 else " " + name)
        return "".join(pieces) if found else text


class RandomDeletion:
    """Deletes each word with the same probability (Twins, Fig. 4a; Wei and Zou, EMNLP 2019).

    Called as ``deletion(text, rng)``. Spaces separate words, and each Chinese or Japanese character is a word. If all
    words would be deleted, a random one stays.

    Args:
        rate: the probability. Twins states none; 0.1 is the default of Wei and Zou.

    Example:
        >>> RandomDeletion(0.5)("It rains in Oslo again.", random.Random(0))
        'It rains again.'
    """

    @checked
    def __init__(self, rate: Share = 0.1) -> None:
        self.rate = rate

    def __call__(self, text: str, rng: random.Random) -> str:
        words = _DELETABLE.findall(text.rstrip())
        kept = [word for word in words if rng.random() >= self.rate]
        if len(kept) == len(words):
            return text
        return "".join(kept or [rng.choice(words)]).lstrip()


#: WordNet's lexicographer files, in the order of their numbers.
_LEXNAMES = (
    "adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute noun.body noun.cognition "
    "noun.communication noun.event noun.feeling noun.food noun.group noun.location noun.motive noun.object noun.person "
    "noun.phenomenon noun.plant noun.possession noun.process noun.quantity noun.relation noun.shape noun.state "
    "noun.substance noun.time verb.body verb.change verb.cognition verb.communication verb.competition "
    "verb.consumption verb.contact verb.creation verb.emotion verb.motion verb.perception verb.possession verb.social "
    "verb.stative verb.weather adj.ppl"
).split()


def copy_wordnet(
    source: str | os.PathLike[str] = "/usr/share/wordnet", data: str | os.PathLike[str] | None = None
) -> Path:
    """Copy the WordNet of Debian's package ``wordnet-base`` to where NLTK reads it, and return that folder.

    NLTK reads corpora only inside the folders on ``nltk.data.path``, and needs two files that the package does not
    have. This function adds them: ``lexnames``, the numbers and names of WordNet's lexicographer files, and an empty
    ``index.sense``.

    Args:
        source: folder of the package's files.
        data: a folder on ``nltk.data.path``; None uses ``~/nltk_data``.

    Raises:
        OSError: the source has no WordNet, or the folder can't be written.
    """
    source = Path(source)
    files = sorted(path for path in source.glob("*.*") if path.is_file())
    if not (source / "data.noun").is_file():
        raise OSError(f"source={os.fspath(source)!r} has no data.noun. Install the package: apt install wordnet-base.")
    folder = (Path.home() / "nltk_data" if data is None else Path(data)) / "corpora" / "wordnet"
    folder.mkdir(parents=True, exist_ok=True)
    for path in files:
        shutil.copyfile(path, folder / path.name)
    numbers = {"noun": 1, "verb": 2, "adj": 3, "adv": 4}
    lines = (f"{row:02}\t{name}\t{numbers[name.partition('.')[0]]}\n" for row, name in enumerate(_LEXNAMES))
    (folder / "lexnames").write_text("".join(lines), encoding="utf-8")
    (folder / "index.sense").touch()
    return folder


def _split(text: str) -> tuple[list[str], list[tuple[str, str, str]]]:
    """The words, each with the space before it, and (characters before the letters, letters, characters after them).

    These three strings are empty if a word is not a plain word.
    """
    pieces = _PIECE.findall(text.rstrip())  # white space at the end would take quadratic time
    matches = [_CORE.fullmatch(piece) for piece in pieces]
    return pieces, [(match[1], match[2], match[3]) if match else ("", "", "") for match in matches]


def _common_words(words: list[tuple[str, str, str]], text: str) -> list[int]:
    """The places of plain words that are not names. A text in capitals has no names."""
    return [place for place in range(len(words)) if words[place][1] and (text.isupper() or not _is_name(words, place))]


def _is_name(words: list[tuple[str, str, str]], place: int) -> bool:
    """Whether a word is capitalised inside a text, or at its start with a capitalised word right after it."""
    word = words[place][1]
    if word.islower() or place > 0 or not word[1:].islower():
        return not word.islower()
    following = words[1] if len(words) > 1 else ("", "", "")
    return not words[0][2] and not following[0].strip() and following[1][:1].isupper() and following[1] != "I"


def _replace(pieces: list[str], words: list[tuple[str, str, str]], place: int, name: str, *, capitals: bool) -> None:
    """Replace a word with another one in the same case, and adapt an article before it."""
    before, word, after = words[place]
    pieces[place] = before + _in_case_of(word, name) + after
    if place and not before.strip() and not words[place - 1][2] and words[place - 1][1].lower() in ("a", "an"):
        start, article, _ = words[place - 1]
        pieces[place - 1] = start + _in_case_of(article, "an" if _TAKES_AN.match(name) else "a", capitals)


def _in_case_of(word: str, text: str, capitals: bool = False) -> str:
    if word.isupper() and (len(word) > 1 or capitals):
        return text.upper()
    return text.capitalize() if word[0].isupper() else text


@lru_cache(maxsize=1)
def _reader(process: int) -> Any:
    """NLTK's reader of WordNet for this process. Processes forked with open files would share their positions."""
    from nltk.corpus.reader.wordnet import WordNetCorpusReader
    from nltk.corpus.util import LazyCorpusLoader

    reader = LazyCorpusLoader("wordnet", WordNetCorpusReader, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about languages other than English
        reader.ensure_loaded()
    return reader


@lru_cache(maxsize=200_000)
def antonym(word: str) -> str | None:
    """The antonym of a lower-case word from the most frequent sense that has one. Names and compounds are ignored."""
    for sense in _senses(word):
        for other in sorted(sense.antonyms(), key=lambda other: -other.count()):
            name: str = other.name()
            if _is_plain(name, word):
                return name
    return None


@lru_cache(maxsize=200_000)
def synonyms(word: str) -> tuple[str, ...]:
    """The synonyms of a lower-case word, from frequent to rare senses. Names and compounds are ignored."""
    names = (name for sense in _senses(word) for name in sense.synset().lemma_names())
    return tuple(dict.fromkeys(name for name in names if _is_plain(name, word)))


def _is_plain(name: str, word: str) -> bool:
    return name != word and name.isalpha() and name.islower()


def _senses(word: str) -> list[Any]:
    """The usual senses of a lower-case word in its most frequent part of speech; none for a function word."""
    if word in _FUNCTION_WORDS or len(word) < 2:
        return []
    _, senses = max((_usual_senses(word, pos) for pos in "arvn"), key=lambda found: (found[0], bool(found[1])))
    return senses


def _usual_senses(word: str, pos: str) -> tuple[int, list[Any]]:
    """The number of uses of a word in WordNet's texts, and its senses that have more than a tenth of these uses.

    A word that is more often a form of another word, such as "found" of "find", has no senses.
    """
    synsets = [synset.lemmas() for synset in _reader(os.getpid()).synsets(word, pos)]  # also senses of the other word
    senses = [sense for synset in synsets for sense in synset if sense.name() == word]
    counts = [sense.count() for sense in senses]
    others = sum(max(sense.count() for sense in synset) for synset in synsets if not {*synset} & {*senses})
    usual = [sense for sense, count in zip(senses, counts, strict=True) if count > 0.1 * sum(counts)]
    return sum(counts) + others, (usual or senses[:1]) if sum(counts) >= others else []
