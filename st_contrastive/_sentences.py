"""Documents cut into sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

_PARAGRAPHS = re.compile(r"\n\s*\n")
#: Behind the marks of scripts that put no space between sentences, and the quotes and brackets that close there.
_WIDE_END = re.compile(r"(?<=[。！？])(?![。！？”’」』）])|(?<=[。！？][”’」』）])")
#: The space between a sentence and one that begins with a capital, a digit, or a quote or bracket before them.
_SPACE = re.compile(r"(?<=[.!?…])\s+(?=[\"'“‘(\[¿¡]*[^\W_a-z])|(?<=[.!?…][\"'”’)\]])\s+(?=[\"'“‘(\[¿¡]*[^\W_a-z])")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'“])(?:[A-Z]|Mrs?|Ms|Drs?|Prof|St|Sr|Jr|Gen|Col|Capt|Lt|Sgt|Rev|Gov|Sen|Rep|Hon|Messrs|Mt|Ft|No|Nos|"
    r"Fig|Figs|Eq|Vol|pp?|cf|vs|ca|approx|e\.g|i\.e|al|etc|Inc|Ltd|Co|Corp|Jan|Feb|Aug|Sept?|Oct|Nov|Dec)\.$"
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a document, each on one line.

    A blank line ends a sentence. Within a paragraph NLTK's punkt decides, where its English data are installed
    (``python -m nltk.downloader punkt_tab``), and otherwise a rule: a full stop, question or exclamation mark before a
    capital, except behind common abbreviations and initials.

    Example:
        >>> split_sentences("Dr. Smith sleeps. It rains!\\n\\nA heading\\n\\n今天下雨。我们回家。")
        ['Dr. Smith sleeps.', 'It rains!', 'A heading', '今天下雨。', '我们回家。']
    """
    punkt = _punkt()
    split = _by_rule if punkt is None else punkt.tokenize
    sentences: list[str] = []
    for paragraph in _PARAGRAPHS.split(text):
        for part in _WIDE_END.split(" ".join(paragraph.split())):
            sentences += (sentence for sentence in map(str.strip, split(part)) if sentence)
    return sentences


@lru_cache(maxsize=1)
def _punkt() -> Any | None:
    from nltk.tokenize import PunktTokenizer

    try:
        return PunktTokenizer("english")
    except LookupError:
        return None


def _by_rule(text: str) -> Iterable[str]:
    start = 0
    for match in _SPACE.finditer(text):
        sentence = text[start : match.start()]
        if not _ABBREVIATION.search(sentence):
            yield sentence
            start = match.end()
    yield text[start:]
