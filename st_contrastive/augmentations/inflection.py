"""Inflects English words by simple rules and WordNet's lists of irregular forms."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_SIBILANT = re.compile(r"(?:s|x|z|ch|sh)$")
_CONSONANT_O = re.compile(r"[^aeiou]o$")
_CONSONANT_Y = re.compile(r"[^aeiou]y$")
_VOWELS = re.compile(r"[aeiouy]+")
#: Rare plurals in WordNet's lists.
_ARCHAIC = {"brethren", "sistren", "kine"}
#: Verbs whose participle is their base form; WordNet lists no forms that equal the lemma.
BASE_PARTICIPLES = frozenset(
    "become bet burst cast come cost cut hit hurt let put quit run set shed shut split spread".split()
)
_SUPPLETIVE = {"many": ("more", "most"), "much": ("more", "most")}
Exceptions = Mapping[str, Sequence[str]]


def feature_of(form: str, lemma: str, pos: str, exceptions: Exceptions) -> str:
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
    return "participle" if len(_pasts(lemma, exceptions)) == 2 and form.endswith(("n", "ne")) else "past"


def inflected(lemma: str, pos: str, feature: str, exceptions: Exceptions) -> str | None:
    """This form of a lemma; None if the rules do not decide it."""
    irregular = [form for form in exceptions.get(lemma, ()) if form not in _ARCHAIC]
    if feature == "base":
        return lemma
    if feature == "plural":
        if irregular:
            return irregular[0]
        return lemma[:-2] + "en" if lemma.endswith("man") and lemma != "human" else _with_s(lemma)
    if feature in ("comparative", "superlative"):
        return _compared(lemma, irregular, feature == "superlative")
    if feature == "s":
        return lemma + "es" if _CONSONANT_O.search(lemma) else _with_s(lemma)
    if feature == "ing":
        regular = lemma[:-1] if lemma.endswith("e") and not lemma.endswith(("ee", "oe", "ye")) else lemma
        regular = lemma[:-2] + "y" if lemma.endswith("ie") else regular
        return next((form for form in irregular if form.endswith("ing")), regular + "ing")
    pasts = _pasts(lemma, exceptions)
    if lemma in BASE_PARTICIPLES and (feature == "participle" or not pasts):
        return lemma
    if not pasts:
        return _with_ending(lemma, "ed")
    if len(pasts) == 2:  # wrote, written
        pasts = [form for form in pasts if form.endswith(("n", "ne")) == (feature == "participle")]
    return pasts[0] if len(pasts) == 1 else None


def _pasts(lemma: str, exceptions: Exceptions) -> list[str]:
    return [form for form in exceptions.get(lemma, ()) if not form.endswith(("ing", "s"))]


def _compared(lemma: str, irregular: list[str], superlative: bool) -> str:
    if lemma in _SUPPLETIVE:
        return _SUPPLETIVE[lemma][superlative]
    for form in irregular:
        if form.endswith("st") == superlative:
            return form
    syllables = len(_VOWELS.findall(lemma.removesuffix("e")))
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
    return lemma + ("es" if _SIBILANT.search(lemma) else "s")
