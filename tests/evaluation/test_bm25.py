"""BM25, and its mixture with an encoder."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from st_contrastive.evaluation import BM25, mix

DOCUMENTS = ["A cat sleeps", "Dogs barked and barked", "The boat"]


def test_by_hand():
    """idf * tf / (tf + k1 (1 - b + b length / mean length)); lengths count the words without stop words."""
    idf = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    scores = BM25(DOCUMENTS).scores(["barking", "the cat", "horse", ""])
    expected = np.zeros((4, 3))
    expected[0, 1] = idf * 2 / (2 + 1.5 * (0.25 + 0.75 * 3 / 2))
    expected[1, 0] = idf * 1 / (1 + 1.5 * (0.25 + 0.75 * 2 / 2))
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def lucene(documents, query):
    """The formula, written out for words without endings."""
    rows = [document.split() for document in documents]
    mean, scores = sum(map(len, rows)) / len(rows), [0.0] * len(rows)
    for word in query.split():
        holders = sum(word in row for row in rows)
        idf = math.log(1 + (len(rows) - holders + 0.5) / (holders + 0.5))
        for place, row in enumerate(rows):
            count = row.count(word)
            scores[place] += idf * count / (count + 1.5 * (0.25 + 0.75 * len(row) / mean))
    return scores


CODES = ["error e 5 5", "error e 7", "error f 7 x y", "step 2", "step 1 drain"]


def test_words_of_one_character_count():
    queries = ["error e 7", "step 2", "x", "7 7 zzz", "x x y"]
    np.testing.assert_allclose(BM25(CODES).scores(queries), [lucene(CODES, query) for query in queries], rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "query", "is_found"),
    [
        ("Vitamin D, of course", "d", True), ("C++", "C#", True), ("plan (b)", "b!", True), ("'x' marks", "x", True),
        ("the cat's tail", "s", False), ("don't", "t", False), ("l'eau", "l", False), ("rock 'n' roll", "n", True),
        ("_private", "private", True), ("dry_run", "run", False), ("5°", "5", True), ("❤️ ☂️", "☂️", False),
        ("x² y", "x2", True), ("Ж1", "ж1", True),
    ],
)  # fmt: skip
def test_words_with_signs_and_apostrophes(text, query, is_found):
    """A letter that an apostrophe joins to a word is not a word. Neither is a sign."""
    assert (BM25([text, "nothing else", "boats"]).scores([query])[0, 0] > 0) == is_found


def test_vectors_for_a_search_engine():
    """The dot product of two sparse vectors is the score, also of a query that repeats a word."""
    index, queries = BM25(CODES), ["error e 7", "5 5 5", "unknown", "", "step step 2"]
    documents, asked = index.document_vectors(), index.query_vectors(queries)
    assert documents.shape == (5, asked.shape[1])
    assert asked.toarray().max() == 3
    assert asked[[2, 3]].nnz == 0
    np.testing.assert_allclose((asked @ documents.T).toarray(), [lucene(CODES, query) for query in queries], rtol=1e-5)
    empty = BM25(["", "!"])
    assert (empty.query_vectors(["word"]) @ empty.document_vectors().T).toarray().tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("language", "documents", "query"),
    [
        ("de", ["Die Häuser", "Das Boot"], "ein Haus"),
        ("cs", ["starý dům", "loď"], "dům"),
        ("zh", ["猫 狗狗", "船 船船"], "狗狗"),
        ("zh", ["我有狗狗", "大船"], "狗"),
        ("th", ["แมวนอน", "เรือ"], "มว"),
        ("hi", ["किताब मेज पर है।", "बिल्ली सोती"], "किताब"),
        ("ko", ["책 읽기", "물 마시기"], "책"),
        ("de", ["Die Bru\u0308cke", "Das Boot"], "Brücke"),
        ("en", ["Ｐｙｔｈｏｎ", "a boat"], "python"),
    ],
)
def test_languages(language, documents, query):
    """Chinese has no stemmer, and Czech no list of stop words."""
    first, second = BM25(documents, language=language).scores([query])[0]
    assert first > second == 0


def test_wrong_texts_and_languages():
    for arguments, options, error in (("abc", {}, TypeError), (DOCUMENTS, {"language": "German"}, ValueError)):
        with pytest.raises(error, match=r"(texts|language) must be"):
            BM25(arguments, **options)
    with pytest.raises(TypeError, match="queries must be a sequence"):
        BM25(DOCUMENTS).scores("a cat")


def test_documents_without_words():
    assert not BM25(["", "!"]).scores(["word", ""]).any()


scores = st.lists(st.lists(st.floats(-100, 100), min_size=4, max_size=4), min_size=1, max_size=3).map(np.array)


@given(scores, st.floats(0, 1))
@settings(deadline=None, derandomize=True)
def test_the_scale_of_similarities_does_not_matter(values, weight):
    """Nor does their offset. Equal similarities change no ranking."""
    words = np.arange(values.size).reshape(values.shape) % 3
    np.testing.assert_allclose(mix(3 * values + 7, words, weight), mix(values, words, weight), atol=1e-6)
    np.testing.assert_allclose(mix(np.ones_like(values), words, 0.7), mix(0 * values, words, 0.7))


def test_nan_and_other_shapes_in_a_mixture():
    """A NaN makes the row of its query NaN. Scores of other queries are refused."""
    mixed = mix(np.array([[0.9, math.nan, 0.1], [0.9, 0.2, 0.1]]), np.eye(3)[:2])
    assert np.isnan(mixed).all(axis=1).tolist() == [True, False]
    assert np.isfinite(mixed[1]).all()
    with pytest.raises(ValueError, match=r"similarities and bm25_scores .*\(2, 3\) and \(1, 3\)"):
        mix(np.ones((2, 3)), np.ones((1, 3)))


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ImportError, match=r"\.\[search\]"):
        BM25(DOCUMENTS)
