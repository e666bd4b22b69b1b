"""Antonyms and synonyms of English words from NLTK's WordNet, in the form that a text has, by simple rules."""

from __future__ import annotations

import os
import re
import warnings
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

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
_CONSONANT_Y = re.compile(r"[^aeiou]y$")
#: Verbs whose participle is their base form; WordNet lists no forms that equal the lemma.
_BASE_PARTICIPLES = frozenset(
    "become bet burst cast come cost cut hit hurt let put quit run set shed shut split spread".split()
)
_SUPPLETIVE = {"many": ("more", "most"), "much": ("more", "most")}


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
    """Load WordNet now, so that the LookupError comes before any work is done."""
    try:
        _reader(os.getpid())
    except (LookupError, OSError, ValueError, zipfile.BadZipFile) as error:
        raise LookupError(
            "NLTK cannot find a complete WordNet. Fetch it with `python -m nltk.downloader wordnet`."
        ) from error


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
    feature = _feature_of(word, lemma, pos)
    if after_auxiliary and pos == "v" and (feature == "past" or (lemma in _BASE_PARTICIPLES and feature == "base")):
        feature = "participle"
    for name in names:
        if name != lemma and name.isalpha() and name.islower():
            form = inflected(name, pos, feature)
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
    """The uses of a lemma in WordNet's texts, and its senses without those that have a tenth of its uses or less."""
    synsets = _reader(os.getpid()).synsets(name, pos)
    senses = [sense for synset in synsets for sense in synset.lemmas() if sense.name() == name]
    counts = [sense.count() for sense in senses]
    usual = [sense for sense, count in zip(senses, counts, strict=True) if count > 0.1 * sum(counts)]
    return sum(counts), usual or senses[:1]


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


def _feature_of(form: str, lemma: str, pos: str) -> str:
    """Which form of its lemma a word is. One that is both past tense and participle is "past"."""
    if form == lemma:
        return "base"
    if pos == "n":
        return "plural"
    if pos in "ar":
        return "superlative" if form.endswith("st") else "comparative"
    if form.endswith("ing"):
        return "ing"
    if form.endswith("s"):
        return "s"
    return "participle" if len(_pasts(lemma)) == 2 and form.endswith(("n", "ne")) else "past"


def inflected(lemma: str, pos: str, feature: str) -> str | None:
    """This form of a lemma; None if the rules do not decide it."""
    irregular = [form for form in _exceptions(pos)[0].get(lemma, ()) if form not in ("brethren", "sistren", "kine")]
    if feature == "base":
        return lemma
    if feature == "plural":
        if irregular:
            return irregular[0]
        return lemma[:-2] + "en" if lemma.endswith("man") and lemma != "human" else _with_s(lemma)
    if feature in ("comparative", "superlative"):
        return _compared(lemma, irregular, feature == "superlative")
    if feature == "s":
        return lemma + "es" if re.search("[^aeiou]o$", lemma) else _with_s(lemma)
    if feature == "ing":
        regular = lemma[:-1] if lemma.endswith("e") and not lemma.endswith(("ee", "oe", "ye")) else lemma
        regular = lemma[:-2] + "y" if lemma.endswith("ie") else regular
        return next((form for form in irregular if form.endswith("ing")), regular + "ing")
    pasts = _pasts(lemma)
    if lemma in _BASE_PARTICIPLES and (feature == "participle" or not pasts):
        return lemma
    if not pasts:
        return _with_ending(lemma, "ed")
    if len(pasts) == 2:  # wrote, written
        pasts = [form for form in pasts if form.endswith(("n", "ne")) == (feature == "participle")]
    return pasts[0] if len(pasts) == 1 else None


def _pasts(lemma: str) -> list[str]:
    return [form for form in _exceptions("v")[0].get(lemma, ()) if not form.endswith(("ing", "s"))]


def _compared(lemma: str, irregular: list[str], superlative: bool) -> str:
    if lemma in _SUPPLETIVE:
        return _SUPPLETIVE[lemma][superlative]
    for form in irregular:
        if form.endswith("st") == superlative:
            return form
    syllables = len(re.findall("[aeiouy]+", lemma.removesuffix("e")))
    if syllables > 2 or (syllables == 2 and not lemma.endswith(("y", "le", "ow", "er"))):
        return ("most " if superlative else "more ") + lemma
    return _with_ending(lemma, "est" if superlative else "er")


def _with_ending(lemma: str, ending: str) -> str:
    if lemma.endswith("e"):
        return lemma + ending[1:]
    return lemma[:-1] + "i" + ending if _CONSONANT_Y.search(lemma) else lemma + ending


def _with_s(lemma: str) -> str:
    if _CONSONANT_Y.search(lemma):
        return lemma[:-1] + "ies"
    return lemma + ("es" if lemma.endswith(("s", "x", "z", "ch", "sh")) else "s")
