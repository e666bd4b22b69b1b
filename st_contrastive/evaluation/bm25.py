"""BM25 search, and the mixture of its scores with an encoder's similarities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from unicodedata import normalize

import numpy as np
import regex
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array

from st_contrastive._arguments import Share, checked
from st_contrastive._checks import import_extra, require_texts
from st_contrastive.inputs.segments import require_language

#: Weight of the encoder in the mixture. BM25 has the remaining 0.3.
WEIGHT = 0.7
#: Thai, Lao, Khmer, Japanese and Chinese put no spaces between words: each character is a word.
_UNSPACED = r"\u0e01-\u0eff\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
_LETTER = rf"[[\p{{L}}\p{{N}}]--[{_UNSPACED}]]"
#: Letters and digits, with the underscores and the combining marks (as in Hindi) between them. The first two
#: alternatives consume the single letters of contractions and elisions, which are not words: "cat's", "l'eau".
_WORD = regex.compile(
    rf"(?V1)(?<={_LETTER}['’]){_LETTER}(?![\w'’])|(?<![\w'’]){_LETTER}(?=['’]{_LETTER})"
    rf"|([{_UNSPACED}]|{_LETTER}(?:[[\w\p{{M}}]--[{_UNSPACED}]]*[[\p{{L}}\p{{N}}\p{{M}}]--[{_UNSPACED}]])?)"
)


class BM25:
    """Lucene's BM25 (Robertson and Zaragoza, 2009; k1 = 1.5, b = 0.75) over N texts, computed by ``bm25s``.

    A word is a run of letters and digits, in lower case; one character is enough ("vitamin D"). Words are stemmed if
    PyStemmer knows the language. Stop words are dropped if ``bm25s`` has a list for it; "a" is one in English.

    Args:
        texts: the documents.
        language: two-letter code of their language.

    Raises:
        ImportError: the extra "search" is not installed.
    """

    def __init__(self, texts: Sequence[str], *, language: str = "en") -> None:
        require_language("language", language)
        texts = [*require_texts("texts", texts)]
        bm25s, stemmers = import_extra("bm25s", "search"), import_extra("Stemmer", "search")
        self._tokenize = bm25s.tokenize
        self._options: dict[str, Any] = {"stopwords": [], "return_ids": False, "show_progress": False}
        self._options["token_pattern"] = r"\S+"
        with suppress(KeyError):  # a language without a stemmer
            self._options["stemmer"] = stemmers.Stemmer(language)
        with suppress(ValueError):  # or without a list of stop words
            self._tokenize("", **self._options | {"stopwords": language})
            self._options["stopwords"] = language
        words = self._words(texts)
        self._columns: dict[str, int] = {}
        self._documents: Any = csr_array((len(texts), 0), dtype=np.float32)
        if any(words):  # bm25s cannot index documents without words
            index = bm25s.BM25()
            index.index(words, show_progress=False)
            parts = [index.scores[name] for name in ("data", "indices", "indptr")]
            self._documents = csc_array(tuple(parts), shape=(len(texts), len(parts[-1]) - 1)).tocsr()
            # bm25s adds an empty word, which has no column.
            self._columns = {word: column for word, column in index.vocab_dict.items() if word}

    def scores(self, queries: Sequence[str]) -> NDArray[np.float64]:
        """(Q, N) scores of the N documents for Q queries; 0 if the two share no word."""
        products = self.query_vectors(queries).astype(np.float64) @ self.document_vectors().T
        return np.asarray(products.toarray(), dtype=np.float64)

    def document_vectors(self) -> csr_array[Any, tuple[int, int]]:
        """(N, V) sparse vectors of the documents, for a search engine. Each value is a word's BM25 weight.

        The dot product with a row of :meth:`query_vectors` is the BM25 score.
        """
        vectors: csr_array[Any, tuple[int, int]] = self._documents
        return vectors

    def query_vectors(self, queries: Sequence[str]) -> csr_array[Any, tuple[int, int]]:
        """(Q, V) sparse vectors of queries: how often each word occurs. Words of no document are dropped."""
        counts = [
            Counter(self._columns[word] for word in words if word in self._columns)
            for words in self._words(require_texts("queries", queries))
        ]
        ends = np.cumsum([0, *map(len, counts)])
        columns = np.array([column for row in counts for column in row], dtype=np.int32)
        values = np.array([count for row in counts for count in row.values()], dtype=np.float32)
        return csr_array((values, columns, ends), shape=(len(counts), self._documents.shape[1]))

    def _words(self, texts: Iterable[str]) -> list[list[str]]:
        found = (filter(None, _WORD.findall(normalize("NFKC", text).casefold())) for text in texts)
        words: list[list[str]] = self._tokenize([" ".join(each) for each in found], **self._options)
        return words


@checked
def mix(similarities: NDArray[Any], bm25_scores: NDArray[Any], weight: Share = WEIGHT) -> NDArray[np.float64]:
    """``weight * z(similarities) + (1 - weight) * z(bm25_scores)``, (Q, N): z-scores over the documents of each query.

    If a query has a NaN among its similarities, its whole row is NaN.

    >>> mix(np.array([[0.8, 0.2]]), np.array([[0.0, 9.0]]))
    array([[ 0.4, -0.4]])
    """
    if np.shape(similarities) != np.shape(bm25_scores):
        raise ValueError(
            f"similarities and bm25_scores must both be (queries, documents), got {np.shape(similarities)} and "
            f"{np.shape(bm25_scores)}."
        )
    return weight * standardised(similarities) + (1 - weight) * standardised(bm25_scores)


def describe_mixture(similarity: str = "similarity") -> str:
    """The formula of :func:`mix`.

    >>> describe_mixture("cosine")
    '0.7 z(cosine) + 0.3 z(BM25)'
    """
    return f"{WEIGHT} z({similarity}) + {1 - WEIGHT:.1f} z(BM25)"


def standardised(scores: NDArray[Any]) -> NDArray[np.float64]:
    """Z-scores of each row of (Q, N) scores: mean 0 and standard deviation 1. A row of equal scores becomes 0."""
    centred = scores - scores.mean(axis=1, keepdims=True, dtype=np.float64)
    deviation = centred.std(axis=1, keepdims=True)
    # A NaN deviation is unequal to 0: the row becomes NaN.
    scaled: NDArray[np.float64] = np.divide(centred, deviation, out=np.zeros_like(centred), where=deviation != 0)
    return scaled
