"""Augmentations of texts, called as ``augmentation(text, rng)`` with a ``random.Random``."""

from st_contrastive.augmentations.antonym import AntonymReplacement
from st_contrastive.augmentations.deletion import RandomDeletion
from st_contrastive.augmentations.insertion import RandomInsertion
from st_contrastive.augmentations.lexicon import Lexicon
from st_contrastive.augmentations.repetition import WordRepetition
from st_contrastive.augmentations.synonym import SynonymReplacement
from st_contrastive.augmentations.wordnet import WordNetError, wordnet

__all__ = [
    "AntonymReplacement",
    "Lexicon",
    "RandomDeletion",
    "RandomInsertion",
    "SynonymReplacement",
    "WordNetError",
    "WordRepetition",
    "wordnet",
]
