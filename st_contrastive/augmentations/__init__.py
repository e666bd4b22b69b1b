"""Augmentations of texts, called as ``augmentation(text, rng)`` with a ``random.Random``.

``rate`` is a share of a text's words, 0 to 1; a Chinese or Japanese character is a word. Those that look words up raise
LookupError where NLTK has no WordNet.
"""

import random
from collections.abc import Callable
from typing import Any

from st_contrastive.augmentations.antonym import AntonymReplacement
from st_contrastive.augmentations.edits import RandomDeletion, RandomInsertion, SynonymReplacement, WordRepetition

__all__ = [
    "AntonymReplacement", "RandomDeletion", "RandomInsertion", "SynonymReplacement", "WordRepetition", "augmentation",
]  # fmt: skip

_CLASSES: dict[str, Callable[..., Any]] = {
    "antonyms": AntonymReplacement,
    "repetition": WordRepetition,
    "deletion": RandomDeletion,
    "insertion": RandomInsertion,
    "synonyms": SynonymReplacement,
}


def augmentation(text: str) -> Callable[[str, random.Random], str]:
    """An augmentation by "NAME" or "NAME=RATE": antonyms, repetition, deletion, insertion or synonyms.

    Raises:
        ValueError: there is no such name, the rate is no share, or NLTK has no WordNet.

    Example:
        >>> augmentation("deletion=0.5")("It rains in Oslo again.", random.Random(0))
        'It rains again.'
    """
    name, equals, value = str(text).partition("=")
    try:
        made: Callable[[str, random.Random], str] = _CLASSES[name](*([float(value)] if equals else []))
    except KeyError:
        raise ValueError(f"augment must be one of {', '.join(_CLASSES)}, or NAME=RATE; got {text!r}.") from None
    except (LookupError, ValueError) as error:
        raise ValueError(f"augment={text!r}: {error}") from error
    return made
