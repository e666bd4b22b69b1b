"""EDA's augmentations (Wei and Zou, EMNLP 2019), which Twins compares itself with in figure 4a."""

from __future__ import annotations

import random
from collections.abc import Sequence

from st_contrastive._checks import require_number
from st_contrastive.augmentations._words import core, join, space_before, split
from st_contrastive.augmentations.lexicon import require_wordnet, synonyms


class RandomDeletion:
    """Deletes each word with a probability; if none is left, a random one stays.

    Args:
        rate: the probability for each word.

    Example:
        >>> import random
        >>> RandomDeletion(0.5)("It rains in Oslo again.", random.Random(0))
        'It rains again.'
    """

    def __init__(self, rate: float = 0.1) -> None:
        require_number("rate", rate, most=1)
        self.rate = rate

    def __call__(self, text: str, rng: random.Random) -> str:
        pieces = split(text)
        if not pieces:
            return text
        left = [piece for piece in pieces if rng.random() >= self.rate] or [rng.choice(pieces)]
        return text if len(left) == len(pieces) else join(left)


class RandomInsertion:
    """Inserts a synonym of a random word at a random place, several times.

    Args:
        rate: share of the text's words, 0 to 1; of n words, max(1, int(rate * n)) are added.
        words: words to insert in place of WordNet's synonyms, for other languages than English.

    Raises:
        LookupError: there is no WordNet, and ``words`` is not given.

    Example:
        >>> import random
        >>> RandomInsertion(words=["so", "well"])("It rains in Oslo.", random.Random(6))
        'It rains well in Oslo.'
    """

    def __init__(self, rate: float = 0.1, words: Sequence[str] | None = None) -> None:
        require_number("rate", rate, most=1)
        if words is None:
            require_wordnet()
        # The order of a set differs between processes.
        elif isinstance(words, (str, set)) or not words or not all(len(split(word)) == 1 for word in words):
            raise TypeError(f"words must be a sequence of single words, got {words!r:.80}.")
        self.rate = rate
        self.words = words

    def __call__(self, text: str, rng: random.Random) -> str:
        pieces = split(text)
        pools = [self.words] if self.words else [names for _, names in _with_synonyms(pieces)]
        if not pieces or not pools:
            return text
        for _ in range(max(1, int(self.rate * len(pieces)))):
            word = rng.choice(rng.choice(pools))
            pieces.insert(rng.randint(0, len(pieces)), (space_before(word), word))
        return join(pieces)


class SynonymReplacement:
    """Replaces some words by single-word WordNet synonyms.

    Args:
        rate: share of the text's words, 0 to 1. Of n words, max(1, int(rate * n)) are replaced, or all that have a
            synonym if these are fewer.

    Raises:
        LookupError: there is no WordNet.
    """

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
