"""Antonyms and synonyms of English words in the form that a text has, from NLTK's WordNet."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from st_contrastive.augmentations.inflection import BASE_PARTICIPLES, feature_of, inflected

#: Words of grammar and negation, which are never replaced. WordNet has some of them in other meanings: "in" as an inch,
#: "he" as helium, "will" as a noun.
_FUNCTION_WORDS = frozenset(
    "a an the this that these those some any each every either neither all both half such what which who whom whose "
    "i me my mine you your yours he him his she her hers it its we us our ours they them their theirs myself yourself "
    "himself herself itself ourselves themselves one ones "
    "am is are was were be been being have has had having do does did doing done can could may might must shall should "
    "will would ought need dare used let "
    "not no nor never none nothing nobody nowhere without hardly scarcely barely cannot "
    "and or but if then else because as until while of at by for with about against between into through during before "
    "after above below to from in out on off over under than so too very just also there here when where why how again "
    "further once only own same other within across along around behind beside besides beyond despite except inside "
    "like near onto outside up down well more most less least ever "
    "per since toward towards underneath unlike upon via whether yet although though unless whereas".split()
)
#: A sense with a smaller share of a word's uses is ignored.
_RARE = 0.1


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


def require_wordnet() -> None:
    """Load WordNet now, so that an error comes before any work is done.

    Raises:
        LookupError: there is no whole WordNet.
    """
    try:
        _reader(os.getpid())
    except (LookupError, OSError, ValueError, zipfile.BadZipFile) as error:
        raise LookupError("NLTK finds no whole WordNet. Fetch it with `python -m nltk.downloader wordnet`.") from error


@lru_cache(maxsize=200_000)
def antonym(word: str, after_auxiliary: bool = False) -> str | None:
    """The antonym of a lower-case word, by the most frequent sense that has one.

    ``after_auxiliary`` says that a form which can be past tense or participle, such as "lost", is the participle.
    """
    for pos, lemma, senses in _analysed(word):
        for sense in senses:
            others = sorted(sense.antonyms(), key=lambda other: -other.count())
            for form in _forms(word, pos, lemma, [other.name() for other in others], after_auxiliary):
                return form
    return None


@lru_cache(maxsize=200_000)
def synonyms(word: str) -> tuple[str, ...]:
    """The single words among the synonyms of a lower-case word, those of more frequent senses first."""
    for pos, lemma, senses in _analysed(word):
        names = [name for sense in senses for name in sense.synset().lemma_names()]
        if forms := tuple(_forms(word, pos, lemma, list(dict.fromkeys(names)), False)):
            return forms
    return ()


def _forms(word: str, pos: str, lemma: str, names: list[str], after_auxiliary: bool) -> Iterator[str]:
    """The other lemmas in the word's form. No proper names, no compounds."""
    exceptions = _exceptions(pos)[0]
    feature = feature_of(word, lemma, pos, exceptions)
    if after_auxiliary and pos == "v" and (feature == "past" or (lemma in BASE_PARTICIPLES and feature == "base")):
        feature = "participle"
    for name in names:
        if name != lemma and name.isalpha() and name.islower():
            form = inflected(name, pos, feature, exceptions)
            if form and form != word:
                yield form


def _analysed(word: str) -> list[tuple[str, str, list[Any]]]:
    """The word's lemmas in its most frequent part of speech, the most frequent first: each with that and its senses."""
    best: list[tuple[str, str, list[Any]]] = []
    most = -1
    for pos in "arvn" if word not in _FUNCTION_WORDS and len(word) > 1 else "":
        found = [(*_usual_senses(lemma, pos), lemma) for lemma in _lemmas(word, pos)]
        uses = sum(count for count, senses, _ in found if senses)
        if uses > most and any(senses for _, senses, _ in found):
            most = uses
            best = [(pos, lemma, senses) for _, senses, lemma in sorted(found, key=lambda each: -each[0]) if senses]
    return best


def _lemmas(word: str, pos: str) -> list[str]:
    """The lemmas that the word can be a form of. In WordNet, "men" and "larger" are also lemmas themselves."""
    names = [_reader(os.getpid()).morphy(word, pos), *_exceptions(pos)[1].get(word, [])]
    if pos in "ar":
        names += [word.removesuffix(ending) for ending in ("er", "est", "r", "st") if word.endswith(ending)]
    return [name for name in dict.fromkeys(names) if name]


def _usual_senses(name: str, pos: str) -> tuple[int, list[Any]]:
    """The uses of a lemma in WordNet's texts, and its senses without the rare ones."""
    synsets = _reader(os.getpid()).synsets(name, pos)
    senses = [sense for synset in synsets for sense in synset.lemmas() if sense.name() == name]
    counts = [sense.count() for sense in senses]
    most = _RARE * sum(counts)
    return sum(counts), [sense for place, sense in enumerate(senses) if place == 0 or counts[place] > most]


@lru_cache(maxsize=4)
def _exceptions(pos: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """WordNet's irregular forms of each lemma, and the lemmas of each irregular form."""
    forms: dict[str, list[str]] = {}
    lemmas: dict[str, list[str]] = {}
    with _reader(os.getpid()).open({"n": "noun", "v": "verb", "a": "adj", "r": "adv"}[pos] + ".exc") as file:
        for line in file:
            form, *lemmas[form] = line.split()
            for lemma in lemmas[form]:
                if form != lemma:
                    forms.setdefault(lemma, []).append(form)
    return forms, lemmas
