"""Documents cut into sentences."""

from __future__ import annotations


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
