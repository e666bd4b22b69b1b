"""Inflects English words by simple rules and WordNet's lists of irregular forms."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

_SIBILANT = re.compile(r"(?:s|x|z|ch|sh)$")
_CONSONANT_O = re.compile(r"[^aeiou]o$")
_CONSONANT_Y = re.compile(r"[^aeiou]y$")
_VOWELS = re.compile(r"[aeiouy]+")
#: Rare plurals in WordNet's lists.
_ARCHAIC = {"brethren", "sistren", "kine"}
#: Verbs whose participle is their base form; WordNet lists no forms that equal the lemma.
_BASE_PARTICIPLES = frozenset(
    "become bet burst cast come cost cut hit hurt let outrun overcome put quit rerun run set shed shut split spread "
    "upset".split()
)
_SUPPLETIVE = {"many": ("more", "most"), "much": ("more", "most")}
_FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}


class Inflections:
    """Tells which form of its lemma a word is, and makes this form of another lemma.

    Args:
        reader: NLTK's WordNet reader; its files of exceptions are read.
    """

    def __init__(self, reader: Any) -> None:
        self._irregular: dict[str, dict[str, list[str]]] = {}
        self._lemmas: dict[tuple[str, str], list[str]] = {}
        for pos, name in _FILES.items():
            forms: dict[str, list[str]] = defaultdict(list)
            with reader.open(f"{name}.exc") as file:
                for line in file:
                    form, *lemmas = line.split()
                    self._lemmas[form, pos] = lemmas
                    for lemma in lemmas:
                        if form != lemma and form not in _ARCHAIC:
                            forms[lemma].append(form)
            self._irregular[pos] = dict(forms)

    def lemmas(self, form: str, pos: str) -> list[str]:
        """The lemmas of an irregular form."""
        return self._lemmas.get((form, pos), [])

    def feature(self, form: str, lemma: str, pos: str) -> str:
        """Which form of ``lemma`` it is: base, plural, s, ing, past, participle, comparative or superlative.

        A form that is both past tense and participle is "past".
        """
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
        two = len(self._pasts(lemma)) == 2
        return "participle" if two and _is_participle(form) else "past"

    def may_be_participle(self, lemma: str, pos: str, feature: str) -> bool:
        """Whether a form with another feature can also be the participle."""
        if pos != "v":
            return False
        if lemma in _BASE_PARTICIPLES:
            return feature == "base"
        return feature == "past" and len(self._pasts(lemma)) != 2

    def inflect(self, lemma: str, pos: str, feature: str) -> str | None:
        """This form of ``lemma``; None if the rules do not decide it."""
        if feature == "base":
            return lemma
        irregular = self._irregular[pos].get(lemma, [])
        if feature == "plural":
            if irregular:
                return irregular[0]
            return lemma[:-2] + "en" if lemma.endswith("man") and lemma != "human" else _with_s(lemma)
        if feature in ("comparative", "superlative"):
            return self._compared(lemma, irregular, feature)
        if feature == "s":
            return lemma + "es" if _CONSONANT_O.search(lemma) else _with_s(lemma)
        if feature == "ing":
            return next((form for form in irregular if form.endswith("ing")), None) or _with_ing(lemma)
        pasts = self._pasts(lemma)
        if lemma in _BASE_PARTICIPLES and (feature == "participle" or not pasts):
            return lemma
        if len(pasts) == 2:
            chosen = [form for form in pasts if _is_participle(form) == (feature == "participle")]
            return chosen[0] if len(chosen) == 1 else None
        return pasts[0] if len(pasts) == 1 else (None if pasts else _with_ed(lemma))

    def _pasts(self, lemma: str) -> list[str]:
        return [form for form in self._irregular["v"].get(lemma, []) if not form.endswith(("ing", "s"))]

    def _compared(self, lemma: str, irregular: list[str], feature: str) -> str:
        superlative = feature == "superlative"
        if lemma in _SUPPLETIVE:
            return _SUPPLETIVE[lemma][superlative]
        for form in irregular:
            if form.endswith("st") == superlative:
                return form
        syllables = len(_VOWELS.findall(lemma.removesuffix("e")))
        if syllables > 2 or (syllables == 2 and not lemma.endswith(("y", "le", "ow", "er"))):
            return ("most " if superlative else "more ") + lemma
        ending = "est" if superlative else "er"
        if lemma.endswith("e"):
            return lemma + ending[1:]
        return lemma[:-1] + "i" + ending if _CONSONANT_Y.search(lemma) else lemma + ending


def _is_participle(form: str) -> bool:
    """Whether this is the participle of the two past forms of a verb: written, not wrote."""
    return form.endswith(("n", "ne"))


def _with_s(lemma: str) -> str:
    if _CONSONANT_Y.search(lemma):
        return lemma[:-1] + "ies"
    return lemma + ("es" if _SIBILANT.search(lemma) else "s")


def _with_ed(lemma: str) -> str:
    if lemma.endswith("e"):
        return lemma + "d"
    return lemma[:-1] + "ied" if _CONSONANT_Y.search(lemma) else lemma + "ed"


def _with_ing(lemma: str) -> str:
    if lemma.endswith("ie"):
        return lemma[:-2] + "ying"
    return (lemma[:-1] if lemma.endswith("e") and not lemma.endswith(("ee", "oe", "ye")) else lemma) + "ing"
