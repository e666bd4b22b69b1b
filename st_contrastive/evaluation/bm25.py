"""Search by words, and its mixture with an encoder's similarities."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from unicodedata import normalize

import numpy as np
import regex
from numpy.typing import NDArray

from st_contrastive._arguments import Share, checked
from st_contrastive._checks import import_extra, require_texts
from st_contrastive.inputs.segments import require_language

#: Weight of the encoder in the mixture; BM25 has the rest.
WEIGHT = 0.7
#: Thai, Lao, Khmer, Japanese and Chinese have no spaces between words.
_UNSPACED = r"\u0e01-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
#: A word: a character of these, a syllable of Korean, or two or more of others. Marks (M) are parts of letters, as in
#: Hindi.
_WORD = regex.compile(rf"(?V1)[{_UNSPACED}]|[\w\p{{M}}--{_UNSPACED}]{{2,}}|\p{{Script=Hangul}}")


class BM25:
    """Lucene's BM25 (Robertson and Zaragoza, 2009; k1 = 1.5, b = 0.75) over texts, by ``bm25s``.

    Words are stemmed where PyStemmer knows the language, and stop words are left out where ``bm25s`` lists them.
    An ImportError names the extra where it is not installed.
    """

    def __init__(self, texts: Sequence[str], *, language: str = "en") -> None:
        require_language("language", language)
        texts = [*require_texts("texts", texts)]
        bm25s, stemmers = import_extra("bm25s", "search"), import_extra("Stemmer", "search")
        self._tokenize, self._index, self._count = bm25s.tokenize, bm25s.BM25(), len(texts)
        self._options: dict[str, Any] = {"stopwords": [], "return_ids": False, "show_progress": False}
        self._options["token_pattern"] = r"\S+"
        with suppress(KeyError):  # a language without a stemmer
            self._options["stemmer"] = stemmers.Stemmer(language)
        with suppress(ValueError):  # or without a list of stop words
            self._tokenize("", **self._options | {"stopwords": language})
            self._options["stopwords"] = language
        words = self._words(texts)
        self._has_words = any(words)
        if self._has_words:
            self._index.index(words, show_progress=False)

    def scores(self, queries: Sequence[str]) -> NDArray[np.float64]:
        """(Q, N) scores of the N documents for Q queries; 0 where they share no word."""
        words, nothing = self._words(require_texts("queries", queries)), np.zeros(self._count)
        return np.stack([self._index.get_scores(own) if own and self._has_words else nothing for own in words])

    def _words(self, texts: Iterable[str]) -> list[list[str]]:
        cut = [" ".join(_WORD.findall(normalize("NFKC", text).casefold())) for text in texts]
        words: list[list[str]] = self._tokenize(cut, **self._options)
        return words


@checked
def mix(similarities: NDArray[Any], words: NDArray[Any], weight: Share = WEIGHT) -> NDArray[np.float64]:
    """``weight * z(similarities) + (1 - weight) * z(words)``, (Q, N): z-scores over the N documents of each query.

    NaN among a query's similarities makes all of its row NaN.

    >>> mix(np.array([[0.8, 0.2]]), np.array([[0.0, 9.0]]))
    array([[ 0.4, -0.4]])
    """
    if np.shape(similarities) != np.shape(words):
        raise ValueError(
            f"similarities and words must both be (queries, documents), got {np.shape(similarities)} and "
            f"{np.shape(words)}."
        )
    return weight * standardised(similarities) + (1 - weight) * standardised(words)


def standardised(scores: NDArray[Any]) -> NDArray[np.float64]:
    """(Q, N) scores of mean 0 and standard deviation 1 in each row; equal ones are 0."""
    centred = scores - scores.mean(axis=1, keepdims=True, dtype=np.float64)
    deviation = centred.std(axis=1, keepdims=True)
    # Where it is NaN, the scores become NaN too, and not 0.
    scaled: NDArray[np.float64] = np.divide(centred, deviation, out=np.zeros_like(centred), where=deviation != 0)
    return scaled
