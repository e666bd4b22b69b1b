"""Augmentations of texts, called as ``augmentation(text, rng)`` with a ``random.Random``."""

from st_contrastive.augmentations.antonym import AntonymReplacement
from st_contrastive.augmentations.eda import RandomDeletion, RandomInsertion, SynonymReplacement
from st_contrastive.augmentations.repetition import WordRepetition

__all__ = ["AntonymReplacement", "RandomDeletion", "RandomInsertion", "SynonymReplacement", "WordRepetition"]
