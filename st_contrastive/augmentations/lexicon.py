"""Antonyms and synonyms of English words in the form that a text has, from WordNet."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from st_contrastive.augmentations.inflection import Inflections
from st_contrastive.augmentations.wordnet import reopened, sense_counts, wordnet

#: Words of grammar and negation, which are never replaced. WordNet has some of them in other meanings: "in" as an inch,
#: "he" as helium, "will" as a noun.
FUNCTION_WORDS = frozenset(
    "a an the this that these those some any each every either neither all both half such what which who whom whose "
    "i me my mine you your yours he him his she her hers it its we us our ours they them their theirs myself yourself "
    "himself herself itself ourselves themselves one ones "
    "am is are was were be been being have has had having do does did doing done can could may might must shall should "
    "will would ought need dare used let "
    "not no nor never none nothing nobody nowhere neither without hardly scarcely barely cannot "
    "and or but if then else because as until while of at by for with about against between into through during before "
    "after above below to from in out on off over under than so too very just also there here when where why how again "
    "further once only own same other within across along around behind beside besides beyond despite except inside "
    "like near onto outside up down well more most less least ever "
    "per since toward towards underneath unlike upon via whether yet although though unless whereas "
    "s t d ll m o re ve".split()
)

#: A sense with a smaller share of a word's uses is ignored.
_RARE = 0.1


@dataclass(frozen=True)
class _Lemma:
    name: str
    uses: int
    senses: list[Any]


class Lexicon:
    """Antonyms and synonyms of English words, each looked up in WordNet once.

    A word of several parts of speech counts as the most frequent one in WordNet's sense-tagged texts. A sense with less
    than a tenth of the word's uses is ignored. An inflected word is replaced by the same form of the other word, by
    simple rules and WordNet's irregular forms (``larger``: ``smaller``, ``won``: ``lost``, ``easier``: ``more
    difficult``); a word whose form can't be made is left out.

    Args:
        reader: NLTK's WordNet reader; None uses :func:`wordnet` when the first word is looked up.
    """

    _reader: Any
    _counts: dict[str, int]
    _inflections: Inflections

    def __init__(self, reader: Any | None = None) -> None:
        self._given = reader
        self._process: int | None = None  # that opened the reader's files
        self._found: dict[tuple[str, bool], tuple[list[str], list[str]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A worker process opens the files itself; only the name of their folder can be sent there.
        root = None if self._given is None else self._given.root
        return {"root": root if isinstance(root, str) else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(None if state["root"] is None else reopened(state["root"]))  # type: ignore[misc]

    def load(self) -> Lexicon:
        """Open WordNet now, so that an error comes before any work is done; returns the lexicon itself.

        Raises:
            WordNetError: there is no WordNet.
        """
        if self._process is None:
            self._reader = wordnet() if self._given is None else self._given
            self._counts = sense_counts(self._reader)
            self._inflections = Inflections(self._reader)
        elif self._process != os.getpid():
            # A forked process shares the positions in open files with its parent, so it opens its own.
            self._reader = reopened(self._reader.root)
        self._process = os.getpid()
        return self

    def antonym(self, word: str, *, is_participle: bool = False) -> str | None:
        """The antonym of a lower-case word, by the most frequent sense that has one.

        ``is_participle`` says that a form which can be past tense or participle, such as ``lost``, is the participle.
        """
        forms, participles = self._replacements(word, antonyms=True)
        return next(iter(participles if is_participle else forms), None)

    def synonyms(self, word: str) -> Sequence[str]:
        """The single words among the synonyms of a lower-case word, those of more frequent senses first."""
        return self._replacements(word, antonyms=False)[0]

    def _replacements(self, word: str, antonyms: bool) -> tuple[list[str], list[str]]:
        """The words that can replace this one, and those that can if it is a participle."""
        key = word, antonyms
        if key not in self._found:
            self._found[key] = self._find(word, antonyms)
        return self._found[key]

    def _find(self, word: str, antonyms: bool) -> tuple[list[str], list[str]]:
        if word in FUNCTION_WORDS or not word.isascii() or len(word) < 2:
            return [], []
        self.load()
        pos, lemmas = self._analysed(word)
        for lemma in lemmas:
            forms, participles = self._forms(word, pos, lemma, antonyms)
            if forms or participles:
                return forms, participles
        return [], []

    def _forms(self, word: str, pos: str, lemma: _Lemma, antonyms: bool) -> tuple[list[str], list[str]]:
        names: list[str] = []
        for sense in lemma.senses:
            if antonyms:
                others = sorted(sense.antonyms(), key=lambda other: -self._counts.get(other.key(), 0))
                names += [other.name() for other in others]
            else:
                names += [other for other in sense.synset().lemma_names() if other != sense.name()]
        # Only single lower-case words: no proper names, no compounds.
        names = [name for name in dict.fromkeys(names) if name.isalpha() and name.islower() and name != lemma.name]
        feature = self._inflections.feature(word, lemma.name, pos)
        ambiguous = self._inflections.may_be_participle(lemma.name, pos, feature)

        def forms(feature: str) -> list[str]:
            inflected = (self._inflections.inflect(name, pos, feature) for name in names)
            return [form for form in inflected if form and form != word]

        return forms(feature), forms("participle" if ambiguous else feature)

    def _analysed(self, word: str) -> tuple[str, list[_Lemma]]:
        """The word's most frequent part of speech, and its lemmas there, the most frequent first."""
        best: tuple[str, list[_Lemma]] = ("n", [])
        for pos in "arvn":
            found = [lemma for name in self._lemmas(word, pos) if (lemma := self._lemma(name, pos)).senses]
            if found and (not best[1] or sum(x.uses for x in found) > sum(x.uses for x in best[1])):
                best = (pos, sorted(found, key=lambda lemma: -lemma.uses))
        return best

    def _lemmas(self, word: str, pos: str) -> list[str]:
        """The lemmas that the word can be a form of. In WordNet, "men" and "larger" are also lemmas themselves."""
        found = [self._reader.morphy(word, pos), *self._inflections.lemmas(word, pos)]
        if pos in "ar":
            for ending in ("er", "est"):
                if word.endswith(ending):
                    found += [word.removesuffix(ending), word.removesuffix(ending[1:])]
        return [name for name in dict.fromkeys(found) if name]

    def _lemma(self, name: str, pos: str) -> _Lemma:
        synsets = self._reader.synsets(name, pos)
        senses = [entry for synset in synsets for entry in synset.lemmas() if entry.name() == name]
        counts = [self._counts.get(entry.key(), 0) for entry in senses]
        total = sum(counts)
        kept = [entry for place, entry in enumerate(senses) if place == 0 or counts[place] > _RARE * total]
        return _Lemma(name, total, kept)
