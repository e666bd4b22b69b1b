"""Random edits of words: ESimCSE's repetition, and EDA's three, which Twins compares itself with in figure 4a."""

from __future__ import annotations

import random

from st_contrastive._checks import require_number
from st_contrastive.augmentations._words import core, join, space_before, split
from st_contrastive.augmentations.lexicon import require_wordnet, synonyms


class WordRepetition:
    """Repeats 0 to max(2, rate * words) random words, as ESimCSE (Wu et al., COLING 2022) does with subwords.

    In scripts without spaces other than Chinese and Japanese, all text between two spaces is one word.
    """

    def __init__(self, rate: float = 0.32) -> None:
        require_number("rate", rate, most=1)
        self.rate = rate

    def __call__(self, text: str, rng: random.Random) -> str:
        pieces = split(text)
        count = min(len(pieces), rng.randint(0, max(2, int(self.rate * len(pieces)))))
        for place in sorted(rng.sample(range(len(pieces)), count), reverse=True):
            word = pieces[place][1]
            pieces.insert(place + 1, (space_before(word), word))
        return join(pieces) if count else text


class RandomDeletion:
    """Deletes each word with probability ``rate``; if none is left, a random one stays (Wei and Zou, EMNLP 2019)."""

    def __init__(self, rate: float = 0.1) -> None:
        require_number("rate", rate, most=1)
        self.rate = rate

    def __call__(self, text: str, rng: random.Random) -> str:
        pieces = split(text)
        left = [piece for piece in pieces if rng.random() >= self.rate]
        if len(left) == len(pieces):
            return text
        return join(left or [rng.choice(pieces)])


class RandomInsertion:
    """Inserts max(1, int(rate * words)) synonyms of random words at random places (Wei and Zou, EMNLP 2019)."""

    def __init__(self, rate: float = 0.1) -> None:
        require_number("rate", rate, most=1)
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

    def __init__(self, rate: float = 0.1) -> None:
        require_number("rate", rate, most=1)
        require_wordnet()
        self.rate = rate

    def __call__(self, text: str, rng: random.Random) -> str:
        pieces = split(text)
        candidates = _with_synonyms(pieces)
        count = min(len(candidates), max(1, int(self.rate * len(pieces))))
        for place, names in rng.sample(candidates, count):
            space, word = pieces[place]
            before, _, after = core(word)
            pieces[place] = (space, before + rng.choice(names) + after)
        return join(pieces) if count else text


def _with_synonyms(pieces: list[tuple[str, str]]) -> list[tuple[int, tuple[str, ...]]]:
    """The places of lower-case words that have synonyms, and these."""
    words = enumerate(core(word)[1] for _, word in pieces)
    return [(place, names) for place, word in words if word.islower() and (names := synonyms(word))]
