"""Documents cut into sentences."""

from __future__ import annotations

import re


def language_of(split: str) -> str | None:
    """The language by whose rules ``split`` cuts documents; None for "lines", which cuts none.

    Raises:
        ValueError: it is neither "lines", "sentences" nor a code of a language.
    """
    if split in ("lines", "sentences"):
        return "en" if split == "sentences" else None
    return require_language("split", split, '"lines", "sentences" or ')


def require_language(name: str, code: str, others: str = "") -> str:
    """Require the code of a language, and return it."""
    if not re.fullmatch("[a-z]{2,3}", str(code)):
        raise ValueError(f'{name} must be {others}the code of a language, such as "de"; got {code!r}.')
    return code


def split_sentences(text: str, language: str = "en") -> list[str]:
    """The sentences of a document, each on one line, by sentencex's rules for a language.

    A blank line ends a sentence. The full stops of other scripts do so too.

    Example:
        >>> split_sentences("Dr. Smith sleeps. It rains!\\n\\nA heading\\n\\n今天下雨。我们回家。")
        ['Dr. Smith sleeps.', 'It rains!', 'A heading', '今天下雨。', '我们回家。']
    """
    import sentencex

    sentences = (" ".join(part.split()) for part in sentencex.segment(language, text))
    return [sentence for sentence in sentences if sentence]
