"""Antonyms and synonyms of English words as they stand in a text: found in WordNet once, then remembered."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from st_contrastive.augmentations.inflection import Inflections
from st_contrastive.augmentations.wordnet import reopened, sense_counts, wordnet

#: Words that carry grammar, and negation. WordNet knows some of them as other words: "in" as an adverb and an inch,
#: "no" as a noun, "he" as helium, "will" and "have" as nouns and verbs.
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

#: A sense that has less of a word's uses than this is not what the word means in a text.
_RARE = 0.1


@dataclass(frozen=True)
class Words:
    """What may stand in a word's place: for the form as it is, and where it is a participle.

    The two differ where one form is past tense and participle (``lost``) and the other word has one for each.
    """

    forms: tuple[str, ...]
    as_participle: tuple[str, ...]


_NONE = Words((), ())


@dataclass(frozen=True)
class _Lemma:
    name: str
    uses: int
    senses: list[Any]


class Lexicon:
    """English words and WordNet's relations between them.

    A word of several parts of speech counts as the one that it has most often in WordNet's sense-tagged texts, and a
    sense with less than a tenth of its uses is passed over. A word in an inflected form is replaced by the same form of
    the other word, by simple rules and WordNet's irregular forms (``larger``: ``smaller``, ``won``: ``lost``,
    ``easier``: ``more difficult``); a word whose form can't be made is left out.

    Args:
        reader: NLTK's WordNet reader; None finds it at the first word, see :func:`wordnet`.
    """

    def __init__(self, reader: Any | None = None) -> None:
        self._given = reader
        self._reader: Any = None
        self._process: int | None = None
        self._inflections: Inflections | None = None
        self._counts: dict[str, int] = {}
        self._antonyms: dict[str, Words] = {}
        self._synonyms: dict[str, Words] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A worker process opens the files itself; only a folder can be sent there.
        root = None if self._given is None else self._given.root
        return {"root": root if isinstance(root, str) else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(None if state["root"] is None else reopened(state["root"]))  # type: ignore[misc]

    @classmethod
    def loaded(cls, lexicon: Lexicon | None) -> Lexicon:
        """``lexicon``, or one on NLTK's WordNet, opened now; see :meth:`load`."""
        lexicon = cls() if lexicon is None else lexicon
        lexicon.load()
        return lexicon

    def load(self) -> None:
        """Open WordNet now, so that its absence is known before any work is done.

        Raises:
            WordNetError: there is none.
        """
        if self._inflections is None:
            self._reader = wordnet() if self._given is None else self._given
            self._counts = sense_counts(self._reader)
            self._inflections = Inflections(self._reader)
        elif self._process != os.getpid():
            # A forked worker shares the places in the open files with its parent, and they would read each other's.
            self._reader = reopened(self._reader.root)
        self._process = os.getpid()

    def antonyms(self, word: str) -> Words:
        """Of the lower-case ``word``: one form at most, by the most frequent sense that has an antonym."""
        found = self._antonyms.get(word)
        if found is None:
            found = self._antonyms[word] = self._find(word, antonyms=True)
        return found

    def synonyms(self, word: str) -> Words:
        """Of the lower-case ``word``: single words of its senses, more frequent senses first."""
        found = self._synonyms.get(word)
        if found is None:
            found = self._synonyms[word] = self._find(word, antonyms=False)
        return found

    def _find(self, word: str, antonyms: bool) -> Words:
        if word in FUNCTION_WORDS or not word.isascii() or len(word) < 2:
            return _NONE
        self.load()
        both: tuple[list[str], list[str]] = ([], [])
        pos, lemmas = self._analysed(word)
        for lemma in lemmas:
            both = self._forms(word, pos, lemma, antonyms)
            if both[0] or both[1]:
                break
        if antonyms:
            both = (both[0][:1], both[1][:1])
        return Words(tuple(both[0]), tuple(both[1]))

    def _forms(self, word: str, pos: str, lemma: _Lemma, antonyms: bool) -> tuple[list[str], list[str]]:
        names: list[str] = []
        for sense in lemma.senses:
            if antonyms:
                others = sorted(sense.antonyms(), key=lambda other: -self._counts.get(other.key(), 0))
                names += [other.name() for other in others]
            else:
                names += [other for other in sense.synset().lemma_names() if other != sense.name()]
        # Names, and words of several words, are left out.
        names = [name for name in dict.fromkeys(names) if name.isalpha() and name.islower() and name != lemma.name]
        inflections = self._inflections
        assert inflections is not None
        feature = inflections.feature(word, lemma.name, pos)
        ambiguous = inflections.may_be_participle(lemma.name, pos, feature)

        def forms(kind: str) -> list[str]:
            return [form for name in names if (form := inflections.inflect(name, pos, kind)) and form != word]

        return forms(feature), forms("participle" if ambiguous else feature)

    def _analysed(self, word: str) -> tuple[str, list[_Lemma]]:
        """The word's most frequent part of speech, and what it is a form of there, more frequent lemmas first."""
        best: tuple[str, list[_Lemma]] = ("n", [])
        for pos in "arvn":
            found = [lemma for name in self._lemmas(word, pos) if (lemma := self._lemma(name, pos)).senses]
            if found and (not best[1] or sum(x.uses for x in found) > sum(x.uses for x in best[1])):
                best = (pos, sorted(found, key=lambda lemma: -lemma.uses))
        return best

    def _lemmas(self, word: str, pos: str) -> list[str]:
        """The lemmas that the word may be a form of. "Men" and "larger" are words of their own in WordNet too."""
        assert self._inflections is not None
        found = [self._reader.morphy(word, pos), *self._inflections.lemmas(word, pos)]
        if pos in "ar":
            for ending in ("er", "est"):
                if word.endswith(ending):
                    found += [word.removesuffix(ending), word.removesuffix(ending[1:])]
        return [name for name in dict.fromkeys(found) if name]

    def _lemma(self, name: str, pos: str) -> _Lemma:
        senses = [
            entry for synset in self._reader.synsets(name, pos) for entry in synset.lemmas() if entry.name() == name
        ]
        counts = [self._counts.get(entry.key(), 0) for entry in senses]
        total = sum(counts)
        kept = [entry for place, entry in enumerate(senses) if place == 0 or counts[place] > _RARE * total]
        return _Lemma(name, total, kept)
