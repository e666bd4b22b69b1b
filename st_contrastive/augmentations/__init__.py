"""Augmentations of texts, called as ``augmentation(text, rng)`` with a ``random.Random``.

``rate`` is a share of a text's words, 0 to 1; a Chinese or Japanese character is a word. Those that look words up raise
LookupError where NLTK has no WordNet.
"""

from st_contrastive.augmentations.edits import (
    AntonymReplacement,
    RandomDeletion,
    RandomInsertion,
    SynonymReplacement,
    WordRepetition,
    augmentation,
)

__all__ = [
    "AntonymReplacement", "RandomDeletion", "RandomInsertion", "SynonymReplacement", "WordRepetition", "augmentation",
]  # fmt: skip
